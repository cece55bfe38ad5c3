"""What is counted and timed: each claim on PostgreSQL 18 (bound lazily) and 15 (bound at once)."""

import contextlib
import shutil
import subprocess
import threading
import time
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import words
from tests.loads import during
from tests.servers import serving
from tests.sessions import (
    Connection,
    eventually,
    executed_s,
    one,
    rows,
    session,
    until_it_waits,
)
from tests.waits import CLASS_SETTINGS, see_every_class, waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def pid_of(connection: Connection) -> int:
    return connection.info.backend_pid


def test_sleep_of_known_length_is_timed(watched: Connection, observer: Connection) -> None:
    """More than once: lazy binding would overwrite a slot when its function is first called."""
    took_s = executed_s(watched, "SELECT pg_sleep(0.2)")
    count, _, total, longest = waits(observer, "PgSleep", pid_of(watched))
    assert count == 1
    assert 200 <= total <= 1000 * took_s + 10
    assert longest == total
    for _ in range(4):
        watched.execute("SELECT pg_sleep(0.001)")
    assert waits(observer, "PgSleep", pid_of(watched))[0] == 5
    assert one(watched, "SELECT slots_intact = slots_installed FROM wait_event_timing_info()")


def test_every_process_with_a_pgproc_is_watched(observer: Connection) -> None:
    unseen = (
        "SELECT backend_type FROM pg_stat_activity WHERE pid NOT IN "
        "(SELECT pid FROM wait_event_timing_sessions())"
    )
    eventually(lambda: not rows(observer, unseen))


def test_background_processes_record(timed: Cluster, observer: Connection) -> None:
    observer.execute("CHECKPOINT")
    wanted = {"checkpointer", "background writer", "walwriter", "client backend"}
    # tests of other files share the server, and may have reset what an ended process left
    if one(observer, "SELECT stats_reset = memory_since FROM wait_event_timing_info()"):
        wanted.add("startup")
    if timed.binaries.major >= 18:
        wanted.add("io worker")
        observer.execute("CREATE TABLE IF NOT EXISTS scanned AS SELECT generate_series(1, 300000)")
        observer.execute("SELECT count(*) FROM scanned")
    query = "SELECT DISTINCT backend_type FROM pg_stat_wait_event_timing_system"
    eventually(lambda: wanted <= {name for (name,) in rows(observer, query)})


