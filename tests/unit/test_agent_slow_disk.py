"""When the agent commits; and a disk that hangs or fails: what it holds, gives up and logs."""

from __future__ import annotations

import errno
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from pgtare.keeping.agent import agent as module
from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.config import AgentConfig, Intervals
from pgtare.keeping.agent.rows import Batch, RowInterval
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool.volume import Volume
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.inventory import InventoryServer
from tests.sessions import eventually
from tests.unit.spool_rows import UNLIMITED, at, held, newest, number, random_rows, value

SHOP = InventoryServer(dsn="host=nowhere")


class Hanging(Volume):
    """A disk whose fsync does not return before it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.hangs, self.goes_on = threading.Event(), threading.Event()

    def _step(self, operation: str, name: str) -> None:
        if operation == "fsync":
            self.hangs.set()
            self.goes_on.wait(60)


def look(agent: Agent, index: int) -> None:
    """A look at a server, with a reading."""
    batch = Batch(readings={"waits": number(index)})
    batch.tick(RowInterval("shop", agent.uuid, 1, 1_000_000 * index, 10**9, "exact"), "waits")
    agent._collect("shop", batch)


def test_rows_do_not_pile_up_while_a_commit_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = Hanging(tmp_path)
    volume.goes_on.set()
    with Spool.open(tmp_path, UNLIMITED, volume) as spool:
        agent = Agent(AgentConfig(servers={"shop": SHOP}), spool, AgentLog())
        look(agent, 1)
        volume.hangs.clear()
        volume.goes_on.clear()
        commit = threading.Thread(target=agent._commit)
        commit.start()
        eventually(volume.hangs.is_set)
        for index in range(2, 102):
            look(agent, index)
        with monkeypatch.context() as later:
            later.setattr(module, "_COLLECTED_S", 0.0)
            look(agent, 102)
        assert len(agent._collected) == 1
        volume.goes_on.set()
        commit.join(60)
        agent._commit()
        assert value(spool.reading("shop", "waits")) == 102
    assert held(tmp_path, "ticks").num_rows == 2
    (gap,) = held(tmp_path, "gaps").to_pylist()
    assert (gap["server"], gap["kind"], gap["covered_ns"]) == ("shop", "disk_full", 99 * 10**9)
    assert gap["detail"] == "rows that could not be written in time: ticks 100"


def test_rows_are_committed_however_rarely_waits_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are looked at each second, and their rows would be given up after ten minutes."""
    monkeypatch.setattr(module, "_LONGEST_COMMIT_S", 0.5)
    rarely = AgentConfig(servers={"shop": SHOP}, intervals=Intervals(waits="15m"))
    with Spool.open(tmp_path, UNLIMITED) as spool:
        agent = Agent(rarely, spool, AgentLog())
        committing = threading.Thread(target=agent._until_stopped)
        committing.start()
        look(agent, round(time.time()))  # what is old would go at once
        eventually(lambda: held(tmp_path, "ticks").num_rows == 1)
        agent.stop()
        committing.join(60)


def test_commits_are_as_far_apart_as_a_configuration_that_was_read_again_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "_begin", lambda *server: None)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        agent = Agent(AgentConfig(servers={"shop": SHOP}), spool, AgentLog())
        assert agent._grid().interval_s == 10.0
        agent._adapt(AgentConfig(servers={"shop": SHOP}, intervals=Intervals(waits="2s")))
        assert agent._grid().interval_s == 2.0


class Failing(Volume):
    """A disk that cannot be written any more."""

    fails = False

    def _step(self, operation: str, name: str) -> None:
        if self.fails:
            raise OSError(errno.EROFS, "Read-only file system")


def test_a_damaged_file_on_a_failed_disk_is_no_busy_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = Failing(tmp_path)
    with Spool.open(tmp_path, UNLIMITED, volume) as spool:
        spool.commit({"ticks": random_rows("ticks", [at(0)])}, {})
        (segment,) = newest(tmp_path).segments
        (tmp_path / segment).write_bytes(b"")
        volume.fails = True
        agent = Agent(AgentConfig(servers={"shop": SHOP}), spool, AgentLog())
        looked = 0

        def maintain(now: datetime) -> bool:
            nonlocal looked
            looked += 1
            return Spool.maintain(spool, now)

        monkeypatch.setattr(spool, "maintain", maintain)
        for _ in range(5):
            agent._maintain(0.5)
            agent._commit()
        assert looked == 5
        volume.fails = False
    lines = [line for line in capsys.readouterr().err.splitlines() if segment in line]
    (line,) = lines
    assert "is damaged (it has 0 of" in line
    assert "was not set aside" in line
