"""When an agent that cannot watch its servers, or cannot get their lock, ends."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.agent.server_session import AgentLocked, SessionIdentity
from pgtare.keeping.agent.server_watch import ServerWatch
from pgtare.keeping.agent_log import AgentLog

CONFIG = {"spool": {"directory": Path("/spool")}, "servers": {"shop": {"dsn": ""}}}


def agent_locked_out(
    *, was_connected: bool, for_s: float = 60.0, failure: PgtareError | None = None
) -> Agent:
    agent = Agent(AgentConfig.model_validate(CONFIG), cast(Any, None), AgentLog())
    watch = SimpleNamespace(
        failure=failure or AgentLocked("locked"),
        was_connected=was_connected,
        began=time.monotonic() - for_s,
    )
    agent._watches = cast(Any, {"shop": watch})
    return agent


def test_an_agent_that_never_got_the_lock_ends_after_a_while() -> None:
    agent_locked_out(was_connected=False, for_s=1.0)._give_up_if_hopeless()
    with pytest.raises(AgentLocked):
        agent_locked_out(was_connected=False)._give_up_if_hopeless()


def test_an_agent_that_lost_its_session_waits_for_the_lock() -> None:
    agent_locked_out(was_connected=True)._give_up_if_hopeless()


def test_an_agent_whose_service_file_is_gone_for_a_moment_goes_on() -> None:
    """If that was so from the start, nobody will ever get in."""
    gone = UsageError("cannot read the connection string")
    agent_locked_out(was_connected=True, failure=gone)._give_up_if_hopeless()
    with pytest.raises(UsageError):
        agent_locked_out(was_connected=False, for_s=0.0, failure=gone)._give_up_if_hopeless()


def test_a_watch_that_a_reload_begins_anew_goes_on_for_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session of the one before may still hold the lock: it is ended, and nobody gives up."""
    for method in ("start", "join"):
        monkeypatch.setattr(ServerWatch, method, lambda *_: None)
    spool = SimpleNamespace(
        reading=lambda *_: None, commit=lambda *_: "", take_notes=list, trouble=None
    )
    config = AgentConfig.model_validate(CONFIG)
    agent = Agent(config, cast(Any, spool), AgentLog())
    agent._adapt(config)
    before = agent._watches["shop"]
    before.was_connected, before.session = True, SessionIdentity(4711, "today")
    moved = {**CONFIG, "servers": {"shop": {"dsn": "host=elsewhere"}}}
    agent._adapt(AgentConfig.model_validate(moved))
    after = agent._watches["shop"]
    assert after is not before
    assert after.session == before.session
    after.failure, after.began = AgentLocked("locked"), time.monotonic() - 60
    agent._give_up_if_hopeless()


def test_an_agent_that_was_told_another_server_waits_for_it() -> None:
    """Nobody is there to see a service end after a reload."""
    agent = agent_locked_out(was_connected=False)
    agent._watches["shop"].server = agent.config.servers["shop"]
    agent._reload = lambda: agent.config
    agent._read_again()
    agent._give_up_if_hopeless()
