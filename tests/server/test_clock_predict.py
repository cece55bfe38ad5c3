"""Predicted readings of the clock against those a server makes, counted one by one."""

from collections.abc import Iterator

import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.seeing.clock.explain_timing import Progress, explainer, measure
from pgtare.seeing.clock.node_calls import Range, count_calls
from pgtare.seeing.clock.plan import Plan
from pgtare.seeing.clock.predict import Clock, explain_cost, io_cost
from pgtare.server.binaries import Binaries
from tests.counted_clock import Counted, counting

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TABLES = """
CREATE TABLE t AS SELECT i AS id, i * 7919 % 2000 + 1 AS r, i % 100 AS k
FROM generate_series(1, 2000) i;
CREATE TABLE u AS SELECT 2 * i AS id, i % 10 AS g FROM generate_series(1, 500) i;
CREATE TABLE w (id int);
CREATE UNIQUE INDEX t_id ON t (id);
CREATE INDEX t_k ON t (k);
CREATE UNIQUE INDEX u_id ON u (id);
CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER w_row BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION fired();
CREATE TABLE pages WITH (fillfactor = 10) AS SELECT i FROM generate_series(1, 6000) i;
CREATE FUNCTION refuses() RETURNS int LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''it ran''; END';
CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'INSERT INTO w VALUES (1) RETURNING id';
VACUUM ANALYZE
"""
LOOP = "enable_hashjoin=off enable_mergejoin=off enable_material=off enable_memoize=off"
#: What is to be in the plan, the statement, settings, and whether the count must be exact.
CASES = [
    ("Seq Scan", "SELECT * FROM t WHERE k % 3 = 0", "", True),
    ("Aggregate", "SELECT count(*) FROM t", "", True),
    ("Sort", "SELECT * FROM t ORDER BY r", "", True),
    ("Limit", "SELECT * FROM t ORDER BY r LIMIT 10", "", True),
    ("Limit", "SELECT * FROM t LIMIT 10", "", True),
    ("Limit", "SELECT * FROM t WHERE id < 5 LIMIT 10", "", True),
    ("Limit", "SELECT * FROM u, LATERAL (SELECT id FROM t WHERE t.k = u.g LIMIT 1) l", LOOP, True),
    ("Hash Join", "SELECT count(*) FROM t JOIN u ON u.id = t.r", "enable_nestloop=off", True),
    ("Merge Join", "SELECT count(*) FROM t JOIN u USING (id)", "enable_hashjoin=off", False),
    ("Nested Loop", "SELECT count(*) FROM t JOIN u ON u.id = t.r", LOOP, True),
    ("Nested Loop", "SELECT count(*) FROM u JOIN t ON t.k = u.g", LOOP, True),
    ("Nested Loop", "SELECT * FROM t LEFT JOIN u ON u.id = t.r", LOOP, False),
    (
        "Nested Loop",
        "SELECT * FROM t WHERE NOT EXISTS (SELECT FROM u WHERE u.id = t.r)",
        LOOP,
        False,
    ),
    (
        "Materialize",
        "SELECT count(*) FROM u a, (SELECT * FROM u WHERE g = 1) b",
        "enable_hashjoin=off",
        True,
    ),
    (
        "Memoize",
        "SELECT count(*) FROM t JOIN u ON u.id = t.k",
        "enable_hashjoin=off enable_mergejoin=off",
        False,
    ),
    (
        "Bitmap Heap Scan",
        "SELECT * FROM t WHERE k = 7 OR k = 9",
        "enable_seqscan=off enable_indexscan=off",
        True,
    ),
    ("Append", "SELECT id FROM t UNION ALL SELECT id FROM u", "", True),
    (
        "Merge Append",
        "SELECT id FROM t UNION ALL SELECT id FROM u ORDER BY id LIMIT 7",
        "enable_seqscan=off",
        False,
    ),
    ("Unique", "SELECT DISTINCT k FROM t ORDER BY k", "enable_hashagg=off", True),
    ("Incremental Sort", "SELECT * FROM t ORDER BY k, r", "enable_seqscan=off", True),
    ("WindowAgg", "SELECT id, sum(k) OVER (ORDER BY id) FROM t", "", True),
    ("SetOp", "SELECT id FROM t EXCEPT SELECT id FROM u", "", True),
    ("ProjectSet", "SELECT generate_series(1, 3) FROM u", "", True),
    ("Function Scan", "SELECT * FROM generate_series(1, 100)", "", True),
    ("CTE Scan", "WITH x AS MATERIALIZED (SELECT * FROM t) SELECT count(*) FROM x", "", True),
    (
        "Recursive Union",
        "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x"
        " WHERE n < 50) SELECT count(*) FROM x",
        "",
        False,
    ),
    ("Seq Scan", "SELECT (SELECT max(id) FROM u), id FROM t", "", False),
    ("Seq Scan", "SELECT (SELECT id FROM u WHERE u.id = t.r) FROM t", "", False),
    (
        "Seq Scan",
        "SELECT * FROM t WHERE EXISTS (SELECT FROM u WHERE u.id = t.r) OR k = 1",
        "",
        False,
    ),
    ("LockRows", "SELECT * FROM t FOR UPDATE", "", True),
    ("ModifyTable", "INSERT INTO w SELECT id FROM u", "", True),
]


