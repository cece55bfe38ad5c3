"""Traces of processes without a client, and capture that reaches parallel workers."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.process_limits import limit_files
from tests.servers import serving
from tests.sessions import Connection, eventually, one, rows, session, set_search_path
from tests.waits import sync_reads

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

PARALLEL = (
    "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;"
    "SET parallel_tuple_cost = 0; SET parallel_leader_participation = off;"
    "SET max_parallel_workers_per_gather = 2"
)
RINGS = "SELECT DISTINCT backend_type FROM wait_event_timing_rings()"


def test_trace_on_for_all_processes(binaries: Binaries) -> None:
    settings = {
        "wait_event_timing.capture": "trace",
        "wait_event_timing.trace_ring_records": 4096,
        "autovacuum_naptime": "1s",
        "autovacuum_vacuum_threshold": 1,
        "autovacuum_analyze_threshold": 1,
        "max_wal_senders": 2,
    }
    with serving(binaries, settings) as cluster, session(cluster) as connection:
        target = cluster.directory / "received"
        target.mkdir()
        target.chmod(0o777)
        receiver = subprocess.Popen(
            [binaries.program("pg_receivewal"), "-d", cluster.dsn(), "-D", target],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **cluster.run_as,
        )
        try:
            connection.execute("CREATE TABLE t AS SELECT generate_series(1, 50000) AS i")
            connection.execute(PARALLEL)
            connection.execute("SELECT count(*) FROM t; CHECKPOINT; UPDATE t SET i = 0 WHERE i < 9")
            wanted = {
                "client backend",
                "parallel worker",
                "walsender",
                "checkpointer",
                "walwriter",
                "background writer",
                "autovacuum launcher",
                "autovacuum worker",
                "logical replication launcher",
            }
            if binaries.major >= 18:
                wanted.add("io worker")
            eventually(lambda: wanted <= {kind for (kind,) in rows(connection, RINGS)}, 60)
        finally:
            receiver.terminate()
            receiver.wait()
        # each holds what its process waited for
        seen = dict(
            rows(
                connection,
                "SELECT backend_type, array_agg(DISTINCT wait_event::text) "
                "FILTER (WHERE wait_event IS NOT NULL) "  # markers have none
                "FROM wait_event_timing_rings() r, wait_event_trace(r.pid) "
                "WHERE backend_type IN ('walsender', 'checkpointer', 'walwriter') GROUP BY 1",
            )
        )
        assert any(event.lower() == "walsendermain" for event in seen["walsender"])
        assert "CheckpointerMain" in seen["checkpointer"]
        assert any(event.lower() == "walwritermain" for event in seen["walwriter"])
        ended = (
            "SELECT count(*) FILTER (WHERE leader_pid > 0),"
            " count(*) FILTER (WHERE leader_pid IS NULL) "
            "FROM wait_event_timing_rings() WHERE ended IS NOT NULL"
        )
        for _ in range(6):
            connection.execute("SELECT count(*) FROM t")
        eventually(lambda: rows(connection, ended)[0][0] == 8)
        assert rows(connection, ended)[0][1] <= 8
        cluster.restart()
        assert "terminated by signal" not in cluster.log_path.read_text()
        with session(cluster) as after:
            eventually(lambda: "walwriter" in {kind for (kind,) in rows(after, RINGS)})


def test_another_session_traces_a_background_process(timed: Cluster, observer: Connection) -> None:
    ring = "SELECT 1 FROM wait_event_timing_rings() WHERE pid = %s"
    kinds = ["checkpointer", "walwriter", "background writer", "autovacuum launcher"]
    if timed.binaries.major >= 18:
        kinds.append("io worker")
    for kind in kinds:
        pid = one(
            observer,
            "SELECT min(pid) FROM wait_event_timing_sessions() WHERE backend_type = %s",
            kind,
        )
        assert one(observer, "SELECT wait_event_timing_set(%s, 'trace')", pid)
        # an idle process is woken: by themselves, most wake after a minute or later
        eventually(lambda p=pid: rows(observer, ring, p), 30)  # type: ignore[misc]
        observer.execute("SELECT wait_event_timing_set(%s, 'stats')", (pid,))


@pytest.fixture(scope="module")
def scanned(wheel: Binaries) -> Iterator[Cluster]:
    """A server that captures nothing, reads synchronously, and has a table to scan in parallel."""
    settings = {
        "wait_event_timing.capture": "off",
        "wait_event_timing.trace_ring_records": 4096,
        **sync_reads(wheel),
    }
    with serving(wheel, settings) as cluster:
        with session(cluster) as connection:
            connection.execute("CREATE TABLE t AS SELECT generate_series(1, 200000) AS i")
        yield cluster


WORKERS_READ = (
    "SELECT coalesce(sum(waits), 0)::int FROM pg_stat_wait_event_timing_system "
    "WHERE backend_type = 'parallel worker' AND wait_event = 'DataFileRead'"
)
WORKERS = "SELECT FROM pg_stat_activity WHERE backend_type = 'parallel worker'"


def test_level_set_by_another_session_reaches_workers(scanned: Cluster) -> None:
    with session(scanned) as watched, session(scanned) as observer:
        pid = watched.info.backend_pid
        watched.execute(PARALLEL)
        watched.execute("SELECT count(*) FROM t")
        assert one(observer, WORKERS_READ) == 0
        observer.execute("SELECT wait_event_timing_set(%s, 'stats')", (pid,))
        watched.execute("SELECT count(*) FROM t")
        eventually(lambda: one(observer, WORKERS_READ) > 100)
        eventually(lambda: not rows(observer, WORKERS))  # they have counted all
        observer.execute("SELECT wait_event_timing_set(%s, 'off')", (pid,))
        before = one(observer, WORKERS_READ)
        watched.execute("SELECT count(*) FROM t")
        assert one(observer, WORKERS_READ) == before
        # and so does that which the session sets itself
        observer.execute("SELECT wait_event_timing_set(%s, NULL)", (pid,))
        watched.execute("SET wait_event_timing.capture = stats")
        watched.execute("SELECT count(*) FROM t")
        eventually(lambda: one(observer, WORKERS_READ) > before + 10)


def test_level_reaches_workers_that_run(scanned: Cluster) -> None:
    slept = (
        "SELECT 1 FROM pg_stat_wait_event_timing WHERE backend_type = 'parallel worker' "
        "AND wait_event = 'PgSleep' AND waits >= 3"
    )
    with session(scanned) as watched, session(scanned) as observer:
        pid = watched.info.backend_pid
        watched.execute(PARALLEL)
        # enough for a minute: whoever looks may come late
        watched.execute("CREATE TABLE few AS SELECT generate_series(1, 6000) AS i")

        def work() -> None:
            with pytest.raises(psycopg.errors.QueryCanceled):
                watched.execute("SELECT count(pg_sleep(0.02)) FROM few")

        busy = threading.Thread(target=work)
        busy.start()
        workers = "SELECT 1 FROM pg_stat_activity WHERE leader_pid = %s"
        eventually(lambda: rows(observer, workers, pid))
        assert not rows(observer, slept)
        observer.execute("SELECT wait_event_timing_set(%s, 'stats')", (pid,))
        assert eventually(lambda: rows(observer, slept))
        observer.execute("SELECT pg_cancel_backend(%s)", (pid,))
        busy.join()


def test_workers_of_a_traced_session_leave_traces(scanned: Cluster) -> None:
    with session(scanned) as watched, session(scanned) as observer:
        watched.execute(PARALLEL)
        observer.execute("SELECT wait_event_timing_set(%s, 'trace')", (watched.info.backend_pid,))
        sql = "SELECT count(*), 'traced' FROM t"
        query_id = one(watched, f"EXPLAIN (VERBOSE, FORMAT json) {sql}")[0]["Query Identifier"]
        watched.execute(sql.encode())
        query = (
            "SELECT wait_event FROM wait_event_timing_rings() r, wait_event_trace(r.pid) w "
            "WHERE leader_pid IS NOT NULL AND ended IS NOT NULL AND wait_event = "
            "'DataFileRead' AND EXISTS (SELECT FROM wait_event_trace(r.pid) WHERE queryid = %s)"
        )
        assert len(eventually(lambda: rows(observer, query, query_id))) > 100


def test_no_memory_for_background_traces_is_reported_once(wheel: Binaries) -> None:
    """Rings of 2 TB for everybody: none is had, the log says so once, and waits are counted."""
    settings = {
        "wait_event_timing.capture": "trace",
        "wait_event_timing.trace_ring_records": 1 << 24,
        "max_connections": 20,
    }
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            serving(wheel, {**settings, "wait_event_timing.capture": "stats"})
        )
        connection = set_search_path(stack.enter_context(session(cluster)))
        pids = [
            pid
            for (pid,) in rows(
                connection,
                "SELECT pid FROM wait_event_timing_sessions() "
                "WHERE backend_type IN ('walwriter', 'checkpointer', 'background writer')",
            )
        ]
        for pid in pids:
            limit_files(cluster, pid, 256)
            connection.execute("SELECT wait_event_timing_set(%s, 'trace')", (pid,))
        refused = "SELECT traces_refused FROM wait_event_timing_info()"
        eventually(lambda: one(connection, refused) == len(pids) == 3)
        log = cluster.log_path.read_text()
        assert log.count("wait_event_timing cannot trace this process") == 1
        assert rows(connection, "SELECT * FROM wait_event_timing_rings()") == []
        woken = (
            "SELECT waits FROM pg_stat_wait_event_timing "
            "WHERE backend_type = 'walwriter' AND wait_event = 'WalWriterMain'"
        )
        before = one(connection, woken)
        eventually(lambda: one(connection, woken) > before)
