"""Slow statements of traced sessions: marked in the ring, which is kept as it was."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgtare.postgres.cluster import Cluster
from tests.process_limits import limit_files
from tests.sessions import Connection, eventually, one, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

KEPT = (
    "SELECT id, queryid, duration, records, kept_at FROM pg_stat_wait_event_timing_kept "
    "WHERE pid = %s ORDER BY id"
)


@pytest.fixture
def sensitive(watched: Connection) -> Connection:
    """A traced session with a ring of 1024 records, whose statements may take 50 ms."""
    watched.execute("SET wait_event_timing.trace_ring_records = 1024")
    watched.execute("SET wait_event_timing.capture = trace")
    watched.execute("SET wait_event_timing.trigger = '50ms'")
    return watched


def kept(observer: Connection, pid: int, n: int = 1) -> list[tuple[Any, ...]]:
    """What has been kept of a session: `n` copies, the answer may come before them."""
    eventually(lambda: len(rows(observer, KEPT, pid)) >= n)
    found = rows(observer, KEPT, pid)
    assert len(found) == n
    return found


def test_slow_statement_is_marked_and_its_ring_kept(
    sensitive: Connection, observer: Connection
) -> None:
    sql = "SELECT pg_sleep(0.12), 'slow'"
    query_id = one(sensitive, f"EXPLAIN (VERBOSE, FORMAT json) {sql}")[0]["Query Identifier"]
    sensitive.execute("SELECT pg_sleep(0.001)")
    sensitive.execute(sql.encode())
    pid = sensitive.info.backend_pid
    ((number, of, duration, records, kept_at),) = kept(observer, pid)
    assert of == query_id
    assert 120 <= duration < 1000
    assert records <= 1024
    assert one(observer, "SELECT clock_timestamp() - %s < interval '60 s'", kept_at)
    # what the session does afterwards is not in it
    sensitive.execute("SELECT wait_event_timing_benchmark(20000)")
    query = "SELECT kind, wait_event, duration FROM wait_event_trace_kept(%s)"
    copy = rows(observer, query, number)
    slept = [d for kind, event, d in copy if event == "PgSleep"]
    assert len(slept) == 2
    assert slept[-1] >= 120
    assert ("trigger", None, pytest.approx(duration, abs=0.01)) in copy
    assert len(copy) < 500
    live = rows(observer, "SELECT kind FROM wait_event_trace(%s)", pid)
    assert ("trigger",) not in live  # 10,000 waits have gone over it


def test_quick_statements_and_untraced_sessions_keep_nothing(
    sensitive: Connection, timed: Cluster, observer: Connection
) -> None:
    for _ in range(20):
        sensitive.execute("SELECT pg_sleep(0.001)")
    with session(timed) as untraced:
        untraced.execute("SET wait_event_timing.trigger = 0")
        untraced.execute("SELECT pg_sleep(0.1)")
        sensitive.execute("SET wait_event_timing.trigger = -1")
        sensitive.execute("SELECT pg_sleep(0.1)")
        for pid in (sensitive.info.backend_pid, untraced.info.backend_pid):
            assert rows(observer, KEPT, pid) == []


def test_whole_request_counts(sensitive: Connection, timed: Cluster, observer: Connection) -> None:
    """A lock wanted while a statement is analysed comes before the executor starts."""
    observer.execute("CREATE TABLE IF NOT EXISTS wanted (i int)")
    with session(timed) as holder:
        holder.execute("BEGIN; LOCK TABLE wanted")
        release = threading.Timer(0.2, lambda: holder.execute("COMMIT"))
        release.start()
        sensitive.execute("SELECT FROM wanted")
        release.join()
        pid = sensitive.info.backend_pid
        ((_, _, duration, _, _),) = kept(observer, pid)
        assert 150 <= duration < 2000
        # the same by the messages of the extended protocol
        holder.execute("BEGIN; LOCK TABLE wanted")
        release = threading.Timer(0.2, lambda: holder.execute("COMMIT"))
        release.start()
        sensitive.execute("SELECT i FROM wanted WHERE i = %s", (1,), prepare=False)
        release.join()
    assert 150 <= kept(observer, pid, 2)[1][2] < 2000


def test_slow_commit_and_failed_statement_count(
    sensitive: Connection, observer: Connection
) -> None:
    pid = sensitive.info.backend_pid
    sensitive.execute("CREATE TEMP TABLE late (i int)")
    sensitive.execute(
        "CREATE FUNCTION pg_temp.late() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END'"
    )
    sensitive.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION pg_temp.late()"
    )
    sensitive.execute("INSERT INTO late VALUES (1)")
    assert kept(observer, pid)[0][2] >= 100
    with pytest.raises(psycopg.errors.QueryCanceled):
        sensitive.execute("SET statement_timeout = '100ms'; SELECT pg_sleep(10)")
    assert 90 <= kept(observer, pid, 2)[1][2] < 1000
    with pytest.raises(psycopg.errors.DivisionByZero):  # the slow one is before it
        sensitive.execute(
            "SET statement_timeout = 0; SELECT pg_sleep(0.1);"
            "SELECT 1 / (relnatts - relnatts) FROM pg_class"
        )
    assert 100 <= kept(observer, pid, 3)[2][2] < 1000


def test_only_the_slow_statement_of_a_request_is_named(
    sensitive: Connection, observer: Connection
) -> None:
    pid = sensitive.info.backend_pid
    slow = "SELECT pg_sleep(0.1), 'second'"
    query_id = one(sensitive, f"EXPLAIN (VERBOSE, FORMAT json) {slow}")[0]["Query Identifier"]
    sensitive.execute(f"SELECT 'first'; {slow}; SELECT 'third'".encode())
    ((number, of, duration, _, _),) = kept(observer, pid)
    assert of == query_id
    assert 100 <= duration < 1000
    marks = "SELECT count(*) FROM wait_event_trace_kept(%s) WHERE kind = 'trigger'"
    assert one(observer, marks, number) == 1


def test_few_are_kept_until_reset(sensitive: Connection, observer: Connection) -> None:
    pid = sensitive.info.backend_pid
    sensitive.execute("SET wait_event_timing.trigger = 0")
    for _ in range(12):
        sensitive.execute("SELECT pg_sleep(0.002)")
    numbers = "SELECT array_agg(id ORDER BY id) FROM pg_stat_wait_event_timing_kept"
    total = "SELECT max(id) FROM wait_event_timing_kept() WHERE pid = %s"
    eventually(lambda: one(observer, total, pid))
    sensitive.execute("SET wait_event_timing.trigger = -1")
    ids = one(observer, numbers)
    assert len(ids) == 8
    assert ids == list(range(ids[0], ids[0] + 8))
    assert one(observer, "SELECT wait_event_timing_reset_kept(%s)", ids[0]) == 1
    assert one(observer, "SELECT wait_event_timing_reset_kept()") == 7
    assert rows(observer, KEPT, pid) == []
    with pytest.raises(psycopg.errors.UndefinedObject, match="no kept trace with number"):
        observer.execute("SELECT * FROM wait_event_trace_kept(%s)", (ids[1],))


def test_kept_trace_outlives_its_session_and_is_private(
    timed: Cluster, observer: Connection
) -> None:
    observer.execute("DO $$BEGIN CREATE ROLE prying; EXCEPTION WHEN duplicate_object THEN END$$")
    observer.execute("CREATE SCHEMA IF NOT EXISTS wait_event_timing")
    observer.execute("GRANT USAGE ON SCHEMA wait_event_timing TO prying")
    with session(timed) as gone:
        pid = gone.info.backend_pid
        gone.execute("SET wait_event_timing.capture = trace; SET wait_event_timing.trigger = 0")
        gone.execute("SELECT pg_sleep(0.01)")
    eventually(lambda: not rows(observer, "SELECT FROM pg_stat_activity WHERE pid = %s", pid))
    number = rows(observer, KEPT, pid)[-1][0]
    assert one(observer, "SELECT count(*) FROM wait_event_trace_kept(%s)", number) > 0
    observer.execute("SET ROLE prying")
    assert rows(observer, "SELECT * FROM wait_event_timing_kept()") == []
    assert rows(observer, "SELECT * FROM wait_event_timing_rings()") == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        observer.execute("SELECT * FROM wait_event_trace_kept(%s)", (number,))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        observer.execute("SELECT wait_event_timing_reset_kept()")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        observer.execute("SET wait_event_timing.trigger = 0")
    observer.execute("RESET ROLE; GRANT pg_read_all_stats TO prying; SET ROLE prying")
    assert rows(observer, "SELECT FROM wait_event_timing_rings() WHERE pid = %s", pid) != []
    observer.execute("RESET ROLE; REVOKE pg_read_all_stats FROM prying")


def test_one_copy_of_a_request_that_talks(sensitive: Connection, observer: Connection) -> None:
    """Notices are sent at once, and are not its answer."""
    pid = sensitive.info.backend_pid
    notices = "DO $$BEGIN RAISE NOTICE 'x'; PERFORM pg_sleep(0.2); RAISE NOTICE 'y'; END$$"
    sensitive.execute(f"SELECT pg_sleep(0.1); {notices}; SELECT 1".encode())
    ((number, _, duration, _, _),) = kept(observer, pid)
    assert 200 <= duration < 1000
    marks = "SELECT count(*) FROM wait_event_trace_kept(%s) WHERE kind = 'trigger'"
    assert one(observer, marks, number) == 2


@contextlib.contextmanager
def large_ring_that_cannot_be_copied(cluster: Cluster) -> Iterator[tuple[Connection, list[str]]]:
    """A traced session whose copies have no memory, and the messages it gets."""
    with session(cluster) as connection:
        notices: list[str] = []
        connection.add_notice_handler(lambda d: notices.append(str(d.message_primary)))
        connection.execute("SET wait_event_timing.trace_ring_records = 1048576")
        connection.execute("SET wait_event_timing.capture = trace")
        connection.execute("SELECT wait_event_timing_benchmark(600000)")
        # WAL segments are smaller, the copy is 32 MiB
        limit_files(cluster, connection.info.backend_pid, 24)
        yield connection, notices


def test_no_memory_for_a_copy_disturbs_nobody(timed: Cluster, observer: Connection) -> None:
    refused = "SELECT traces_refused FROM wait_event_timing_info()"
    with large_ring_that_cannot_be_copied(timed) as (connection, notices):
        before = one(observer, refused)
        pid = connection.info.backend_pid
        connection.execute("SET wait_event_timing.trigger = '50ms'")
        assert one(connection, "SELECT 'answer' FROM pg_sleep(0.1)") == "answer"
        eventually(lambda: one(observer, refused) == before + 1)
        assert rows(observer, KEPT, pid) == []
        assert one(connection, "SELECT 1") == 1
        assert len(notices) == 1
        assert "cannot keep the trace of a slow statement" in notices[0]
        # it is reported after the request, not in the midst of another message
        del notices[:]
        talking = "DO $$BEGIN RAISE NOTICE 'x'; RAISE NOTICE 'y'; END$$"
        connection.execute(f"SELECT pg_sleep(0.1); {talking}; SELECT 1".encode())
        assert one(connection, "SELECT 'next'") == "next"
        assert notices[:2] == ["x", "y"]
        assert len(notices) == 3
        assert "cannot keep the trace of a slow statement" in notices[2]


def test_failed_copies_leave_no_memory_behind(timed: Cluster, observer: Connection) -> None:
    used = "SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'"
    refused = "SELECT traces_refused FROM wait_event_timing_info()"
    with large_ring_that_cannot_be_copied(timed) as (connection, _):
        connection.execute("SET client_min_messages = error")
        connection.execute("SET wait_event_timing.trigger = 0")
        connection.execute("SELECT pg_sleep(0)")
        before = one(connection, used)
        counted = one(observer, refused)
        for _ in range(200):
            connection.execute("SELECT pg_sleep(0)")
        assert one(connection, used) < before + 2000
        assert one(observer, refused) >= counted + 200
