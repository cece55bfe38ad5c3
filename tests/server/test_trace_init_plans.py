"""Init plans and sub plans: the time they take is theirs alone, wherever in the plan they run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis import plan_nodes
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, session
from tests.trace_recorder import recording, wait_until_traced
from tests.trace_records import traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

NAP_MS = 100
NAP = f"pg_sleep({NAP_MS / 1000})"
TABLE = """
DROP TABLE IF EXISTS asked; CREATE TABLE asked AS SELECT g AS n FROM generate_series(1, 20000) g;
DROP TABLE IF EXISTS parted; CREATE TABLE parted (n int, m int) PARTITION BY LIST (n);
CREATE TABLE parted_5 PARTITION OF parted FOR VALUES IN (5);
CREATE TABLE parted_9 PARTITION OF parted FOR VALUES IN (9);
INSERT INTO parted VALUES (5, 1), (5, 2), (9, 3), (9, 4);
ANALYZE asked, parted
"""
PARALLEL = (
    "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;"
    "SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2"
)
#: Statements that nap once, by where the nap is asked for.
NAPS = {
    "below an aggregate": f"SELECT count(*) FROM asked WHERE n > (SELECT 0 FROM {NAP})",
    "by the node that it hangs on": f"SELECT n, (SELECT 0 FROM {NAP}) FROM asked LIMIT 2",
    "on one side of a join": f"SELECT count(*) FROM asked a JOIN asked b USING (n)"
    f" WHERE b.n > (SELECT 0 FROM {NAP})",
    "by a CTE's scan": f"WITH c AS MATERIALIZED (SELECT 0 AS n FROM {NAP})"
    " SELECT count(*) FROM asked WHERE n > 100 AND n IN (SELECT n FROM c)",
    "within another init plan": "SELECT count(*) FROM asked WHERE n >"
    f" (SELECT max(n) FROM asked WHERE n > (SELECT 9 FROM {NAP}))",
    "by a sub plan": f"SELECT (SELECT a.n FROM {NAP}) FROM asked a LIMIT 1",
    "to leave out partitions": f"SELECT count(*) FROM parted WHERE n = (SELECT 5 FROM {NAP})",
    "to change several columns": f"UPDATE parted SET (n, m) = (SELECT 5, 6 FROM {NAP}) WHERE m = 3",
    "before workers begin": f"SELECT /*parallel*/ count(*) FROM asked"
    f" WHERE n % 7 = (SELECT 0 FROM {NAP})",
}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Path]:
    """The recording of each server, made when it is first asked for."""
    return {}


@pytest.fixture
def book(
    tracer: Cluster,
    onlooker: Connection,
    recorded: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> ledgers.Ledger:
    name = tracer.dsn()
    if name not in recorded:
        onlooker.execute(TABLE.encode())
        path = tmp_path_factory.mktemp("init") / "rec"
        with session(tracer) as app:
            app.execute("SET sql_trace.rowsource_sampling = 1")
            with recording(tracer, path, "--pid", str(app.info.backend_pid)):
                wait_until_traced(onlooker, app)
                for where, nap in NAPS.items():
                    if "parallel" in nap:
                        app.execute(PARALLEL.encode())
                    app.execute(f"{nap} /*{where}*/".encode())
        recorded[name] = path
    return ledgers.ledger(load(recorded[name]))


@pytest.mark.parametrize("where", NAPS)
def test_a_nap_is_in_the_own_time_of_one_node(book: ledgers.Ledger, where: str) -> None:
    (process,) = [p for p in book.processes if p.leader_pid is None]
    texts = process.stream.texts
    (call,) = [
        int(call["call"])
        for call in process.calls
        if call["kind"] == 4 and f"/*{where}*/" in texts[int(call["text"])].text
    ]
    (run,) = [run for run in process.stream.rowsources if run.call == call]
    plan = plan_nodes.of_plan(process.stream.plans[run.plan])
    own = {n: ns / 1e6 for n, ns in plan_nodes.own_times(run, plan).items()}
    (root,) = [n.time / 1e6 for n in run.nodes if plan[n.node].parent < 0]
    (nap,) = [n for n in own if plan[n].kind == "Function Scan"]
    assert root >= NAP_MS
    assert NAP_MS <= own[nap] <= root * 1.02
    if "parallel" not in NAPS[where]:  # there a leader waits for its workers, too
        assert sum(own.values()) == pytest.approx(root, rel=0.02), own  # and so in no other's


ASKING = {
    "scans of CTEs": (
        "WITH c AS MATERIALIZED (SELECT n FROM asked), d AS MATERIALIZED (SELECT n FROM asked)"
        " SELECT count(*) FROM {0} x CROSS JOIN {1} y WHERE x.n + y.n < 0",
        ("c", "d"),
    ),
    "conditions": (
        "SELECT count(*) FROM asked x CROSS JOIN asked y WHERE {0} > (SELECT avg(n) FROM asked)"
        " AND {1} > (SELECT avg(n) FROM asked) AND x.n + y.n < 0",
        ("x.n", "y.n"),
    ),
}


@pytest.mark.parametrize("how", ASKING)
def test_plans_that_differ_by_who_asks_are_two(
    client: Connection, onlooker: Connection, how: str
) -> None:
    """All else is equal, and so the one must not stand for the other."""
    onlooker.execute(TABLE.encode())
    query, names = ASKING[how]
    both = [query.format(*names), query.format(*reversed(names))]
    trace = traced(onlooker, client, *(f"EXPLAIN {one}" for one in both))
    plans = {p.plan: json.loads(p.json) for p in trace.of("plan")}
    askers = [
        [node["within"] for node in plans[call.plan] if "within" in node]
        for call in trace.calls("execute")
    ]
    assert askers[0] == askers[1][::-1] != askers[1], trace.describe()
