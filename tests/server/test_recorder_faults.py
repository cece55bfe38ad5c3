"""What goes wrong while the recorder is on and triggers are set: nothing else does for that."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.moment import moment
from pgtare.observing.trace.file.reader import Trace, load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests.servers import crash, tracing
from tests.sessions import Connection, eventually, one, rows, session
from tests.small_shared_memory import Volume, small_shm
from tests.trace_keeper import forget_all, place

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MEBIBYTE = 1024 * 1024
SETTINGS: dict[str, Value] = {
    "deadlock_timeout": "50ms",
    "sql_trace.recorder": True,
    "sql_trace.recorder_memory": "8MB",
    "sql_trace.keep_interval": 0,
}


@dataclass
class Recording:
    """A server that records all its sessions, and where it writes what is kept."""

    cluster: Cluster
    directory: Path
    volume: Volume


@pytest.fixture(scope="module")
def recording(each_server: Binaries) -> Iterator[Recording]:
    """In a container's /dev/shm, some of it reserved."""
    settings: dict[str, Value] = {"min_dynamic_shared_memory": "2MB"}
    with place() as path, contextlib.ExitStack() as stack:
        settings |= SETTINGS | {"sql_trace.keep_directory": str(path / "kept")}
        # only the server stays there: a process with threads cannot come back
        with small_shm(64) as volume:
            cluster = stack.enter_context(tracing(each_server, settings))
            directory = os.dup(volume.directory)
        stack.callback(os.close, directory)
        yield Recording(cluster, path / "kept", Volume(directory))


@pytest.fixture
def admin(recording: Recording) -> Iterator[Connection]:
    """A session that is not recorded; nothing is kept."""
    with session(recording.cluster, options="-c sql_trace.recorder=off") as connection:
        forget_all(connection)
        yield connection


@contextlib.contextmanager
def client(recording: Recording, **settings: object) -> Iterator[Connection]:
    options = "".join(f" -c sql_trace.{name}={value}" for name, value in settings.items())
    with session(recording.cluster, application_name="shop", options=options) as found:
        yield found


def fail(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1/0")


def files(recording: Recording) -> list[Trace]:
    found = [load(path) for path in sorted(recording.directory.glob("kept-*.pgtrace"))]
    for trace in found:
        assert not trace.damages
        assert trace.end is not None
    return found


def kept(admin: Connection) -> list[tuple[Any, ...]]:
    return rows(admin, "SELECT cause, detail, application_name FROM sql_trace_kept() ORDER BY id")


@pytest.mark.slow
def test_a_storm_of_triggers_keeps_a_roles_share(recording: Recording, admin: Connection) -> None:
    """Of very many errors at once, in several sessions: half of what an hour may keep."""
    before = rows(admin, "SELECT kept, skipped FROM sql_trace_kept_info()")[0]
    errors, sessions = 150, 4

    def storm() -> None:
        with client(recording, keep_sqlstates="22012") as stormy:
            for _ in range(errors):
                fail(stormy)

    threads = [threading.Thread(target=storm) for _ in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def counted() -> tuple[int, int]:
        after = rows(admin, "SELECT kept, skipped FROM sql_trace_kept_info()")[0]
        return after[0] - before[0], after[1] - before[1]

    # a session counts when its client has the answer already
    with contextlib.suppress(TimeoutError):
        eventually(lambda: sum(counted()) == errors * sessions)
    assert counted() == (5, errors * sessions - 5)
    assert len(kept(admin)) == 5


def test_a_pooler_that_changes_the_name(recording: Recording, admin: Connection) -> None:
    """A kept trace is that of the application whose request it was."""
    with client(recording, keep_sqlstates="22012") as pooled:
        pooled.execute("SELECT 'of the shop'")
        pooled.execute("SET application_name = 'office'")
        fail(pooled)
        pooled.execute("SET application_name = 'shop'")
        pooled.execute("SELECT 'of the shop again'")
        fail(pooled)
    eventually(lambda: [name for _, _, name in kept(admin)] == ["office", "shop"])


def test_the_ring_of_a_session_is_kept_while_it_writes(
    recording: Recording, admin: Connection
) -> None:
    """It holds up another, and does not wait: its trace is whole up to some moment."""
    stop, done = threading.Event(), 0
    with client(recording) as busy, client(recording, keep_lock_wait=50) as waiting:

        def work() -> None:
            nonlocal done
            busy.execute("SELECT pg_advisory_lock(7)")
            while not stop.is_set():
                busy.execute("SELECT 'busy', %s::int", (1,), prepare=True)
                done += 1
            busy.execute("SELECT pg_advisory_unlock(7)")

        worker = threading.Thread(target=work)
        worker.start()
        eventually(lambda: done > 50)
        waiter = threading.Thread(target=waiting.execute, args=("SELECT pg_advisory_lock(7)",))
        try:
            waiter.start()
            eventually(lambda: [k for k in kept(admin) if k[0] == "blocker"])
        finally:
            stop.set()
            worker.join()
            waiter.join()
        eventually(lambda: [k for k in kept(admin) if k[0] == "lock_wait"])
        query = "SELECT file FROM sql_trace_kept() WHERE cause = 'blocker'"
        name = eventually(lambda: one(admin, query))
        files(recording)
        book = ledger(load(recording.directory / name))
        found = moment(book)
        assert found is not None
        # None: the request had begun, and its statement had not
        assert found.statement == "SELECT ?, $1::int" or (found.statement is None and found.goes_on)
        assert len(book.calls) > 50
        (busy_one,) = [p for p in book.processes if p.leader_pid is None]
        # what it overwrote while it was read is missing at the beginning alone
        first = int(busy_one.calls["start"].min())
        assert not (busy_one.missing[:, 1] > first + 10**7).any()


def test_no_memory_for_copies(recording: Recording, admin: Connection) -> None:
    """Of what is shared: copies are refused and counted; sessions go on, the recorder as well."""
    refused = "SELECT refused FROM sql_trace_kept_info()"
    before = one(admin, refused)
    # what the server has reserved is there all the same, so it is used up as well
    room = 64 * MEBIBYTE - recording.volume.used
    with client(recording, keep_sqlstates="22012") as hit:
        for i in range(3000):
            hit.execute("SELECT %s::int", (i,), prepare=True)
        with recording.volume.filled(room - 64 * 1024):
            for _ in range(9):
                fail(hit)
            there = len(kept(admin))
            hit.execute("SELECT 'it goes on'")
        assert one(admin, refused) - before + there == 9
        assert one(admin, refused) > before
        fail(hit)
        # the owner copies once its answer is on the way
        eventually(lambda: len(kept(admin)) == there + 1)
        listed = "SELECT count(*) FROM pg_stat_sql_trace WHERE pid = %s AND reason = 'recorder'"
        assert one(admin, listed, hit.info.backend_pid) == 1


def test_a_crash_leaves_what_is_in_files(recording: Recording, admin: Connection) -> None:
    with client(recording, keep_sqlstates="22012") as hit:
        fail(hit)
        name = eventually(lambda: one(admin, "SELECT max(file) FROM sql_trace_kept()"))
        pid = hit.info.backend_pid
        crash(recording.cluster, pid)
    assert load(recording.directory / name).recording["kept"]["pid"] == pid
    files(recording)
    with session(recording.cluster) as again, client(recording, keep_sqlstates="22012") as hit:
        assert kept(again) == []
        fail(hit)
        eventually(lambda: one(again, "SELECT max(file) FROM sql_trace_kept()"))
        assert one(again, "SELECT max(id) FROM sql_trace_kept()") == 1