@pytest.fixture(scope="module")
def counted18(wheel: Binaries) -> Iterator[Counted]:
    with counting(wheel) as counted:
        _fill(counted)
        yield counted


@pytest.fixture(scope="module")
def counted15(debian15: Binaries) -> Iterator[Counted]:
    with counting(debian15) as counted:
        _fill(counted)
        yield counted


def _fill(counted: Counted) -> None:
    for statement in TABLES.split(";\n"):
        counted.conn.execute(statement.encode())


@pytest.fixture(
    params=[pytest.param("counted18"), pytest.param("counted15", marks=pytest.mark.debian)]
)
def counted(request: pytest.FixtureRequest) -> Iterator[Counted]:
    found: Counted = request.getfixturevalue(request.param)
    yield found
    found.conn.execute("RESET ALL")


def total(plan: Plan) -> Range:
    found = Range.exactly(plan.trigger_calls)
    for calls in count_calls(plan):
        found = found + calls.calls
    return found


@pytest.mark.parametrize(("kind", "query", "settings", "exact"), CASES)
def test_readings_of_the_clock_are_counted(
    counted: Counted, kind: str, query: str, settings: str, exact: bool
) -> None:
    for setting in settings.split():
        name, value = setting.split("=")
        counted.conn.execute(f"SET {name} = {value}".encode())
    counted.explain(query, "TIMING OFF")  # what a first execution reads besides
    _, without = counted.explain(query, "TIMING OFF")
    plan, timed = counted.explain(query, "TIMING ON")
    assert kind in {node.kind for node in plan.root.walk()}
    predicted = total(plan)
    made = (timed - without) / 2
    assert predicted.lo <= made <= predicted.hi
    if exact:
        assert predicted.likely == made
    else:
        # what a plan does not show stays small compared with what it does
        assert predicted.likely == pytest.approx(made, rel=0.12)


def test_parallel_processes_are_counted_and_share_the_time(counted: Counted) -> None:
    for name, value in (
        ("max_parallel_workers_per_gather", "2"),
        ("parallel_setup_cost", "0"),
        ("parallel_tuple_cost", "0"),
        ("min_parallel_table_scan_size", "0"),
    ):
        counted.conn.execute(f"SET {name} = {value}".encode())
    query = "SELECT count(*) FROM pages"
    counted.explain(query, "TIMING OFF", everywhere=True)
    _, without = counted.explain(query, "TIMING OFF", everywhere=True)
    plan, timed = counted.explain(query, "TIMING ON", everywhere=True)
    gathers = [calls for calls in count_calls(plan) if calls.node.kind == "Gather"]
    assert gathers
    assert gathers[0].processes == 1
    scan = next(calls for calls in count_calls(plan) if calls.node.kind == "Seq Scan")
    assert scan.processes == scan.loops > 1
    # workers wait, start and end in their own time, which takes some readings of its own
    assert total(plan).likely == pytest.approx((timed - without) / 2, rel=0.02)
    cost = explain_cost(plan, Clock(20), 18)
    assert cost.cpu_ms.likely / scan.processes < cost.wall_ms.likely < cost.cpu_ms.likely