def test_lock_wait_is_one_wait_although_woken(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    """deadlock_timeout wakes the process in the midst; the lock is waited for once."""
    observer.execute("CREATE TABLE IF NOT EXISTS locked (i int)")
    with session(timed) as holder:
        holder.execute("BEGIN; LOCK TABLE locked")
        blocked = threading.Thread(target=watched.execute, args=("LOCK TABLE locked",))
        watched.execute("BEGIN")
        asked = time.monotonic()
        blocked.start()
        in_wait = (
            "SELECT 1 FROM pg_stat_wait_event_timing_current "
            "WHERE pid = %s AND wait_event = 'relation'"
        )
        eventually(lambda: rows(observer, in_wait, pid_of(watched)))
        began = time.monotonic()
        time.sleep(0.3)
        held = (time.monotonic() - began) * 1000
        holder.execute("COMMIT")
        blocked.join()
        took = (time.monotonic() - asked) * 1000
        watched.execute("COMMIT")
    count, calls, total, longest = waits(observer, "relation", pid_of(watched))
    assert count == 1
    assert calls > 1
    assert held <= total <= took + 10
    assert longest == total


def test_successive_lock_waits_are_distinguished(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    observer.execute("CREATE TABLE IF NOT EXISTS locked (i int)")
    for _ in range(3):
        with session(timed) as holder:
            holder.execute("BEGIN; LOCK TABLE locked")
            with during(lambda: watched.execute("SELECT FROM locked")):
                until_it_waits(observer, watched, "Lock")
                time.sleep(0.1)
                holder.execute("COMMIT")
    count, _, total, _ = waits(observer, "relation", pid_of(watched))
    assert count == 3
    assert total > 200


def test_lock_waits_given_up_are_distinguished(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    """The signal that ends one of them in the midst of a call does not join it to the next."""
    pid = pid_of(watched)
    observer.execute("CREATE TABLE IF NOT EXISTS locked (i int)")
    lock_six_times = (
        "DO $$BEGIN FOR i IN 1..6 LOOP BEGIN LOCK TABLE locked; "
        "EXCEPTION WHEN lock_not_available THEN END; END LOOP; END$$"
    )
    watched.execute("SET lock_timeout = '20ms'")
    watched.execute(lock_six_times)  # the catalogue is read now
    watched.execute("SELECT wait_event_timing_benchmark(1000)")
    before = waits(observer, "DataFileRead", pid)
    with session(timed) as holder:
        holder.execute("BEGIN; LOCK TABLE locked")
        watched.execute(lock_six_times)
        holder.execute("COMMIT")
    count, _, total, longest = waits(observer, "relation", pid)
    assert count == 6
    # each of the others as well: one of them may be long where others want the processors
    assert total - longest > 5 * 15
    # none of those before them, which the benchmark announced, is counted again
    assert waits(observer, "DataFileRead", pid) == before


def test_blocker_of_a_lock_wait_is_named(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    with session(timed) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        blocked = threading.Thread(
            target=watched.execute, args=("SELECT pg_advisory_xact_lock(7)",)
        )
        blocked.start()
        found = eventually(
            lambda: rows(
                observer,
                "SELECT wait_time, blocking_pids, idle FROM pg_stat_wait_event_timing_current "
                "WHERE pid = %s AND wait_event = 'advisory' AND wait_time > 1",
                pid_of(watched),
            )
        )
        holder.execute("SELECT pg_advisory_unlock(7)")
        blocked.join()
        assert found[0][1:] == ([pid_of(holder)], False)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to delay a system call")
def test_slow_fsync_is_timed(watched: Connection, observer: Connection, as_root: None) -> None:
    """The kernel answers 50 ms late; the wait for WAL to be on disk shows just that."""
    watched.execute("CREATE TEMP TABLE nothing (i int)")
    pid = pid_of(watched)
    event = one(
        observer,
        "SELECT CASE WHEN current_setting('server_version_num')::int >= 170000 "
        "THEN 'WalSync' ELSE 'WALSync' END",
    )
    before = waits(observer, event, pid)
    tracer = subprocess.Popen(
        words(
            "strace -q -o /dev/null -p {} -e trace=fdatasync -e inject=fdatasync:delay_enter=50000",
            pid,
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        status = Path(f"/proc/{pid}/status")
        eventually(lambda: "TracerPid:\t0\n" not in status.read_text() or tracer.poll())
        if tracer.poll() is not None:
            pytest.skip(f"strace cannot attach: {tracer.stderr and tracer.stderr.read()}")
        began = time.monotonic()
        for _ in range(4):
            watched.execute("SELECT pg_current_xact_id()")
            watched.execute("CREATE TABLE gone (i int)")
            watched.execute("DROP TABLE gone")
        took_s = time.monotonic() - began
    finally:
        tracer.terminate()
        tracer.wait()
    count, _, total, _ = waits(observer, event, pid)
    syncs = count - before[0]
    assert syncs >= 8
    assert 50 * syncs <= total - before[2] <= 1000 * took_s + 10


@pytest.mark.since(18, "a session's reads are counted by the server")
def test_reads_agree_with_what_the_server_counts(wheel: Binaries) -> None:
    """With synchronous reads each one is one wait in the process that wants the page."""
    with serving(wheel, {"io_method": "sync"}) as cluster, session(cluster) as load:
        load.execute(
            "CREATE TABLE big AS SELECT i, repeat('x', 200) FROM generate_series(1,50000) i"
        )
        load.execute("VACUUM ANALYZE big")
        load.execute("CHECKPOINT")
        with session(cluster) as reader, session(cluster) as observer:
            pid = pid_of(reader)

            def reported() -> int:
                reader.execute("SELECT pg_stat_force_next_flush()")
                reader.execute("SELECT 1")
                query = "SELECT sum(reads)::bigint FROM pg_stat_get_backend_io(%s)"
                return int(one(observer, query, pid))

            # the server begins to count only after the session's first reads, and what the
            # question itself reads of the catalogue comes after its count
            reported()
            reported_before = reported()
            count_before = waits(observer, "DataFileRead", pid)[0]
            for _ in range(3):
                reader.execute("SELECT count(*) FROM big")
            seen = reported() - reported_before
            assert waits(observer, "DataFileRead", pid)[0] - count_before == seen
            assert seen > 100


@pytest.mark.debian
def test_reads_agree_with_explain_on_15(waits15: Cluster) -> None:
    with session(waits15) as reader, session(waits15) as observer:
        observer.execute("DROP TABLE IF EXISTS big")
        observer.execute(
            "CREATE TABLE big AS SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i"
        )
        observer.execute("VACUUM ANALYZE big")
        reader.execute("SET max_parallel_workers_per_gather = 0")
        reader.execute("SELECT count(*) FROM big")
        pid = pid_of(reader)
        before = waits(observer, "DataFileRead", pid)[0]
        plan = one(reader, "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT count(*) FROM big")
        blocks = plan[0]["Plan"]["Shared Read Blocks"]
        assert waits(observer, "DataFileRead", pid)[0] - before == blocks
        assert blocks > 100


def test_off_records_nothing(watched: Connection, observer: Connection) -> None:
    watched.execute("SET wait_event_timing.capture = off")
    pid = pid_of(watched)
    query = "SELECT wait_event, waits FROM pg_stat_wait_event_timing WHERE pid = %s"
    before = sorted(rows(observer, query, pid))
    for _ in range(100):
        watched.execute("SELECT pg_sleep(0)")
    watched.execute("SELECT pg_sleep(0.01)")
    assert sorted(rows(observer, query, pid)) == before
    for counted, level in ((1, "stats"), (1, "off")):  # by another session
        assert one(observer, "SELECT wait_event_timing_set(%s, %s)", pid, level)
        watched.execute("SELECT pg_sleep(0.01)")
        assert waits(observer, "PgSleep", pid)[0] == counted


def test_process_stuck_in_a_wait_is_seen_with_all_before(
    watched: Connection, observer: Connection
) -> None:
    """What was waited before a long wait is not held back by it."""
    pid = pid_of(watched)

    def sleep() -> None:
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            watched.execute("SELECT pg_sleep(0.01), pg_sleep(0.01), pg_sleep(100)")

    stuck = threading.Thread(target=sleep)
    stuck.start()
    eventually(lambda: waits(observer, "PgSleep", pid)[0] == 2)
    eventually(
        lambda: rows(
            observer,
            "SELECT 1 FROM pg_stat_wait_event_timing_current "
            "WHERE pid = %s AND wait_event = 'PgSleep' AND wait_time > 100 "
            "AND abs(extract(epoch FROM clock_timestamp() - wait_start) * 1000 - wait_time) < 50",
            pid,
        )
    )
    watched.cancel_safe()
    stuck.join()


def test_cancelled_wait_is_counted(watched: Connection, observer: Connection) -> None:
    pid = pid_of(watched)
    took_s = []

    def cancelled() -> None:
        began = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled):
            watched.execute("SELECT pg_sleep(100)")
        took_s.append(time.monotonic() - began)

    with during(cancelled):
        until_it_waits(observer, watched, "Timeout")
        time.sleep(0.2)
        one(observer, "SELECT pg_cancel_backend(%s)", pid)
    count, _, total, _ = waits(observer, "PgSleep", pid)
    assert count == 1
    assert 150 <= total <= 1000 * took_s[0] + 10
    watched.execute("SET statement_timeout = '500ms'")
    cancelled()
    count, _, both, _ = waits(observer, "PgSleep", pid)
    assert count in (2, 3)  # a latch that is still set ends a wait at once, and it waits again
    # the time begins to run a little before the sleep does
    assert 300 <= both - total <= 1000 * took_s[1] + 10


@pytest.mark.parametrize("clock", ["tsc", "tscp", "monotonic", "monotonic_coarse", "syscall"])
def test_every_clock_times_a_sleep(clock: str, watched: Connection, observer: Connection) -> None:
    watched.execute(f"SET wait_event_timing.clock = {clock}".encode())
    took_s = executed_s(watched, "SELECT pg_sleep(0.1)")
    count, _, total, _ = waits(observer, "PgSleep", pid_of(watched))
    assert count == 1
    assert 90 <= total <= 1000 * took_s + 10  # a coarse clock moves every few ms
    assert one(observer, "SELECT negative_clock FROM wait_event_timing_info()") == 0


def test_histogram_holds_each_wait_in_its_bucket(watched: Connection, observer: Connection) -> None:
    for ms in (1, 1, 20):
        watched.execute(f"SELECT pg_sleep({ms / 1000})".encode())
    found = rows(
        observer,
        "SELECT from_time, to_time, n, max_time FROM pg_stat_wait_event_timing, "
        "unnest(histogram) WITH ORDINALITY h(n, bucket) JOIN wait_event_timing_buckets() b "
        "USING (bucket) WHERE pid = %s AND wait_event = 'PgSleep' AND n > 0 ORDER BY 1",
        pid_of(watched),
    )
    assert sum(n for _, _, n, _ in found) == 3
    assert all(low < high for low, high, _, _ in found)
    low, high, _, longest = found[-1]
    assert low <= longest < high  # and however late a sleeper is woken
    assert high > 20
    # half a microsecond is apart from one, and minutes from each other
    bucket = "SELECT bucket FROM wait_event_timing_buckets() WHERE from_time <= %s AND %s < to_time"
    places = [one(observer, bucket, ms, ms) for ms in (0.0005, 0.001, 30e3, 60e3, 120e3, 240e3)]
    assert len(set(places)) == len(places)
    assert one(observer, "SELECT count(*) FROM wait_event_timing_buckets()") == 32


def test_waits_belong_to_their_statement(watched: Connection, observer: Connection) -> None:
    sql = "SELECT pg_sleep(0.05), 'attributed'"
    plan = one(watched, f"EXPLAIN (VERBOSE, FORMAT json) {sql}")
    query_id = plan[0]["Query Identifier"]

    def waits() -> dict[str, tuple[int, float]]:
        found = rows(
            observer,
            "SELECT wait_event, waits, total_time FROM pg_stat_wait_event_timing_statements "
            "WHERE queryid = %s",
            query_id,
        )
        return {event: (count, total) for event, count, total in found}

    # other tests may have run a statement of the same shape
    before = waits().get("PgSleep", (0, 0.0))
    took_s = sum(executed_s(watched, sql) for _ in range(2))
    after = waits()["PgSleep"]
    assert after[0] - before[0] == 2
    assert 100 <= after[1] - before[1] <= 1000 * took_s + 10
    assert "ClientRead" not in waits()


def test_statement_table_is_bounded_and_counts_evictions(wheel: Binaries) -> None:
    settings = {"wait_event_timing.statements_max": 64}
    with serving(wheel, settings) as cluster, session(cluster) as load:
        for i in range(200):
            load.execute(f"SELECT pg_sleep(0) AS column_{i}".encode())
            load.execute(f"CREATE TABLE t{i} (i int)".encode())
        evicted, missed = rows(
            load, "SELECT statements_evicted, statements_missed FROM wait_event_timing_info()"
        )[0]
        assert evicted > 50
        assert missed == 0
        kept = one(load, "SELECT count(*) FROM pg_stat_wait_event_timing_statements")
        assert kept <= 64


def test_all_classes_are_recorded(binaries: Binaries, open_directory: Path) -> None:
    with serving(binaries, dict(CLASS_SETTINGS), preload=["pg_prewarm"]) as cluster:
        see_every_class(cluster, open_directory)
