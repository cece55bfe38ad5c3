"""Processes come and go: totals, slots, crashes, commands of the archiver."""

import contextlib
import os
import signal
import time

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.loads import during
from tests.servers import crash, serving
from tests.sessions import Connection, eventually, executed_s, one, rows, session
from tests.waits import waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

SLEPT = (
    "SELECT coalesce(sum(waits), 0)::int FROM pg_stat_wait_event_timing_system "
    "WHERE wait_event = 'PgSleep'"
)


@pytest.mark.parametrize("terminated", [False, True])
def test_totals_survive_the_session(timed: Cluster, observer: Connection, terminated: bool) -> None:
    before = one(observer, SLEPT)
    with session(timed) as ended:
        pid = ended.info.backend_pid
        ended.execute("SELECT pg_sleep(0.01)")
        if terminated:
            assert one(observer, "SELECT pg_terminate_backend(%s, 60000)", pid)
    eventually(lambda: not rows(observer, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))
    assert one(observer, SLEPT) == before + 1
    assert waits(observer, "PgSleep", pid) == (0, 0, 0.0, 0.0)


def test_reused_slot_shows_nothing_of_its_predecessor(timed: Cluster, observer: Connection) -> None:
    for _ in range(5):
        with session(timed) as ended:
            ended.execute("SELECT pg_sleep(0.001)")
            pid = ended.info.backend_pid
        eventually(
            lambda p=pid: not rows(observer, "SELECT FROM pg_stat_activity WHERE pid = %s", p)
        )
        with session(timed) as fresh:
            assert waits(observer, "PgSleep", fresh.info.backend_pid)[0] == 0


def test_seventy_sessions_come_and_go(timed: Cluster, observer: Connection) -> None:
    before = one(observer, SLEPT)
    ended = one(observer, "SELECT processes_ended FROM wait_event_timing_info()")
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(psycopg.connect(timed.dsn(), autocommit=True)) for _ in range(70)
        ]
        for connection in connections:
            connection.execute("SELECT pg_sleep(0)").fetchall()
            connection.execute("SELECT pg_sleep(0.001)")
        pids = [connection.info.backend_pid for connection in connections]
        assert all(waits(observer, "PgSleep", pid)[0] >= 1 for pid in pids)
    eventually(
        lambda: one(observer, "SELECT processes_ended FROM wait_event_timing_info()") >= ended + 70
    )
    assert one(observer, SLEPT) >= before + 70
    info = rows(observer, "SELECT overflows, negative_clock, missed FROM wait_event_timing_info()")
    assert info == [(0, 0, 0)]


def test_crash_restart_and_a_new_extension(binaries: Binaries) -> None:
    with serving(binaries) as cluster:
        with session(cluster) as victim:
            crash(cluster, victim.info.backend_pid)
        with session(cluster) as after:
            after.execute("SELECT pg_sleep(0.01)")
            assert one(after, SLEPT) == 1
            assert one(after, "SELECT slots_intact = slots_installed FROM wait_event_timing_info()")
            kinds = "SELECT backend_type FROM wait_event_timing_sessions()"
            eventually(lambda: {"checkpointer", "walwriter"} <= {k for (k,) in rows(after, kinds)})
        assert cluster.running
        cluster.restart()
        with session(cluster) as after:
            assert one(after, SLEPT) == 0
            if binaries.origin == "wheel":
                after.execute("DROP EXTENSION wait_event_timing")
            after.execute("SELECT pg_sleep(0.01)")
            if binaries.origin == "wheel":  # it has captured meanwhile
                after.execute("CREATE EXTENSION wait_event_timing")
            assert one(after, SLEPT) == 1


def test_syslogger_is_unharmed(binaries: Binaries) -> None:
    """It has no PGPROC, and lets go of shared memory."""
    with serving(binaries, {"logging_collector": True, "log_statement": "all"}) as cluster:
        logs = cluster.data_directory / "log"
        with session(cluster) as connection:
            for i in range(50):
                connection.execute(f"SELECT 'line {i}'".encode())
        eventually(lambda: any("line 49" in path.read_text() for path in logs.iterdir()))
        assert cluster.running


def test_archive_command_is_timed(binaries: Binaries) -> None:
    with (
        serving(binaries, {"archive_mode": True, "archive_command": "sleep 0.2; true"}) as cluster,
        session(cluster) as connection,
    ):
        began = time.monotonic()
        connection.execute("CREATE TABLE t (i int); SELECT pg_switch_wal()")
        query = (
            "SELECT waits, total_time, max_time FROM pg_stat_wait_event_timing "
            "WHERE wait_event = 'ArchiveCommand' AND backend_type = 'archiver'"
        )
        count, total, longest = eventually(lambda: rows(connection, query))[0]
        assert total >= 200 * count
        assert longest <= 1000 * (time.monotonic() - began)


def test_storm_of_signals(watched: Connection, observer: Connection) -> None:
    """Signals cut the wait into pieces; the time is there in full."""
    pid = watched.info.backend_pid
    took_s = []
    with during(lambda: took_s.append(executed_s(watched, "SELECT pg_sleep(1)"))) as sleeper:
        while sleeper.is_alive():
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.001)
    count, calls, total, _ = waits(observer, "PgSleep", pid)
    assert calls >= count > 5  # a signal may have to wait for a processor, too
    # between two pieces the session may have been without a processor
    assert 0.5 * 1000 <= total <= 1000 * took_s[0] + 10
