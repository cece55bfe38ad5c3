"""Bad luck: recursion without end, full memory, storms of signals, sessions that go while read."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.process_limits import limit_open_files
from tests.servers import SESSIONS_LOAD_MODULES, serving
from tests.sessions import Connection, eventually, one, rows, session
from tests.waits import counting, waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def notices_of(connection: Connection) -> list[str]:
    """Notices and warnings of a session, as they come in."""
    notices: list[str] = []
    connection.add_notice_handler(lambda d: notices.append(str(d.message_primary)))
    return notices


def assert_unharmed(cluster: Cluster) -> None:
    assert cluster.running
    log = cluster.log_path.read_text()
    assert "terminated by signal" not in log
    assert "PANIC" not in log


RECURSIVE = """
CREATE OR REPLACE FUNCTION deeper(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(0);
    RETURN deeper(n + 1);
END $$
"""
CAUGHT = """
DO $$
BEGIN
    PERFORM deeper(1);
EXCEPTION WHEN statement_too_complex THEN
    PERFORM pg_sleep(0.01);
END $$
"""


def test_recursion_until_the_stack_is_full(watched: Connection, observer: Connection) -> None:
    """The error passes through all our hooks, and the nesting depth finds back to 0."""
    watched.execute("SET wait_event_timing.trace_ring_records = 16384")
    watched.execute("SET wait_event_timing.capture = trace")
    watched.execute("SET max_stack_depth = '1MB'")
    watched.execute(RECURSIVE)
    for _ in range(3):
        with pytest.raises(psycopg.errors.StatementTooComplex):
            watched.execute("SELECT deeper(1)")
        watched.execute(CAUGHT)
    watched.execute("SELECT pg_sleep(0.01)")
    pid = watched.info.backend_pid
    query = "SELECT kind, depth FROM wait_event_trace(%s) WHERE kind <> 'wait' ORDER BY number"
    marks = rows(observer, query, pid)
    deepest = max(depth for _, depth in marks if depth is not None)
    assert deepest > 50
    ends = [depth for kind, depth in marks if kind == "statement end"]
    assert ends[-1] == 0
    begins = [depth for kind, depth in marks if kind == "statement begin"]
    assert begins[-1] == 0
    assert waits(observer, "PgSleep", pid)[0] >= 4


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGURG], ids=["SIGUSR1", "SIGURG"])
def test_storm_of_signals_within_a_lock_wait(
    timed: Cluster, watched: Connection, observer: Connection, number: signal.Signals
) -> None:
    """As fast as they can be sent. The lock is waited for once, and as long as it was held."""
    pid = watched.info.backend_pid
    with session(timed) as holder:
        holder.execute("SELECT pg_advisory_lock(4711)")
        waiter = threading.Thread(
            target=watched.execute, args=("SELECT pg_advisory_xact_lock(4711)",)
        )
        asked = time.monotonic()
        waiter.start()
        eventually(
            lambda: rows(observer, "SELECT FROM pg_locks WHERE NOT granted AND pid = %s", pid)
        )
        began = time.monotonic()
        sent, until = 0, began + 0.5
        while time.monotonic() < until or sent <= 10_000:
            os.kill(pid, number)
            sent += 1
        held_s = time.monotonic() - began
        holder.execute("SELECT pg_advisory_unlock(4711)")
        waiter.join()
        took_s = time.monotonic() - asked
    count, calls, total, _ = waits(observer, "advisory", pid)
    assert count == 1
    assert calls > 10
    # between two calls the session may have been without a processor
    assert 0.3 * 1000 * held_s < total <= 1000 * took_s + 10
    assert one(observer, "SELECT negative_clock + missed FROM wait_event_timing_info()") == 0
    assert_unharmed(timed)


def test_sessions_end_while_they_are_read(timed: Cluster, observer: Connection) -> None:
    """Readers of every view never fail, and never see a row of nobody."""
    stopped = threading.Event()
    failures: list[Exception] = []

    def come_and_go() -> None:
        try:
            while not stopped.is_set():
                with session(timed) as short:
                    short.execute("SET wait_event_timing.trace_ring_records = 1024")
                    short.execute("SET wait_event_timing.capture = trace")
                    short.execute("SELECT pg_sleep(0)")
        except Exception as ex:
            failures.append(ex)

    notices = notices_of(observer)
    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    traces = reads = 0
    until = time.monotonic() + 1.5
    # a busy machine gives it less than is wanted in that time
    while time.monotonic() < until or (not traces > reads > 3 and time.monotonic() < until + 20):
        reads += 1
        for _, event, count, calls, total, longest in rows(
            observer,
            "SELECT pid, wait_event, waits, calls, total_time, max_time "
            "FROM pg_stat_wait_event_timing",
        ):
            assert event
            assert calls >= count > 0
            assert total >= longest >= 0
        rows(observer, "SELECT * FROM pg_stat_wait_event_timing_current")
        rows(observer, "SELECT * FROM wait_event_timing_sessions()")
        for (pid,) in rows(observer, "SELECT pid FROM wait_event_timing_rings()"):
            with contextlib.suppress(psycopg.errors.UndefinedObject):
                traces += bool(rows(observer, "SELECT * FROM wait_event_trace(%s)", pid))
    stopped.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert not notices
    assert traces > reads > 3
    assert_unharmed(timed)


def test_many_traced_sessions_end_at_once(timed: Cluster, observer: Connection) -> None:
    """However many there were, the rings of eight are kept."""
    kept = "SELECT count(*) FROM wait_event_timing_rings() WHERE ended IS NOT NULL"
    live = "SELECT count(*) FROM wait_event_timing_rings() WHERE ended IS NULL AND pid IN ({})"
    pids = []  # others, such as background processes, have rings as well
    with contextlib.ExitStack() as stack:
        for _ in range(14):
            traced = stack.enter_context(session(timed))
            traced.execute("SET wait_event_timing.trace_ring_records = 1024")
            traced.execute("SET wait_event_timing.capture = trace")
            pids.append(str(traced.info.backend_pid))
        live = live.format(", ".join(pids))
        assert one(observer, live) == 14
    eventually(lambda: one(observer, live) == 0)
    assert one(observer, kept) == 8


def test_no_file_left_for_a_ring(timed: Cluster) -> None:
    """A process that may open no more files is not traced, says so once, and goes on."""
    with session(timed) as connection:
        notices = notices_of(connection)
        pid = connection.info.backend_pid
        connection.execute("SELECT pg_sleep(0)")
        # all descriptors: psutil lists regular files only
        open_files = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
        least = next(n for n in range(len(open_files) + 1) if n not in open_files)
        limit_open_files(timed, pid, least)
        connection.execute("SET wait_event_timing.capture = trace")
        connection.execute("SELECT pg_sleep(0.01)")
        assert len(notices) == 1
        assert "cannot trace this process" in notices[0]
        assert "Too many open files" in notices[0]
        assert waits(connection, "PgSleep", pid)[0] >= 1
    assert_unharmed(timed)


@contextlib.contextmanager
def small_memory(cluster: Cluster, size: str) -> Iterator[Path]:
    """Dynamic shared memory on a file system of that size."""
    place = cluster.data_directory / "pg_dynshmem"
    cluster.stop()
    owner = place.stat()
    options = f"size={size},uid={owner.st_uid},gid={owner.st_gid},mode=0700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "pgtare-test", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    try:
        cluster.start()
        yield place
    finally:
        cluster.stop()
        subprocess.run(["umount", place], check=True)


def test_full_disk_under_rings(binaries: Binaries, as_root: None) -> None:
    """Sessions find room for their rings, and what others have is left to them; all are counted."""
    settings = {
        "dynamic_shared_memory_type": "mmap",
        "wait_event_timing.trace_ring_records": 4096,  # 128 kB
        "wait_event_timing.trace_memory": "6MB",
    }
    with serving(binaries, settings) as cluster, small_memory(cluster, "6m") as place:
        with (place / "filler").open("wb") as file:
            free = os.fstatvfs(file.fileno())
            leave = (3 << 20) + (300 << 10)  # half of it is not for rings
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(session(cluster)) for _ in range(4)]
            warnings = []
            for connection in sessions:
                notices = notices_of(connection)
                connection.execute("SET wait_event_timing.capture = trace")
                connection.execute("SELECT pg_sleep(0.01)")
                assert waits(connection, "PgSleep", connection.info.backend_pid)[0] == 1
                warnings += notices
            assert 1 <= len(warnings) < 4
            assert all("of dynamic shared memory only" in text for text in warnings)
            traced = one(sessions[0], "SELECT count(*) FROM wait_event_timing_rings()")
            assert traced == 4 - len(warnings)
        assert_unharmed(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 64], ids=["small", "full"])
@SESSIONS_LOAD_MODULES
def test_full_disk_under_a_session_preload(wheel: Binaries, as_root: None, size: int) -> None:
    """On a small volume, or one that others have filled, sessions get in with one warning, and are
    served once there is room again."""
    module = loadable(wheel, "wait_event_timing")
    settings = {"dynamic_shared_memory_type": "mmap", "wait_event_timing.capture": "stats"}
    settings["session_preload_libraries"] = module.library
    with Cluster(wheel, settings) as cluster, small_memory(cluster, f"{size}m") as place:
        filler = place / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (size - 4) << 20)
        for _ in range(3):
            before = len(cluster.log_path.read_text())
            with session(cluster) as connection:
                assert one(connection, "SELECT 1") == 1
                connection.execute("SELECT pg_sleep(0.001)")
                # its workers go on without the module as well, and without a word
                connection.execute("SET debug_parallel_query = on")
                assert one(connection, "SELECT count(*) > 0 FROM pg_class")
            said = [
                line
                for line in cluster.log_path.read_text()[before:].splitlines()
                if "WARNING" in line
            ]
            assert len(said) == 1
            assert "wait_event_timing is not usable in this session" in said[0]
        subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        filler.unlink()
        with session(cluster) as connection:
            connection.execute(module.create_sql.encode())
            connection.execute("SELECT pg_sleep(0.001)")
            assert waits(connection, "PgSleep", connection.info.backend_pid)[0] == 1
        assert_unharmed(cluster)


@pytest.mark.slow
def test_reset_waits_for_no_stopped_process(watched: Connection, observer: Connection) -> None:
    """One that is stopped while it counts holds a part of the table of statements."""
    notices = notices_of(observer)
    observer.execute("SET statement_timeout = '10s'")
    watched.execute("SET wait_event_timing.capture = stats")
    with counting(watched, observer) as pid:
        for _ in range(200):
            time.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)
            try:
                assert one(observer, "SELECT wait_event_timing_reset()")
            finally:
                os.kill(pid, signal.SIGCONT)
            if notices:
                break
        assert "of the table of statements were not reset" in notices[0]
        observer.execute("SET statement_timeout = 0")


def test_commands_of_recovery_are_timed(binaries: Binaries) -> None:
    settings = {
        "restore_command": "sleep 0.1; false",
        "recovery_end_command": "sleep 0.2",
        "archive_cleanup_command": "true",
    }
    with serving(binaries, settings) as cluster:
        cluster.stop()
        signal_file = cluster.data_directory / "recovery.signal"
        signal_file.touch()
        owner = cluster.data_directory.stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        began = time.monotonic()
        cluster.start()
        with session(cluster) as connection:
            eventually(lambda: not one(connection, "SELECT pg_is_in_recovery()"))
            took_s = time.monotonic() - began
            found = {
                event: (count, total)
                for event, count, total in rows(
                    connection,
                    "SELECT wait_event, waits, total_time FROM pg_stat_wait_event_timing_system "
                    "WHERE backend_type = 'startup'",
                )
            }
        count, total = found["RestoreCommand"]
        assert count >= 2
        assert 100 * count <= total <= 1000 * took_s
        assert found["RecoveryEndCommand"][0] == 1
        assert found["RecoveryEndCommand"][1] >= 200
        assert_unharmed(cluster)


@pytest.mark.slow
def test_five_hundred_sessions(binaries: Binaries) -> None:
    """All are traced and counted, and nobody gets a message."""
    settings = {
        "max_connections": 520,
        "wait_event_timing.capture": "trace",
        "wait_event_timing.trace_ring_records": 1024,
    }
    with serving(binaries, settings) as cluster, contextlib.ExitStack() as stack:
        observer = stack.enter_context(session(cluster))
        ended = one(observer, "SELECT processes_ended FROM wait_event_timing_info()")
        with contextlib.ExitStack() as crowd:
            connections = [crowd.enter_context(session(cluster)) for _ in range(500)]
            notices = [notices_of(connection) for connection in connections]
            for connection in connections:
                connection.execute("SELECT pg_sleep(0.001)")
            counted = (
                "SELECT count(*) FROM pg_stat_wait_event_timing "
                "WHERE wait_event = 'PgSleep' AND waits = 1"
            )
            assert one(observer, counted) == 500
            rings = one(
                observer, "SELECT count(*) FROM wait_event_timing_rings() WHERE ended IS NULL"
            )
            assert rings >= 500
            assert not any(notices)
        eventually(
            lambda: (
                one(observer, "SELECT processes_ended FROM wait_event_timing_info()") >= ended + 500
            )
        )
        query = (
            "SELECT sum(waits) FROM pg_stat_wait_event_timing_system WHERE wait_event = 'PgSleep'"
        )
        assert one(observer, query) == 500
        info = rows(
            observer, "SELECT overflows, negative_clock, missed FROM wait_event_timing_info()"
        )
        assert info == [(0, 0, 0)]
        assert_unharmed(cluster)
