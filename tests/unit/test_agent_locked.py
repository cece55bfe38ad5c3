"""When an agent that cannot get the lock of its servers ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.agent_log import AgentLog
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.agent.server_session import AgentLocked

CONFIG = {"spool": Path("/spool"), "servers": {"shop": {"dsn": ""}}}


def agent_locked_out(*, was_connected: bool) -> Agent:
    agent = Agent(AgentConfig.model_validate(CONFIG), cast(Any, None), AgentLog())
    watch = SimpleNamespace(failure=AgentLocked("locked"), was_connected=was_connected)
    agent._watches = cast(Any, {"shop": watch})
    return agent


def test_an_agent_that_never_got_the_lock_ends_after_a_while() -> None:
    agent = agent_locked_out(was_connected=False)
    agent._give_up_if_hopeless(1.0)
    with pytest.raises(AgentLocked):
        agent._give_up_if_hopeless(60.0)


def test_an_agent_that_lost_its_session_waits_for_the_lock() -> None:
    agent_locked_out(was_connected=True)._give_up_if_hopeless(60.0)
