"""Signals to an agent, at whatever moment they come."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.inventory import InventoryServer
from tests.commands import PGTARE, read_until
from tests.sessions import eventually
from tests.unit.spool_rows import UNLIMITED


@pytest.mark.timeout(120)
def test_a_signal_ends_an_agent_that_begins_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it holds a lock, as an Event does that is waited for."""

    def interrupted(wait: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*arguments: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGTERM)
            return wait(*arguments)

        return waits

    config = AgentConfig(servers={"shop": InventoryServer(dsn="host=nowhere")})
    monkeypatch.setattr(Agent, "_begin", lambda *server: None)
    monkeypatch.setattr(threading.Condition, "wait", interrupted(threading.Condition.wait))
    monkeypatch.setattr(time, "sleep", interrupted(time.sleep))
    with Spool.open(tmp_path, UNLIMITED) as spool:
        Agent(config, spool, AgentLog()).run()


def test_a_reload_while_the_command_starts_waits_until_it_has_started(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[servers.shop]\ndsn = 'host=nowhere.invalid'")
    words = [*PGTARE, "agent", "--config", str(config), "--spool", str(tmp_path / "spool")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as agent:
        maps = Path(f"/proc/{agent.pid}/maps")
        eventually(lambda: "numpy" in maps.read_text())  # some of many libraries
        agent.send_signal(signal.SIGHUP)
        read_until(agent, "event=reload servers=1")
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(120) == 0
