"""Traces of sessions that have ended: which make way, and what of them nobody had read."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest

from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, eventually, one, rows, session
from tests.trace_records import drain, traced
from tests.trace_rings import DATA, KEPT, SMALLEST, Unread, end, ring_of, short, since, size, unread

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

LIVING = "SELECT count(*) FROM pg_stat_sql_trace WHERE ended IS NULL"


@pytest.fixture
def empty(onlooker: Connection) -> Iterator[Unread]:
    """No trace of a session that has ended; how much had been given up unread until then."""
    # the session of another test may not have ended yet
    eventually(lambda: one(onlooker, LIVING) == 0)
    one(onlooker, "SELECT sql_trace_reset()")
    yield unread(onlooker)
    one(onlooker, "SELECT sql_trace_reset()")


def test_what_makes_way_unread_is_counted(
    tracer: Cluster, onlooker: Connection, empty: Unread
) -> None:
    first = [short(tracer, onlooker) for _ in range(2)]
    lost = [size(onlooker, pid) for pid in first]
    for _ in range(KEPT - 2):
        short(tracer, onlooker)
    assert since(onlooker, empty) == Unread(0, 0, 0)
    for _ in range(2):
        short(tracer, onlooker)
    assert since(onlooker, empty) == Unread(2, sum(n for n, _ in lost), sum(n for _, n in lost))
    assert one(onlooker, "SELECT sql_trace_reset()") == KEPT
    assert since(onlooker, empty).sessions == KEPT + 2


def test_what_was_read_is_not_counted_and_makes_way_first(
    tracer: Cluster, onlooker: Connection, empty: Unread
) -> None:
    pids = [short(tracer, onlooker) for _ in range(KEPT)]
    drain(onlooker, pids[-1])
    short(tracer, onlooker)
    assert since(onlooker, empty) == Unread(0, 0, 0)
    kept = {pid for (pid,) in rows(onlooker, "SELECT pid FROM pg_stat_sql_trace")}
    assert kept >= set(pids[:-1])
    assert pids[-1] not in kept


def test_only_the_rest_of_what_was_read_in_part_is_counted(
    tracer: Cluster, onlooker: Connection, empty: Unread
) -> None:
    with session(tracer) as client:
        traced(onlooker, client, "SELECT 1")
        position, *_, records = drain(onlooker, client.info.backend_pid)
        client.execute("SELECT 2")
        pid = end(onlooker, client)
    written, length = size(onlooker, pid)
    one(onlooker, "SELECT sql_trace_reset()")
    assert since(onlooker, empty) == Unread(1, written - records[-1].number, length - position)


def test_nobody_pushes_out_what_another_role_left(
    tracer: Cluster, onlooker: Connection, empty: Unread
) -> None:
    """Read or not: those of the role that ends make way."""
    onlooker.execute("DROP ROLE IF EXISTS many")
    onlooker.execute("CREATE ROLE many LOGIN SUPERUSER")
    mine = short(tracer, onlooker)
    drain(onlooker, mine)
    for _ in range(KEPT + 1):
        short(tracer, onlooker, user="many")
    assert size(onlooker, mine)[0] > 0
    assert since(onlooker, empty).sessions == 2


def test_a_ring_that_was_written_over(
    tracer: Cluster, onlooker: Connection, client: Connection
) -> None:
    """No loop without end: its content is given up and counted, and what follows can be read."""
    pid = client.info.backend_pid
    client.execute("SET sql_trace.ring_size = '64kB'")
    client.execute("SET sql_trace.level = 1")
    number = 0
    while size(onlooker, pid)[1] < SMALLEST - 4096:
        number += 1
        client.execute(f"SELECT {number}".encode())
    written, length = size(onlooker, pid)
    with ring_of(pid).open("r+b") as file:
        file.seek(DATA)
        file.write(bytes(SMALLEST))

    def work() -> None:
        with contextlib.suppress(psycopg.Error):
            for i in range(100):
                client.execute(f"SELECT 'after {i}'".encode())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(60)
    if worker.is_alive():
        os.kill(pid, signal.SIGQUIT)  # it hears nothing else
        pytest.fail("the session loops")
    lost_records, lost_bytes = rows(
        onlooker, "SELECT lost_records, lost_bytes FROM pg_stat_sql_trace WHERE pid = %s", pid
    )[0]
    assert lost_records >= written
    assert lost_bytes >= length
    _, lost, _, records = drain(onlooker, pid)
    assert lost == lost_bytes
    assert records[-1].number - lost_records == len({r.number for r in records} - {0})
    assert any(r.kind == "text" and r.sql == "SELECT 'after 99'" for r in records)