def test_readings_of_track_io_timing_are_counted(counted: Counted) -> None:
    major = counted.conn.info.server_version // 10000
    query = "SELECT count(*) FROM pages"
    made = {}
    for setting in ("off", "off", "on"):
        counted.conn.execute(f"SET track_io_timing = {setting}".encode())
        plan, made[setting] = counted.explain(query, "TIMING OFF, BUFFERS")
    assert plan.root.number("Shared Read Blocks") > 100
    cost = io_cost(Clock(20), major, plan)
    assert cost.ios is not None
    readings = made["on"] - made["off"]
    most = 2 if major < 18 else 4
    assert 2 * cost.ios.lo <= readings <= most * cost.ios.hi
    if major < 17:
        assert readings == 2 * cost.ios.likely


def test_a_plan_is_had_without_executing_the_statement(counted: Counted) -> None:
    for query in ("SELECT refuses() FROM t", "INSERT INTO w SELECT id FROM u"):
        with explainer(counted.cluster.dsn(), query) as session:
            plan = session.estimate()
        assert not plan.analyzed
    assert counted.conn.execute("SELECT count(*) FROM w").fetchone() == (0,)
    with pytest.raises(UsageError, match="it ran"):
        measure("SELECT refuses() FROM t", counted.cluster.dsn())


def test_estimates_count_what_execution_counts(counted: Counted) -> None:
    # where the planner is right, which it is here
    for query in (
        "SELECT * FROM t",
        "SELECT * FROM t ORDER BY r LIMIT 10",
        "SELECT count(*) FROM t JOIN u ON u.id = t.id",
    ):
        with explainer(counted.cluster.dsn(), query) as session:
            estimated = explain_cost(session.estimate(), Clock(20), session.major)
        plan, _ = counted.explain(query, "TIMING OFF")
        actual = explain_cost(plan, Clock(20), 18)
        assert estimated.calls.likely == pytest.approx(actual.calls.likely, rel=0.02)
        assert "estimates" in estimated.notes[0]
        assert not actual.notes


def test_timing_is_measured_pair_by_pair(counted: Counted) -> None:
    ticks: list[Progress] = []
    found = measure("SELECT * FROM pages", counted.cluster.dsn(), 9, ticks.append)
    assert len(found.on) == len(found.off) == 9
    assert found.by == "processor time"
    # here a reading is a system call, so that the difference is large
    assert found.difference_ms.lo > 0
    assert found.plan.analyzed
    assert not found.plan.timed
    assert [tick.pairs for tick in ticks] == list(range(10))
    assert ticks[-1].left_s == 0


def test_an_interrupt_keeps_the_finished_pairs(counted: Counted) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.pairs == 7:
            raise KeyboardInterrupt

    found = measure("SELECT * FROM u", counted.cluster.dsn(), 50, interrupt)
    assert found.interrupted
    assert len(found.on) == 7


def test_nothing_is_changed_on_the_server(counted: Counted) -> None:
    dsn = counted.cluster.dsn()
    with pytest.raises(UsageError, match="change nothing"):
        measure("INSERT INTO w SELECT id FROM u", dsn)
    with pytest.raises(UsageError, match="change nothing"):
        measure("SELECT writes()", dsn)
    with pytest.raises(UsageError, match="multiple commands"):
        measure("SELECT 1; COMMIT; DROP TABLE w", dsn)
    assert counted.conn.execute("SELECT count(*) FROM w").fetchone() == (0,)


def test_a_statement_that_takes_too_long_is_given_up(counted: Counted) -> None:
    with (
        explainer(counted.cluster.dsn(), "SELECT pg_sleep(30)", timeout_s=0.1) as session,
        pytest.raises(MeasurementError, match=r"did not end within 0\.1 s"),
    ):
        session.measure()


def test_a_wrong_query_is_reported(counted: Counted) -> None:
    dsn = counted.cluster.dsn()
    for query, message in (
        ("SELECT * FROM nowhere", "nowhere"),
        ("", "empty"),
        (" EXPLAIN SELECT 1", "in front"),
        ("COMMIT;", "cannot be explained"),
        ("VACUUM", "syntax error"),
    ):
        with pytest.raises(UsageError, match=message), explainer(dsn, query) as session:
            session.estimate()
    with pytest.raises(UsageError, match="6 pairs"):
        measure("SELECT 1", dsn, 3)
    with pytest.raises(MeasurementError, match="cannot connect"):
        measure("SELECT 1", "host=/nowhere")


def test_whether_the_server_is_on_this_machine(counted: Counted) -> None:
    with explainer(counted.cluster.dsn(), "SELECT 1") as session:
        assert session.local
