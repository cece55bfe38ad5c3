"""The trace of a session: what is in it, and who can read it when."""

import itertools
import math
import re
import struct
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.pq import ExecStatus

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.process_limits import limit_files
from tests.servers import crash, serving
from tests.sessions import Connection, eventually, executed_s, one, role, rows, session
from tests.waits import waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

RECORD = struct.Struct("<IHHIIqq")  # seq, kind, depth, event, calls, start_ns, value


@pytest.fixture
def traced(watched: Connection) -> Connection:
    """A session with a ring of 1024 records."""
    watched.execute("SET wait_event_timing.trace_ring_records = 1024")
    watched.execute("SET wait_event_timing.capture = trace")
    return watched


def trace(connection: Connection, pid: int) -> list[dict[str, Any]]:
    cursor = connection.execute("SELECT * FROM wait_event_trace(%s)", (pid,))
    assert cursor.description
    return [dict(zip([d.name for d in cursor.description], row, strict=True)) for row in cursor]


def drain(connection: Connection, pid: int, start: int) -> tuple[int, int, list[tuple[int, ...]]]:
    """Where to go on, how many were lost, and the records."""
    ((following, lost, data),) = rows(
        connection, "SELECT next, lost, records FROM wait_event_trace_drain(%s, %s)", pid, start
    )
    return following, lost, list(RECORD.iter_unpack(data))


def test_wait_lies_within_its_statement(traced: Connection, observer: Connection) -> None:
    sql = "SELECT pg_sleep(0.05), 'traced'"
    query_id = one(traced, f"EXPLAIN (VERBOSE, FORMAT json) {sql}")[0]["Query Identifier"]
    took_s = executed_s(traced, sql)
    records = trace(observer, traced.info.backend_pid)
    # EXPLAIN began it once before
    at, begin = [(i, r) for i, r in enumerate(records) if r["queryid"] == query_id][-1]
    wait, cpu, end = [r for r in records[at + 1 :] if r["wait_event"] != "ClientRead"]
    assert (wait["wait_event_type"], wait["wait_event"]) == ("Timeout", "PgSleep")
    assert 50 <= wait["duration"] <= 1000 * took_s + 10
    assert begin["since_begin"] <= wait["since_begin"] < end["since_begin"]
    # a transaction that wrote nothing has no commit
    assert [cpu["kind"], end["kind"]] == ["cpu", "statement end"]
    assert end["rows"] == 1
    assert 0 < cpu["duration"] < 60_000


def test_nested_statements_have_a_depth(traced: Connection, observer: Connection) -> None:
    traced.execute("DO $$BEGIN PERFORM pg_sleep(0.001) FROM pg_class LIMIT 2; END$$")
    records = trace(observer, traced.info.backend_pid)
    assert {r["depth"] for r in records if r["kind"] == "statement begin"} == {0, 1}


