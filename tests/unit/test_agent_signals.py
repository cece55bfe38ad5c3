"""An agent ends by a signal, at whatever moment that comes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.agent_log import AgentLog
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.inventory import InventoryServer
from tests.unit.spool_rows import UNLIMITED


@pytest.mark.timeout(30)
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
