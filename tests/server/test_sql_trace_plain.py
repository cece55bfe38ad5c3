"""Plain requests, of which hooks only take notes, and what a request must not be to remain one.

Each shape runs in two sessions: with CPU time read for each call nothing is plain. Both traces must
tell the same.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.preloaded import preloaded
from tests.servers import tracing
from tests.sessions import Connection, eventually, one, session
from tests.trace_records import ESTIMATED, Record, Trace, check_whole, drain, trace_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

TABLES = """
    DROP TABLE IF EXISTS numbers, written, delayed;
    CREATE TABLE numbers AS SELECT generate_series(1, 999) AS key;
    CREATE UNIQUE INDEX ON numbers (key);
    CREATE TABLE written (key int);
    CREATE TABLE delayed (key int);
    CREATE OR REPLACE FUNCTION keys_below(int) RETURNS int LANGUAGE plpgsql AS $$
        BEGIN RETURN (SELECT count(*) FROM numbers WHERE key < $1); END $$;
    CREATE OR REPLACE FUNCTION divides(int) RETURNS int LANGUAGE plpgsql AS $$
        BEGIN PERFORM 1 / $1; RETURN 1;
        EXCEPTION WHEN division_by_zero THEN RETURN (SELECT count(*) FROM numbers); END $$;
    CREATE OR REPLACE FUNCTION caught_alone(int) RETURNS int LANGUAGE plpgsql AS $$
        BEGIN RAISE 'alone'; EXCEPTION WHEN raise_exception THEN RETURN $1; END $$;
    CREATE OR REPLACE FUNCTION looks_late() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM keys_below(3); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER delayed AFTER INSERT ON delayed DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION looks_late();
