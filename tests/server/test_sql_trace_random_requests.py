"""Random requests, and sessions that end at any point of one: a trace tells what the client did."""

from __future__ import annotations

import contextlib

import pytest

from pgtare.postgres.cluster import Cluster
from tests.random_requests.comparison import difference, read_trace
from tests.random_requests.model import Refused, Statement
from tests.random_requests.play import begin, play, requests_from, sleeps
from tests.random_requests.statements import INNER, TABLES
from tests.random_requests.stopped import SLEEPS, WAITS, Stopped
from tests.sessions import Connection, bare_session, eventually, one

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


@pytest.fixture
def prepared(onlooker: Connection) -> Connection:
    """An onlooker, with the tables that random requests use."""
    onlooker.execute(TABLES.encode())
    return onlooker


@pytest.mark.parametrize("seed", range(3))
def test_random_requests(tracer: Cluster, prepared: Connection, seed: int) -> None:
    """In records of their own, and (seeds that three does not divide) in one for a request."""
    assert play(tracer, prepared, seed, range(200)).difference is None


def test_hidden_until_the_transaction_ends(tracer: Cluster, prepared: Connection) -> None:
    """A message that cannot be read may hold values: what runs later may be due to them."""
    nest = Statement("SELECT nest(1)", within=(INNER,))
    with bare_session(tracer) as connection:
        client = begin(connection)
        for sql in ("BEGIN", "SAVEPOINT s"):
            client.block(sql)
        client.simple(Statement("SELEC execute", fails="read"))
        client.block("ROLLBACK TO s")
        client.simple(nest)
        client.block("COMMIT")
        client.simple(nest)
        within = [call.text for call in client.expected.calls if call.depth]
        assert within == ["", INNER.text]
        pid = connection.info.backend_pid
        assert difference(read_trace(stream_of(prepared, pid)), client.expected) is None


def stream_of(onlooker: Connection, pid: int) -> bytes:
    data: bytes = one(onlooker, "SELECT data FROM sql_trace_drain(%s, 0)", pid)
    return data


def ended(onlooker: Connection, pid: int) -> bool:
    """Has the session gone, and is its trace kept?"""
    return bool(one(onlooker, "SELECT ended FROM sql_trace_drain(%s, 0)", pid))


def stop(cluster: Cluster, onlooker: Connection, point: str, seed: int, ended_by: str) -> None:
    """A session that ends at this point of a request, after some others."""
    with bare_session(cluster) as connection:
        pid = connection.info.backend_pid
        client = begin(connection)
        requests_from(client, seed, 5)
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
        assert difference(read_trace(stream_of(onlooker, pid)), client.expected) is None


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
        client = begin(connection)
        requests_from(client, len(point) + 200, 3)
        getattr(Stopped(client), point)()
        eventually(lambda: sleeps(prepared, pid))
        connection.cancel()
        client.cancelled()
        client.simple(Statement("SELECT 'afterwards'"))
        if client.status != "I":
            client.block("ROLLBACK")
        assert difference(read_trace(stream_of(prepared, pid)), client.expected) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_requests(tracer: Cluster, prepared: Connection, seed: int) -> None:
    assert play(tracer, prepared, seed, range(400)).difference is None
