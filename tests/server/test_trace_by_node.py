"""A profile by node or relation: what a node took itself, once, whatever its executions hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.documents import ProfileLine
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, session
from tests.trace_recorder import recording, wait_until_traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

TABLES = """
DROP TABLE IF EXISTS many, few, wide;
CREATE TABLE many AS SELECT generate_series(1, 400000) i;
CREATE TABLE few AS SELECT generate_series(1, 5) i;
CREATE TABLE wide (i int, t text); ALTER TABLE wide ALTER t SET STORAGE EXTERNAL;
INSERT INTO wide SELECT g, repeat('x', 4000000) FROM generate_series(1, 6) g;
CREATE OR REPLACE FUNCTION naps(int) RETURNS int LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.05); RETURN $1; END $$
"""
CALLS = (
    "SELECT max(k) + max(s) FROM (SELECT naps(i) k FROM few OFFSET 0) x,"
    " (SELECT max(sqrt(i)) s FROM many OFFSET 0) y"
)
FETCHED = "SELECT t, pg_sleep(0.01) FROM wide"


@pytest.fixture
def book(tracer: Cluster, onlooker: Connection, tmp_path: Path) -> ledgers.Ledger:
    """A session that calls functions within nodes, and fetches rows one by one."""
    onlooker.execute(TABLES.encode())
    onlooker.execute("VACUUM ANALYZE many, few, wide")
    with (
        session(tracer, application_name="by-node") as app,
        recording(tracer, tmp_path / "rec", "--application", "by-node"),
    ):
        wait_until_traced(onlooker, app)
        app.execute("SET sql_trace.rowsource_sampling = 1")
        app.execute("SET max_parallel_workers_per_gather = 0")
        app.execute(CALLS.encode())
        with app.transaction(), app.cursor("c") as cursor:
            cursor.execute(FETCHED.encode())
            while cursor.fetchone():
                pass
    return ledgers.ledger(load(tmp_path / "rec"))


def measured(book: ledgers.Ledger, node: str) -> float:
    """What row sources say of the nodes of a kind on a relation, ns, with what ran in them."""
    (process,) = [p for p in book.processes if p.leader_pid is None]
    plans = process.stream.plans
    return sum(
        each.time
        for run in process.stream.rowsources
        for each in run.nodes
        for planned in plans[run.plan]
        if planned["id"] == each.node and f"{planned['kind']} on {planned.get('relation')}" == node
    )


def line(book: ledgers.Ledger, name: str) -> ProfileLine:
    (found,) = [each for each in profile(book, "node").lines if each.name == name]
    return found


@pytest.mark.slow
def test_what_a_function_takes_leaves_other_nodes_their_time(book: ledgers.Ledger) -> None:
    scanned = line(book, "Seq Scan on public.many")
    assert scanned.total_ns == pytest.approx(measured(book, scanned.name), rel=0.1)
    # the naps are the inner statement's
    assert line(book, "Seq Scan on public.few").total_ns < 20e6
    assert measured(book, "Seq Scan on public.few") > 250e6


def test_an_execution_is_divided_once_however_often_it_is_fetched_from(
    book: ledgers.Ledger,
) -> None:
    scanned = line(book, "Seq Scan on public.wide")
    assert scanned.total_ns == pytest.approx(measured(book, scanned.name), rel=0.02)
    assert scanned.times == 1
    assert scanned.mean_ns == pytest.approx(scanned.total_ns)
    assert scanned.max_ns == pytest.approx(scanned.total_ns)