"""

BY_KEY = "SELECT key FROM numbers WHERE key = %s"

Shape = Callable[[Connection], object]


def prepared(sql: str, *values: object) -> Shape:
    def run(client: Connection) -> None:
        with contextlib.suppress(psycopg.Error):
            client.execute(sql.encode(), values, prepare=True)

    return run


def in_block(*shapes: Shape, end: str = "COMMIT") -> Shape:
    def run(client: Connection) -> None:
        client.execute("BEGIN")
        for shape in shapes:
            shape(client)
        client.execute(end.encode())

    return run


def in_pipeline(*shapes: Shape) -> Shape:
    def run(client: Connection) -> None:
        with contextlib.suppress(psycopg.Error), client.pipeline():
            for shape in shapes:
                shape(client)

    return run


def plainly(sql: str) -> Shape:
    return lambda client: client.execute(sql.encode())


BROKEN = prepared("SELECT 10 / (key - %s) FROM numbers WHERE key < 5", 3)
SELECTS = prepared(BY_KEY, 5)

SHAPES: dict[str, Shape] = {
    "select": SELECTS,
    "select in a block": in_block(SELECTS, prepared(BY_KEY, 7), SELECTS),
    "insert": prepared("INSERT INTO written VALUES (%s)", 1),
    "insert in a block": in_block(prepared("INSERT INTO written VALUES (%s)", 1), SELECTS),
    "rolled back": in_block(prepared("INSERT INTO written VALUES (%s)", 1), end="ROLLBACK"),
    "nested": prepared("SELECT keys_below(%s)", 5),
    "caught": prepared("SELECT divides(%s)", 0),
    "caught without a statement": prepared("SELECT caught_alone(%s)", 1),
    "error": BROKEN,
    "error in a block": in_block(SELECTS, BROKEN, end="ROLLBACK"),
    "cancelled": in_block(
        plainly("SET LOCAL statement_timeout = 400"), prepared("SELECT pg_sleep(%s)", 9)
    ),
    "pipeline": in_pipeline(SELECTS, prepared("SELECT %s::int", 1), SELECTS),
    "pipeline with an error": in_pipeline(SELECTS, BROKEN, SELECTS),
    "deferred trigger": prepared("INSERT INTO delayed VALUES (%s)", 1),
    "savepoint": in_block(
        plainly("SAVEPOINT s"), SELECTS, plainly("ROLLBACK TO s"), SELECTS, plainly("RELEASE s")
    ),
    "cursor": in_block(
        plainly(f"DECLARE c CURSOR FOR {BY_KEY % 7}"), SELECTS, plainly("FETCH c"), SELECTS
    ),
    "temporary table": prepared("SELECT count(*) FROM own WHERE key > %s", 1),
    "temporary file": prepared("SELECT key FROM many ORDER BY -key LIMIT 1 OFFSET %s", 40000),
    "another level": in_block(
        prepared("SELECT set_config('sql_trace.level', %s, true)", "4"), SELECTS
    ),
    "row sources": in_block(
        prepared("SELECT set_config('sql_trace.rowsource_sampling', %s, true)", "128"), SELECTS
    ),
    "several statements": plainly("SELECT 1; SELECT keys_below(2); SELECT 3"),
}

COUNTERS = ("hit", "local_hit", "temp_read", "temp_written")


def told(trace: Trace) -> list[tuple[object, ...]]:
    """What a trace tells, but for times and numbers that depend on the session."""
    texts = trace.texts()
    first = min(r.call for r in trace.of("call"))

    def call(r: Record) -> tuple[object, ...]:
        return (
            *("call", r.call_kind, r.depth, texts.get(r.text, ""), r.flags & ESTIMATED, r.sqlstate),
            *(r.rows, r.fetches, r.plan != 0, r.call - first, r.parent and r.parent - first),
            *(getattr(r, name) for name in COUNTERS),
        )

    calls = [call(r) for r in sorted(trace.of("call"), key=lambda r: r.call)]
    binds = [("binds", r.call - first, r.values) for r in trace.of("binds")]
    events = [("transaction", r.event, r.xid != 0) for r in trace.of("transaction")]
    errors = [("error", r.sqlstate, texts.get(r.text, "")) for r in trace.of("error")]
    requests = [("request", r.status, r.messages) for r in trace.of("request")]
    return calls + binds + events + errors + requests


def play(cluster: Cluster, onlooker: Connection, shape: Shape, interval: int) -> Trace:
    """What the trace tells of a shape that has run before, so that its plans are kept."""
    with session(cluster) as client:
        client.execute("SET plan_cache_mode = force_generic_plan; SET work_mem = '64kB'")
        client.execute("CREATE TEMP TABLE own AS SELECT generate_series(1, 2000) AS key")
        client.execute("CREATE TEMP TABLE many AS SELECT generate_series(1, 50000) AS key")
        client.execute("ANALYZE own, many")
        client.execute(f"SET sql_trace.cpu_interval = {interval}".encode())
        client.execute("SET sql_trace.level = 4")
        pid = client.info.backend_pid
        for _ in range(3):
            shape(client)
        start = drain(onlooker, pid)[0]
        shape(client)
        after = drain(onlooker, pid, start)[3]
        earlier = [r for r in trace_of(onlooker, pid).of("text") if r.number < after[0].number]
        whole = trace_of(onlooker, pid)
    check_whole(whole)
    return Trace(earlier + after)


@pytest.fixture
def tables(onlooker: Connection) -> Connection:
    onlooker.execute(TABLES.encode())
    return onlooker


@pytest.mark.parametrize("name", SHAPES)
def test_plain_or_not(tracer: Cluster, tables: Connection, name: str) -> None:
    noted = told(play(tracer, tables, SHAPES[name], -1))
    assert noted == told(play(tracer, tables, SHAPES[name], 0))
    assert any(entry[0] == "request" for entry in noted)


def test_open_plain_request(tracer: Cluster, tables: Connection) -> None:
    """A reader finds the values and the bind of one that runs."""
    locked = b"SELECT pg_advisory_xact_lock(%s)"
    with session(tracer) as client, session(tracer) as other, ThreadPoolExecutor() as thread:
        client.execute("SET plan_cache_mode = force_generic_plan; SET lock_timeout = '100s'")
        client.execute("SET sql_trace.level = 4")
        for _ in range(3):
            client.execute(locked, (1,), prepare=True)
        other.execute("SELECT pg_advisory_lock(1)")
        pid = client.info.backend_pid
        running = thread.submit(client.execute, locked, (1,), prepare=True)
        query = "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: one(tables, query, pid))
        (shown,) = trace_of(tables, pid).of("open")
        other.execute("SELECT pg_advisory_unlock(1)")
        running.result()
        assert not trace_of(tables, pid).of("open")
    values, bind = shown.items
    assert values["values"][0]["state"] == "whole"
    assert bind["kind"] == 2
    assert 0 < bind["busy"] <= bind["end"]


def test_a_clock_that_steps_back(wheel: Binaries) -> None:
    """A commit that seems to end before it began is not one of four seconds."""
    sleeps = b"SELECT pg_sleep(%s)"
    with (
        preloaded(wheel, "back_clock.c", "PGTARE_CLOCK_BACK", 8) as (binaries, process),
        tracing(wheel, others=(), run=binaries) as cluster,
        session(cluster) as client,
        session(cluster) as onlooker,
        ThreadPoolExecutor() as thread,
    ):
        client.execute("SET plan_cache_mode = force_generic_plan")
        client.execute("SET sql_trace.clock = monotonic; SET sql_trace.level = 4")
        for _ in range(3):
            client.execute(sleeps, (0,), prepare=True)
        pid = client.info.backend_pid
        start = drain(onlooker, pid)[0]
        running = thread.submit(client.execute, sleeps, (1,), prepare=True)
        query = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: one(onlooker, query, pid))
        process[:] = struct.pack("q", pid)
        running.result()
        process[:] = struct.pack("q", 0)
        calls = [r for r in drain(onlooker, pid, start)[3] if r.kind == "call"]
    assert [r.call_kind for r in calls] == ["bind", "execute", "commit"]
    assert abs(calls[-1].busy) < 1_000_000_000
