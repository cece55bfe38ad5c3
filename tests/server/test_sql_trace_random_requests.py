"""Random requests, and sessions that end at any point of one: a trace tells what the client did."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from pgtare.observing.trace.file.records import RecordKind
from pgtare.postgres.cluster import Cluster
from tests.random_requests import (
    FAILED,
    FINE,
    SLEEPS,
    TABLES,
    UNDER_WAY,
    WAITS,
    Call,
    RandomClient,
    Refused,
    Statement,
    Stopped,
)
from tests.sessions import Connection, bare_session, eventually, one
from tests.trace_decoders import check_reader, decoded_kinds
from tests.trace_records import ABORTED as FLAG_ABORTED
from tests.trace_records import FAILED as FLAG_FAILED
from tests.trace_records import Record, Trace, check_whole, decode

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


@pytest.fixture
def prepared(onlooker: Connection) -> Connection:
    """An onlooker, with the tables that random requests use."""
    onlooker.execute(TABLES.encode())
    return onlooker


def begin(connection: Connection, seed: int, fused: bool = True) -> RandomClient:
    """A traced session, which sends random requests."""
    # what deferred triggers run has no call around it: it is parsed before the trace begins
    connection.execute("INSERT INTO late VALUES (1)")
    with contextlib.suppress(psycopg.errors.RaiseException):
        connection.execute("INSERT INTO late VALUES (2)")
    connection.execute(f"SET sql_trace.cpu_interval = {-1 if fused else 0}".encode())
    connection.execute("SET sql_trace.bind_length = -1; SET sql_trace.ring_size = '8MB'")
    connection.execute("SET sql_trace.level = 12")
    return RandomClient(connection, seed)


def stream_of(onlooker: Connection, pid: int, wanted: int | None = None) -> Trace:
    """All that a session's trace tells, as the reader of recordings reads it as well.

    wanted: a kind of record that must be there.
    """
    data: bytes = one(onlooker, "SELECT data FROM sql_trace_drain(%s, 0)", pid)
    kinds = decoded_kinds(data)
    assert wanted is None or wanted in kinds
    assert RecordKind.OPEN not in kinds
    trace = Trace(decode(data))
    check_whole(trace)
    check_reader(data, trace)
    return trace


def outcome(call: Record) -> str:
    if call.flags & FLAG_FAILED:
        return FAILED
    return "aborted" if call.flags & FLAG_ABORTED else FINE


def told(trace: Trace) -> list[Call]:
    """The calls of a trace that a client knows of, in the order in which they began."""
    texts = trace.texts()
    values = {
        r.call: tuple(
            None if v["state"] == "null" else int.from_bytes(v["bytes"], "little", signed=True)
            for v in r.values
        )
        for r in trace.of("binds")
    }
    return [
        Call(r.call_kind, texts[r.text], r.depth, r.rows, outcome(r), values.get(r.call, ()))
        for r in sorted(trace.of("call"), key=lambda r: r.call)
        if r.call_kind in ("bind", "execute", "fetch", "utility")
        or (r.call_kind == "parse" and r.depth == 0)
    ]


def lines(found: list[Call], expected: list[Call]) -> str:
    return "\n".join(["", *map(str, found), "expected:", *map(str, expected)])


def check(trace: Trace, client: RandomClient) -> None:
    """The trace tells what the client did."""
    expected = client.expected
    found = told(trace)
    known = [call for call in expected.calls if call.outcome != UNDER_WAY]
    for at, (ours, theirs) in enumerate(zip(found, known, strict=False)):
        if theirs.rows is None:
            ours.rows = None
        assert ours == theirs, lines(found[at - 4 : at + 5], known[at - 4 : at + 5])
    assert len(found) == len(known), lines(found[-5:], known[-5:])
    requests = [(r.status, r.messages) for r in trace.of("request")]
    assert requests == expected.requests
    errors = [(r.severity, r.sqlstate, r.message) for r in trace.of("error")]
    assert errors == expected.errors
    events = [r.event for r in trace.of("transaction")]
    assert events == expected.transactions


def play(cluster: Cluster, onlooker: Connection, seed: int, many: int, fused: bool = True) -> None:
    with bare_session(cluster) as connection:
        client = begin(connection, seed, fused)
        for _ in range(many):
            client.request()
        if client.status != "I":
            client.block("ROLLBACK")
        wanted = RecordKind.FUSED if fused else RecordKind.CALL
        check(stream_of(onlooker, connection.info.backend_pid, wanted), client)


@pytest.mark.parametrize("seed", range(3))
def test_random_requests(tracer: Cluster, prepared: Connection, seed: int) -> None:
    play(tracer, prepared, seed, 120)


def ended(onlooker: Connection, pid: int) -> bool:
    """Has the session gone, and is its trace kept?"""
    return bool(one(onlooker, "SELECT ended FROM sql_trace_drain(%s, 0)", pid))


def sleeps(onlooker: Connection, pid: int) -> bool:
    query = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s"
    return bool(one(onlooker, query, pid))


def stop(cluster: Cluster, onlooker: Connection, point: str, seed: int, ended_by: str) -> None:
    """A session that ends at this point of a request, after some others."""
    with bare_session(cluster) as connection:
        pid = connection.info.backend_pid
        client = begin(connection, seed)
        while len(client.expected.requests) < 5 or client.status != "I":
            client.request()
        getattr(Stopped(client), point)()
        if point in SLEEPS:
            eventually(lambda: sleeps(onlooker, pid))
        if ended_by == "server":
            onlooker.execute("SELECT pg_terminate_backend(%s)", (pid,))
            with contextlib.suppress(Refused):
                client.refused()
        else:
            client.wire.close_abruptly()
        eventually(lambda: ended(onlooker, pid))
        check(stream_of(onlooker, pid), client)


@pytest.mark.parametrize("point", [*SLEEPS, *WAITS])
def test_a_session_that_is_ended(tracer: Cluster, prepared: Connection, point: str) -> None:
    """By the server: a trace tells all that had happened, and why no more did."""
    stop(tracer, prepared, point, len(point), "server")


@pytest.mark.parametrize("point", [point for point in WAITS if point != "copying"])
def test_a_client_that_goes(tracer: Cluster, prepared: Connection, point: str) -> None:
    """Without a word."""
    stop(tracer, prepared, point, len(point) + 100, "client")


@pytest.mark.parametrize("point", SLEEPS)
def test_a_cancel(tracer: Cluster, prepared: Connection, point: str) -> None:
    """The error ends what is under way; then all goes on."""
    with bare_session(tracer) as connection:
        pid = connection.info.backend_pid
        client = begin(connection, len(point) + 200)
        while len(client.expected.requests) < 3 or client.status != "I":
            client.request()
        getattr(Stopped(client), point)()
        eventually(lambda: sleeps(prepared, pid))
        connection.cancel()
        client.cancelled()
        client.simple(Statement("SELECT 'afterwards'"))
        if client.status != "I":
            client.block("ROLLBACK")
        check(stream_of(prepared, pid), client)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_many_random_requests(tracer: Cluster, prepared: Connection, fused: bool) -> None:
    for seed in range(100, 130):
        play(tracer, prepared, seed, 400, fused)
