"""What the agent keeps out of its memory, and how many files it may open."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.inventory import InventoryServer
from tests.unit.spool_rows import UNLIMITED

_SCRIPT = """
import sys
import pyarrow as pa
from pgtare.keeping.agent.process_memory import leave_pandas_out
leave_pandas_out()
pa.table({"a": [1, None], "b": ["x", "y"]})
print("pandas" in sys.modules)
import pandas
print("pandas" in sys.modules)
"""


def test_pandas_is_not_loaded_and_can_be() -> None:
    """pyarrow would load it with the first table that is made from lists."""
    pytest.importorskip("pandas")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.split() == ["False", "True"]


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Fewer files may be open than a process may ask for; returns how many that is."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_agent_opens_as_many_files_as_it_may(
    tmp_path: Path, few_descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server takes three: four hundred would leave none for commits, and all rows be lost."""
    monkeypatch.setattr(Agent, "_begin", lambda *server: None)
    config = AgentConfig(servers={"shop": InventoryServer(dsn="host=nowhere.invalid")})
    with Spool.open(tmp_path, UNLIMITED) as spool:
        agent = Agent(config, spool, AgentLog())
        agent.stop()
        agent.run()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few_descriptors, few_descriptors)
