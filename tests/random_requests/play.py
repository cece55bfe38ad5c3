"""Plays the random requests of a seed, and finds the few of them that still make a difference."""

from __future__ import annotations

import contextlib
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from pgtare.observing.trace.file.records import RecordKind
from pgtare.postgres.cluster import Cluster
from tests.random_requests.client import RandomClient
from tests.random_requests.comparison import difference, read_trace
from tests.random_requests.stopped import SLEEPS, Stopped
from tests.random_requests.utilities import DROP_TABLES, set_level
from tests.sessions import Connection, bare_session, eventually, one

_LEVEL = 12
#: The share of requests that another session cancels.
_CANCELLED = 0.001
#: Of a session that must have had a request in one record.
_MANY = 100
#: Characters that are shown of an assertion that failed.
_MOST_WORDS = 4000
#: Parallel plans, however small a table is.
_SETTINGS = """
SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET sql_trace.bind_length = -1; SET sql_trace.ring_size = '8MB'
"""


@dataclass
class Played:
    """What became of the requests of one session. sent: in words, each with its number."""

    sent: list[tuple[int, str]] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)
    difference: str | None = None


def begin(connection: Connection, fused: bool = True) -> RandomClient:
    """A traced session, which sends random requests."""
    # what deferred triggers run has no call around it: it is parsed before the trace begins
    connection.execute("INSERT INTO late VALUES (1)")
    with contextlib.suppress(psycopg.errors.RaiseException):
        connection.execute("INSERT INTO late VALUES (2)")
    connection.execute(_SETTINGS.encode())
    connection.execute(f"SET sql_trace.cpu_interval = {-1 if fused else 0}".encode())
    connection.execute(f"SET sql_trace.level = {_LEVEL}".encode())
    return RandomClient(connection, _LEVEL)


def finish(client: RandomClient) -> None:
    """No transaction is open any more, and the session is traced."""
    if client.status != "I":
        client.block("ROLLBACK")
    client.simple(set_level(_LEVEL))


def requests_from(client: RandomClient, seed: int, many: int) -> None:
    """Some requests of this seed, and their end."""
    for number in range(many):
        client.rng = _of_request(seed, number)
        client.request()
    finish(client)


def _of_request(seed: int, number: int) -> random.Random:
    """Each request has random numbers of its own: if some are left out, others stay as they are."""
    return random.Random(f"{seed}/{number}")


def sleeps(onlooker: Connection, pid: int) -> bool:
    """Whether the process is in pg_sleep."""
    query = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s"
    return bool(one(onlooker, query, pid))


def _cancelled(client: RandomClient, onlooker: Connection) -> None:
    """A request that is cancelled at any point at which it sleeps."""
    finish(client)
    pid = client.connection.info.backend_pid
    point = client.rng.choice(SLEEPS)
    client.sent = f"cancelled: {point}"
    client.shapes["cancel request"] += 1
    getattr(Stopped(client), point)()
    eventually(lambda: sleeps(onlooker, pid))
    client.connection.cancel()
    client.cancelled()


def play(
    cluster: Cluster,
    onlooker: Connection,
    seed: int,
    numbers: Sequence[int],
    database: str = "postgres",
) -> Played:
    """A session that sends the requests of these numbers. onlooker: also in that database."""
    played = Played()
    fused = seed % 3 > 0
    with bare_session(cluster, database) as connection:
        client = begin(connection, fused)
        try:
            for number in numbers:
                client.rng, client.sent = _of_request(seed, number), ""
                try:
                    if client.rng.random() < _CANCELLED:
                        _cancelled(client, onlooker)
                    else:
                        client.request()
                finally:
                    played.sent.append((number, client.sent))
            finish(client)
            client.simple(set_level(_LEVEL))
            pid = connection.info.backend_pid
            data: bytes = one(onlooker, "SELECT data FROM sql_trace_drain(%s, 0)", pid)
            wanted = RecordKind.FUSED if fused and len(numbers) > _MANY else None
            played.difference = difference(read_trace(data, wanted), client.expected)
        except (AssertionError, OSError, TimeoutError) as ex:
            played.difference = "".join(traceback.format_exception(ex)[-2:])[:_MOST_WORDS]
        played.shapes = client.shapes
        client.wire.close()
    onlooker.execute(DROP_TABLES.encode())
    return played


def shrunk(numbers: Sequence[int], differs: Callable[[Sequence[int]], bool]) -> list[int]:
    """Few of the requests: without any one of them there is no difference any more."""
    left = list(numbers)
    size = max(len(left) // 2, 1)
    while True:
        at = 0
        while at < len(left):
            tried = left[:at] + left[at + size :]
            if differs(tried):
                left = tried
            else:
                at += size
        if size == 1:
            return left
        size = max(size // 2, 1)