def test_error_ends_in_an_abort(traced: Connection, observer: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        traced.execute("SELECT 1 / 0 FROM pg_class")
    traced.execute("SELECT 'after'")
    kinds = [r["kind"] for r in trace(observer, traced.info.backend_pid) if r["kind"] != "wait"]
    assert [k for k in kinds[kinds.index("abort") :] if k != "cpu"] == [
        "abort",
        "statement begin",
        "statement end",
    ]


def statements(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What lies within each outermost statement, its begin and its end included."""
    found: list[list[dict[str, Any]]] = []
    running = False
    for record in records:
        outer = record["depth"] == 0
        if record["kind"] == "statement begin" and outer:
            found.append([])
            running = True
        if running:
            found[-1].append(record)
        if record["kind"] == "abort" or (record["kind"] == "statement end" and outer):
            running = False
    return found


@pytest.mark.parametrize("extended", [False, True])
def test_commit_and_its_waits_lie_within_their_statement(
    traced: Connection, observer: Connection, extended: bool
) -> None:
    values = (1,) if extended else None
    traced.execute("CREATE TEMP TABLE warm (i int)")
    observer.execute("CREATE TABLE IF NOT EXISTS committed (i int)")
    traced.execute("SELECT 1")
    traced.execute(
        "INSERT INTO committed VALUES (%s)" if extended else "INSERT INTO committed VALUES (1)",
        values,
    )
    with traced.transaction():
        traced.execute("INSERT INTO committed VALUES (2)")
    *_, alone, begin, insert, commit = statements(trace(observer, traced.info.backend_pid))
    for durable in (alone, commit):
        assert any(str(r["wait_event"]).lower() == "walsync" for r in durable)
        kinds = [r["kind"] for r in durable if r["kind"] not in ("wait", "cpu")]
        assert kinds == ["statement begin", "commit", "statement end"]
    assert [alone[-1]["rows"], begin[-1]["rows"], insert[-1]["rows"]] == [1, 0, 1]


def test_waiting_for_the_next_message_lies_outside(
    traced: Connection, observer: Connection
) -> None:
    with traced.transaction():
        for _ in range(5):
            traced.execute("SELECT pg_sleep(%s)", (0.001,))
            time.sleep(0.002)
    raw = traced.pgconn
    raw.enter_pipeline_mode()
    for _ in range(2):
        # what ends the request comes with it: to wait for that would belong to the statement
        raw.send_query_params(b"SELECT pg_sleep(0.001), 'pipelined'", [])
        raw.pipeline_sync()
        while raw.flush():
            pass
        time.sleep(0.01)
    synchronised = 0
    while synchronised < 2:
        result = raw.get_result()
        synchronised += result is not None and result.status == ExecStatus.PIPELINE_SYNC
    raw.exit_pipeline_mode()
    found = statements(trace(observer, traced.info.backend_pid))
    slept = [s for s in found if "PgSleep" in [r["wait_event"] for r in s]]
    assert len(slept) == 7
    assert all(s[-1]["kind"] == "statement end" and s[-1]["rows"] == 1 for s in slept)
    assert not [r for s in found for r in s if r["wait_event"] == "ClientRead"]


def test_failure_after_a_savepoint_ends_its_statement(
    traced: Connection, observer: Connection
) -> None:
    with traced.transaction():
        with pytest.raises(psycopg.errors.DivisionByZero), traced.transaction():
            traced.execute("SELECT 1 / 0 FROM pg_class")
        traced.execute("SELECT 'after'")
    found = statements(trace(observer, traced.info.backend_pid))
    assert not [r for s in found for r in s if r["wait_event"] == "ClientRead"]
    assert all(s[-1]["kind"] == "statement end" for s in found)


BURN = "DO $$BEGIN FOR i IN 1..3000000 LOOP END LOOP; END$$"


def processor_time(records: list[dict[str, Any]]) -> list[float]:
    """Between a reading and the next, at the outermost level, in ms."""
    read = [r["duration"] for r in records if r["kind"] == "cpu" and r["depth"] == 0]
    return [after - before for before, after in itertools.pairwise(read)]


def test_processor_time_is_read_at_the_end_of_statements(
    traced: Connection, observer: Connection
) -> None:
    for sql in (BURN, "SELECT 'light'"):
        time.sleep(0.002)
        traced.execute(sql.encode())
    records = [r for r in trace(observer, traced.info.backend_pid) if r["kind"] != "wait"]
    *_, burn, light = processor_time(records)
    assert burn > 5 * light > 0
    ends = [i for i, r in enumerate(records) if r["kind"] == "statement end" and r["depth"] == 0]
    assert [records[i - 1]["kind"] for i in ends[-2:]] == ["cpu", "cpu"]


def test_processor_time_is_read_once_a_ms_at_most(traced: Connection, observer: Connection) -> None:
    traced.execute("DO $$BEGIN FOR i IN 1..200 LOOP PERFORM 1 FROM pg_am; END LOOP; END$$")
    records = trace(observer, traced.info.backend_pid)
    ends = [r["since_begin"] for r in records if r["kind"] == "statement end"]
    assert len(ends) > 200
    # one more when the trace began, and at the ends of what came before
    assert len([r for r in records if r["kind"] == "cpu"]) < ends[-1] - ends[-200] + 10


def test_what_runs_untraced_leaves_no_marks(traced: Connection, observer: Connection) -> None:
    """A process keeps its ring, but neither reads its processor time nor counts it as traced."""
    traced.execute("SET wait_event_timing.capture = stats")
    traced.execute("SELECT 'before'")
    before = trace(observer, traced.info.backend_pid)
    traced.execute(BURN)
    assert trace(observer, traced.info.backend_pid) == before
    traced.execute("SET wait_event_timing.capture = trace")
    time.sleep(0.002)
    traced.execute("SELECT 'light'")
    records = trace(observer, traced.info.backend_pid)
    assert len(records) > len(before)
    spent = processor_time(records)
    # what was spent untraced lies before the first reading anew
    assert max(spent[-2:]) > 5 * spent[-1] > 0


def test_trigger_at_the_commit_is_nested_in_its_statement(
    traced: Connection, observer: Connection
) -> None:
    traced.execute("CREATE TEMP TABLE late (i int)")
    traced.execute(
        "CREATE FUNCTION pg_temp.late() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN FOR i IN 1..2 LOOP PERFORM pg_sleep(0.001) FROM pg_class LIMIT 1; END LOOP;"
        " RETURN NULL; END'"
    )
    traced.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION pg_temp.late()"
    )
    for values in (None, (1,)):
        traced.execute(
            "INSERT INTO late VALUES (1)" if values is None else "INSERT INTO late VALUES (%s)",
            values,
        )
        insert = statements(trace(observer, traced.info.backend_pid))[-1]
        assert [r["wait_event"] for r in insert].count("PgSleep") == 2
        begins = [r["depth"] for r in insert if r["kind"] == "statement begin"]
        assert begins == [0, 1, 1]
        assert insert[-1]["kind"] == "statement end"


def test_times_agree_with_the_clock_on_the_wall(traced: Connection, observer: Connection) -> None:
    before = one(observer, "SELECT clock_timestamp()")
    traced.execute("SELECT pg_sleep(0.01)")
    after = one(observer, "SELECT clock_timestamp()")
    (wait,) = [r for r in trace(observer, traced.info.backend_pid) if r["wait_event"] == "PgSleep"]
    assert before <= wait["start_time"] <= after


def test_clock_may_change_within_a_trace(traced: Connection, observer: Connection) -> None:
    began = time.monotonic()
    for clock in ("monotonic", "tsc", "syscall"):
        traced.execute(f"SET wait_event_timing.clock = {clock}".encode())
        traced.execute("SELECT pg_sleep(0.01)")
    took_s = time.monotonic() - began
    records = trace(observer, traced.info.backend_pid)
    starts = [r["since_begin"] for r in records if r["wait_event"] == "PgSleep"]
    assert len(starts) == 3
    assert all(10 <= b - a <= 1000 * took_s + 10 for a, b in itertools.pairwise(starts))


def processor_s(pid: int) -> float:
    """What a process has had of a processor, which others may want as well, s."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_records_are_never_torn(traced: Connection, observer: Connection) -> None:
    """A reader follows a writer of more than a million waits a second, who fills the ring a
    thousand times a second and more."""
    pid = traced.info.backend_pid
    stopped = threading.Event()
    began = drain(observer, pid, 0)[0]
    spent: list[float] = []

    def write() -> None:
        start = processor_s(pid)
        for _ in range(20):
            traced.execute("SELECT wait_event_timing_benchmark(400000)")
        spent.append(processor_s(pid) - start)
        stopped.set()

    writer = threading.Thread(target=write)
    writer.start()
    at = seen = lost = received = 0
    last: float = -math.inf  # a wait under way when the trace began starts before its zero
    while not stopped.is_set():
        at, missing, records = drain(observer, pid, at)
        lost += missing
        received += len(records)
        for _, kind, _, event, calls, start, value in records:
            if kind == 1 and event >> 24 == 0x0A:
                assert calls == 1
                assert start >= last
                assert 0 <= value < 10**9
                last = start
                seen += 1
    writer.join()
    end, missing, records = drain(observer, pid, at)
    assert (end - began) / spent[0] > 1_000_000
    assert seen > 1000
    assert lost > 1_000_000
    # every record was either read or counted as lost
    assert end == received + lost + missing + len(records)
    assert drain(observer, pid, end)[1:] == (0, [])


def peak_memory(pid: int) -> int:
    """Bytes that a process has had at most, with what it has touched of its ring."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) * 1024


def test_reading_a_long_trace_takes_little_memory(timed: Cluster) -> None:
    """Rows go to a file beyond work_mem, and nothing else is kept of them."""
    records = 1 << 18
    with session(timed, options="-c work_mem=64kB") as long:
        pid = long.info.backend_pid
        long.execute(f"SET wait_event_timing.trace_ring_records = {records}".encode())
        long.execute("SET wait_event_timing.capture = trace")
        long.execute("SELECT wait_event_timing_benchmark(%s)", (records,))
        before = peak_memory(pid)
        assert one(long, "SELECT count(*) FROM wait_event_trace(%s)", pid) > records // 2
        assert peak_memory(pid) - before < 4 * 1024 * 1024


def test_foreign_trace_needs_privilege(timed: Cluster, traced: Connection) -> None:
    traced.execute("SELECT 1")
    with (
        session(timed) as admin,
        role(admin, "nosy"),
        session(timed, user="nosy") as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT * FROM wait_event_trace(%s)", (traced.info.backend_pid,))


def test_another_session_begins_the_trace(watched: Connection, observer: Connection) -> None:
    pid = watched.info.backend_pid
    with pytest.raises(psycopg.errors.UndefinedObject, match="no trace of a process"):
        trace(observer, pid)
    observer.execute("SELECT wait_event_timing_set(%s, 'trace')", (pid,))
    watched.execute("SELECT 1")
    watched.execute("SELECT pg_sleep(0.01)")
    assert "PgSleep" in [r["wait_event"] for r in trace(observer, pid)]


def test_killed_while_traced(wheel: Binaries) -> None:
    with serving(wheel) as cluster:
        with session(cluster) as victim:
            victim.execute("SET wait_event_timing.capture = trace")
            victim.execute("SELECT pg_sleep(0.01)")
            crash(cluster, victim.info.backend_pid)
        with session(cluster) as after:
            assert rows(after, "SELECT * FROM wait_event_timing_rings()") == []
            after.execute("SET wait_event_timing.capture = trace")
            after.execute("SELECT pg_sleep(0.01)")
            assert trace(after, after.info.backend_pid)


def test_session_that_gets_no_ring_goes_on(timed: Cluster) -> None:
    """It gets a warning, its waits are counted all the same, and it has a ring when asked anew."""
    with session(timed) as connection:
        notices: list[str | None] = []
        connection.add_notice_handler(lambda d: notices.append(d.message_primary))
        pid = connection.info.backend_pid
        limit_files(timed, pid, 24)  # WAL segments are smaller
        connection.execute("SET wait_event_timing.trace_ring_records = 1048576")
        connection.execute("SET wait_event_timing.capture = trace")
        connection.execute("SELECT pg_sleep(0.01)")
        assert len(notices) == 1
        assert "cannot trace this process" in str(notices[0])
        assert waits(connection, "PgSleep", pid)[0] == 1
        rings = "SELECT records FROM wait_event_timing_rings() WHERE pid = %s"
        assert rows(connection, rings, pid) == []
        limit_files(timed, pid, None)
        connection.execute("SET wait_event_timing.capture = stats")
        connection.execute("SET wait_event_timing.capture = trace")
        assert rows(connection, rings, pid) == [(1048576,)]


def test_one_role_does_not_push_out_what_another_left(timed: Cluster, observer: Connection) -> None:
    observer.execute("SELECT wait_event_timing_reset()")
    observer.execute(
        "DO $$BEGIN CREATE ROLE crowd LOGIN SUPERUSER; EXCEPTION WHEN duplicate_object THEN END$$"
    )
    ended = (
        "SELECT count(*) FROM wait_event_timing_rings() WHERE ended IS NOT NULL "
        "AND leader_pid IS NULL AND userid = %s::regrole"
    )
    gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
    for user, n in (("postgres", 8), ("crowd", 9)):
        for _ in range(n):
            with session(timed, user=user) as short:
                pid = short.info.backend_pid
                short.execute("SET wait_event_timing.trace_ring_records = 1024")
                short.execute("SET wait_event_timing.capture = trace")
                short.execute("SELECT 1")
            eventually(lambda p=pid: not rows(observer, gone, p))
    assert (one(observer, ended, "postgres"), one(observer, ended, "crowd")) == (7, 1)
    observer.execute("SELECT wait_event_timing_reset()")
    assert (one(observer, ended, "postgres"), one(observer, ended, "crowd")) == (0, 0)


def test_traces_are_private(watched: Connection, observer: Connection) -> None:
    pid = watched.info.backend_pid
    watched.execute("SET wait_event_timing.capture = trace")
    watched.execute("SELECT 1")
    observer.execute("DO $$BEGIN CREATE ROLE prying; EXCEPTION WHEN duplicate_object THEN END$$")
    observer.execute("CREATE SCHEMA IF NOT EXISTS wait_event_timing")
    observer.execute("GRANT USAGE ON SCHEMA wait_event_timing TO prying")
    observer.execute("SET ROLE prying")
    assert rows(observer, "SELECT * FROM wait_event_timing_rings()") == []
    for function in ("wait_event_trace(%s)", "wait_event_trace_drain(%s, 0)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            observer.execute(f"SELECT * FROM {function}".encode(), (pid,))
    observer.execute("RESET ROLE; GRANT pg_read_all_stats TO prying; SET ROLE prying")
    assert rows(observer, "SELECT FROM wait_event_timing_rings() WHERE pid = %s", pid) != []
    observer.execute("RESET ROLE; REVOKE pg_read_all_stats FROM prying")
