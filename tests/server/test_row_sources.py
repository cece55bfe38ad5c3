"""Row sources with sampled times, on PostgreSQL 18 and 15."""

import contextlib
import re
from collections.abc import Iterator
from statistics import median
from typing import Any

import psycopg
import pytest
from bench import row_loads, row_truth
from bench.row_loads import HASHED, NESTED, PARALLEL, TRUTHS, Connection, found_in, root_of, run

from pgtare.postgres.binaries import Binaries
from tests.sessions import executed_s, one
from tests.trace_records import traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Flag of a traced node: parallel workers' part is in it.
PARALLEL_PART = 2
BITMAPS = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off;"
    "SET LOCAL enable_indexonlyscan = off"
)


@pytest.fixture(scope="module")
def connection(each_server: Binaries) -> Iterator[Connection]:
    """A session with the tables of the loads, on both servers one after the other."""
    with row_loads.serving(each_server) as found:
        found.execute(
            "CREATE TABLE many AS SELECT i, i % 10 AS k FROM generate_series(1, 20000) i;"
            "CREATE INDEX ON many (i); CREATE INDEX ON many (k);"
            "CREATE TABLE few AS SELECT i * 4 AS i FROM generate_series(1, 5000) i;"
        )
        found.execute("VACUUM ANALYZE many, few")
        yield found


@pytest.fixture
def connection18(wheel: Binaries, connection: Connection) -> Connection:
    if connection.info.server_version < 180000:
        pytest.skip("EXPLAIN (SAMPLING) needs PostgreSQL 18")
    return connection


def actual(connection: Connection, query: str, settings: str) -> list[tuple[int, int]]:
    """What PostgreSQL itself counts: loops and rows of each node, in the order of the plan."""
    with connection.transaction():
        if settings:
            connection.execute(settings.encode())
        ((plan,),) = connection.execute(
            f"EXPLAIN (ANALYZE, TIMING off, FORMAT json) {query}".encode()
        ).fetchall()
    found = []

    def walk(node: dict[str, Any]) -> None:
        found.append((node["Actual Loops"], round(node["Actual Rows"] * node["Actual Loops"])))
        for child in node.get("Plans", []):
            walk(child)

    walk(plan[0]["Plan"])
    return found


QUERIES = {
    "scan": ("SELECT count(*) FROM many WHERE i % 3 = 0", ""),
    "nested loop": ("SELECT count(*) FROM few JOIN many USING (i)", NESTED),
    "hash join": ("SELECT count(*) FROM few JOIN many USING (i)", HASHED),
    "sort": ("SELECT count(*) FROM (SELECT * FROM many ORDER BY md5(i::text) OFFSET 0) x", ""),
    "init plan": ("SELECT count(*) FROM many WHERE k > (SELECT avg(i % 10) FROM few)", ""),
    "modifying": ("INSERT INTO few SELECT -i FROM few RETURNING i", ""),
    "early stop": ("SELECT * FROM (SELECT i FROM many OFFSET 0) x LIMIT 700", ""),
    "recursion": (
        "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 3000)"
        " SELECT count(*) FROM r",
        "",
    ),
}


@pytest.mark.parametrize("every", [1, 7, 128])
@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_exact(connection: Connection, name: str, every: int) -> None:
    query, settings = QUERIES[name]
    with contextlib.ExitStack() as undone:
        undone.enter_context(connection.transaction(force_rollback=True))
        sources = run(connection, query, every, settings)
    with connection.transaction(force_rollback=True):
        expected = actual(connection, query, settings)
    # PostgreSQL rounds rows to those of one loop
    rounding = max(0 if loops == 1 else loops * 0.51 for loops, _ in expected)
    assert sorted(s.rows or 0 for s in sources) == pytest.approx(
        sorted(rows for _, rows in expected), abs=rounding
    )
    by_id = {source.node_id: source for source in sources}
    for source in sources:
        # no child takes longer than its parent
        if source.parent_id is not None:
            assert source.time <= by_id[source.parent_id].high * 1.000001
        assert 0 <= source.low <= source.time <= source.high
        assert source.calls >= source.rows if source.told_by == "calls" else True
        assert source.timed == source.calls or every > 1 or source.told_by != "calls"


# slow: on a machine that other work preempts all the time, nodes are at times further off
@pytest.mark.slow
@pytest.mark.parametrize("load", TRUTHS, ids=lambda load: str(load.name))
def test_delays_are_found(connection: Connection, load: row_loads.Load) -> None:
    """None is far off unless its interval says so; how often that covers is for the slow test."""
    for truth in row_truth.repeat(connection, load, 128, 4).values():
        for error, covered in zip(truth.error, truth.covered, strict=True):
            assert covered or abs(error) < 0.5, truth
        assert sum(truth.covered) >= 1, truth


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_intervals_cover(connection: Connection) -> None:
    """95 % intervals: below 85 of 100 once in 10,000 times."""
    for load in TRUTHS:
        for truth in row_truth.repeat(connection, load, 128, 100).values():
            assert truth.coverage >= 0.85, (load.name, truth.node)
            if median(truth.share) > 0.1:
                assert abs(median(truth.error)) < 0.1, (load.name, truth.node)


def test_first_call_that_builds_a_hash_table_is_exact(connection: Connection) -> None:
    """The long one of 1,001 calls, which a sample would miss."""
    query = (
        "SELECT * FROM (SELECT i FROM few LIMIT 1000) f JOIN"
        " (SELECT i FROM delays WHERE idle_for(1, 10) AND (i + 0) % 1 = 0 OFFSET 0) d USING (i)"
    )
    settings = f"{HASHED}; SET LOCAL join_collapse_limit = 1"
    connection.execute("SELECT idled_reset()")
    sources = run(connection, query, 128, settings)
    delayed = row_loads.idled(connection, [1])
    join = found_in(sources, "Hash Join", None)
    assert delayed >= 100
    assert delayed <= join.time <= delayed * 1.5
    assert delayed <= found_in(sources, "Hash", None).time <= join.time * 1.000001


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 128])
def test_what_is_changed_at_the_end_is_no_part_of_the_root(
    connection: Connection, every: int
) -> None:
    """Nobody reads the rows deleted: most of the deletion follows the last row of the query."""
    query = (
        "WITH slow AS MATERIALIZED (SELECT i FROM many WHERE i < 30 AND idle_for(1, 1000)),"
        " gone AS (DELETE FROM few WHERE i IN (SELECT i FROM slow) AND idle_for(1, 1000)"
        " RETURNING i) SELECT i FROM delays LIMIT 3"
    )
    connection.execute("SELECT idled_reset()")
    with connection.transaction(force_rollback=True):
        sources = run(connection, query, every, HASHED)
    delayed = row_loads.idled(connection, [1])
    assert delayed >= 35
    deleting = found_in(sources, "ModifyTable", None)
    assert delayed <= deleting.time <= delayed * 1.5
    assert [s.time >= 29 for s in sources if s.relation == "many"] == [True]
    assert root_of(sources).high < 10
    assert all(s.low <= s.time <= s.high for s in sources)


def test_a_fetch_that_failed_hides_no_later_statement(connection: Connection) -> None:
    """Its cursor stays until the transaction ends, though the error was caught."""
    connection.execute(
        """
        CREATE OR REPLACE FUNCTION fetch_and_fail() RETURNS void LANGUAGE plpgsql AS $$
        DECLARE open_cursor CURSOR FOR SELECT 1 / (i - i) FROM few;
        BEGIN
            OPEN open_cursor;
            BEGIN
                MOVE open_cursor;
            EXCEPTION WHEN division_by_zero THEN NULL;
            END;
        END $$
        """
    )
    with connection.transaction():
        connection.execute("SET LOCAL sql_trace.level = 1")
        connection.execute("SET LOCAL sql_trace.rowsource_sampling = 1")
        connection.execute("SELECT fetch_and_fail()")
        connection.execute("SELECT count(*) FROM many")
        sources = row_loads.row_sources(connection)
    assert root_of(sources).node == "Aggregate"
    assert found_in(sources, "Seq Scan", "many").rows == 20_000


def test_one_long_call_is_not_multiplied(connection: Connection) -> None:
    """Sampled or not: it took half of the time, not 128 times as much."""
    for at in range(6000, 6010):
        connection.execute("SELECT idled_reset()")
        query = (
            "SELECT count(*) FROM many WHERE"
            f" CASE WHEN i = {at} THEN idle_for(1, 20000) ELSE i > 0 END"
        )
        sources = run(connection, query, 128)
        scan = found_in(sources, "Seq Scan", "many")
        root = root_of(sources)
        assert scan.time <= root.time
        assert scan.high >= row_loads.idled(connection, [1])


def test_bitmaps_are_reported_by_the_scan_above(connection: Connection) -> None:
    query = "SELECT count(*) FROM many WHERE i < 9000 AND k = 3"
    sources = run(connection, query, 128, BITMAPS)
    scan = found_in(sources, "Bitmap Heap Scan", "many")
    for source in sources:
        if source.told_by == "parent":
            assert source.rows is None
            assert source.high <= scan.high
    assert {"parent"} == {s.told_by for s in sources if s.node.startswith("Bitmap ") and s != scan}


@pytest.mark.parametrize("leader", ["on", "off"])
@pytest.mark.parametrize("query", ["many", "few JOIN many USING (i)"])
def test_parallel_workers_are_merged(connection: Connection, query: str, leader: str) -> None:
    settings = f"{PARALLEL}; {HASHED}; SET LOCAL parallel_leader_participation = {leader}"
    sources = run(connection, f"SELECT count(*) FROM {query}", 128, settings)
    scan = found_in(sources, "Seq Scan", "many")
    below = [s for s in sources if s.workers > 0]
    assert scan.rows == 20000
    assert scan.workers in (1, 2)
    assert scan.low <= scan.time <= scan.high
    for join in [s for s in below if s.node == "Hash Join"]:
        assert join.rows == 5000


def test_only_the_leaders_statement_is_merged(connection: Connection) -> None:
    """Another session's parallel query meanwhile leaves no trace in ours."""
    with psycopg.connect(connection.info.dsn, autocommit=True) as other:
        other.execute("SET search_path = public, sql_trace, idler")
        assert run(other, "SELECT count(*) FROM many", 128, PARALLEL)
    sources = run(connection, "SELECT count(*) FROM many", 128, PARALLEL)
    assert found_in(sources, "Seq Scan", "many").rows == 20000


def test_cursor_counts_no_time_between_fetches(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("SET LOCAL sql_trace.level = 1")
        connection.execute("SET LOCAL sql_trace.rowsource_sampling = 128")
        connection.execute("DECLARE c CURSOR FOR SELECT i FROM many")
        fetched_s = executed_s(connection, "FETCH 3000 FROM c")
        connection.execute("SELECT pg_sleep(0.2)")
        fetched_s += executed_s(connection, "FETCH 3000 FROM c")
        connection.execute("CLOSE c")
    scan = root_of(row_loads.row_sources(connection))
    assert scan.calls == scan.rows == 6000
    # a fetch may be kept from the processor for a while
    assert scan.high < 150 + 1000 * fetched_s


@pytest.mark.parametrize("every", [1, 128])
def test_errors_leave_nothing_behind(connection: Connection, every: int) -> None:
    """More often than there are functions in the pool."""
    for _ in range(150):
        with pytest.raises(psycopg.errors.DivisionByZero):
            run(connection, "SELECT 1 / (i - 5000) FROM many", every)
    sources = run(connection, "SELECT count(*) FROM many", every)
    assert found_in(sources, "Seq Scan", "many").calls == 20001


def test_caught_errors_and_nested_statements(connection: Connection) -> None:
    connection.execute(
        "CREATE OR REPLACE FUNCTION tried(i int) RETURNS int LANGUAGE plpgsql AS $$BEGIN"
        " PERFORM count(*) / (tried.i % 2) FROM few; RETURN 1;"
        " EXCEPTION WHEN division_by_zero THEN RETURN 0; END$$"
    )
    sources = run(connection, "SELECT sum(tried(i)) FROM many WHERE i <= 40", 16)
    assert [s.rows for s in sources] == [1, 40]


def test_large_plan(connection: Connection) -> None:
    """More nodes than there are functions in the pool."""
    query = " UNION ALL ".join(["SELECT i FROM few"] * 300)
    sources = run(connection, f"SELECT count(*) FROM ({query}) x", 128)
    scans = [s for s in sources if s.node == "Seq Scan"]
    assert len(scans) == 300
    assert {s.rows for s in scans} == {5000}


def test_rows_locked_by_others_are_looked_at_anew(connection: Connection) -> None:
    """EvalPlanQual runs a plan of its own, which is not measured, and does no harm."""
    with psycopg.connect(connection.info.dsn) as holder:
        connection.execute("CREATE TABLE IF NOT EXISTS held (i int, n int)")
        connection.execute("TRUNCATE held; INSERT INTO held VALUES (1, 0)")
        holder.execute("UPDATE held SET n = 1")
        connection.execute("SET sql_trace.rowsource_sampling = 1; SET sql_trace.level = 1")
        pid = connection.info.backend_pid
        with psycopg.connect(connection.info.dsn, autocommit=True) as watcher:
            import threading
            import time

            def release() -> None:
                while not watcher.execute(
                    "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", (pid,)
                ).fetchone():
                    time.sleep(0.01)
                holder.commit()

            thread = threading.Thread(target=release)
            thread.start()
            connection.execute("UPDATE held SET n = n + 1 WHERE n >= 0")
            thread.join()
        connection.execute("RESET sql_trace.rowsource_sampling; RESET sql_trace.level")
    assert connection.execute("SELECT n FROM held").fetchone() == (2,)
    assert found_in(row_loads.row_sources(connection), "Seq Scan", "held").rows == 1


@pytest.mark.parametrize("sampling", [0, 128])
def test_nothing_is_measured_when_off(connection: Connection, sampling: int) -> None:
    """Nor if nothing is traced: others are not to pay for what stands in a configuration file."""
    run(connection, "SELECT count(*) FROM few", 128)
    connection.execute(f"SET sql_trace.rowsource_sampling = {sampling}".encode())
    connection.execute("SELECT count(*) FROM many")
    connection.execute("RESET sql_trace.rowsource_sampling")
    assert found_in(row_loads.row_sources(connection), "Seq Scan", "few")


def test_workers_of_a_statement_within_itself(connection: Connection) -> None:
    """The inner execution's are not taken for those of the outer one, whose text is the same."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION total(n int) RETURNS int LANGUAGE plpgsql PARALLEL RESTRICTED"
        " AS $$BEGIN PERFORM count(*) + CASE WHEN n > 0 THEN total(n - 1) ELSE 0 END FROM many;"
        " RETURN 1; END$$"
    )
    with psycopg.connect(connection.info.dsn, autocommit=True) as client:
        client.execute(PARALLEL.replace("LOCAL ", "").encode())
        client.execute("SET sql_trace.rowsource_sampling = 16")
        trace = traced(connection, client, "SELECT total(2)")
    nested = [record.entries for record in trace.of("rowsources") if record.depth > 0]
    assert [entries[-1]["rows"] for entries in nested] == [20000] * 3
    assert sum(bool(entries[-1]["flags"] & PARALLEL_PART) for entries in nested) >= 2


def test_statements_of_others_are_not_reported(connection: Connection) -> None:
    """What a procedure ran with its owner's rights is not for its caller."""
    connection.execute(
        "CREATE ROLE caller; CREATE OR REPLACE PROCEDURE owners() SECURITY DEFINER "
        "LANGUAGE plpgsql AS $$BEGIN PERFORM count(*) FROM few; END$$;"
    )
    if one(connection, "SELECT to_regnamespace('sql_trace') IS NOT NULL"):
        connection.execute("GRANT USAGE ON SCHEMA sql_trace TO caller")
    read = "SELECT count(*) FROM sql_trace_row_sources()"
    try:
        connection.execute("SET sql_trace.level = 1; SET sql_trace.rowsource_sampling = 16")
        connection.execute("SET ROLE caller; CALL owners()")
        theirs = one(connection, read)
        connection.execute("SELECT 1; RESET ROLE; CALL owners()")
        assert (theirs, one(connection, read) > 0) == (0, True)
    finally:
        connection.execute(
            "RESET ROLE; RESET sql_trace.rowsource_sampling; RESET sql_trace.level;"
            "DROP OWNED BY caller; DROP ROLE caller"
        )


def test_a_failed_look_hides_no_later_statement(connection: Connection) -> None:
    """Of a statement that reads the row sources of the one before, and fails, nothing stays."""
    read = "SELECT sum(rows) FROM sql_trace_row_sources() WHERE parent_id IS NULL"
    connection.execute("SET sql_trace.level = 1; SET sql_trace.rowsource_sampling = 1")
    try:
        connection.execute("SELECT count(*) FROM few")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT rows / 0 FROM sql_trace_row_sources()")
        connection.execute("SELECT generate_series(1, 3)")
        assert (one(connection, read), one(connection, read)) == (3, 3)
    finally:
        connection.execute("RESET sql_trace.rowsource_sampling; RESET sql_trace.level")


# EXPLAIN (ANALYZE, SAMPLING), PostgreSQL 18


def explained(connection: Connection, query: str, options: str = "") -> list[dict[str, Any]]:
    """The nodes of a plan that EXPLAIN has sampled."""
    ((plan,),) = connection.execute(
        f"EXPLAIN (ANALYZE, SAMPLING 128, FORMAT json {options}) {query}".encode()
    ).fetchall()
    nodes: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        nodes.append(node)
        for child in node.get("Plans", []):
            walk(child)

    walk(plan[0]["Plan"])
    return nodes


def test_explain_shows_samples_and_exact_rows(connection18: Connection) -> None:
    for query, settings in QUERIES.values():
        with connection18.transaction(force_rollback=True):
            if settings:
                connection18.execute(settings.encode())
            expected = actual(connection18, query, "")
        with connection18.transaction(force_rollback=True):
            if settings:
                connection18.execute(settings.encode())
            nodes = explained(connection18, query)
        for node, (loops, rows) in zip(nodes, expected, strict=True):
            assert node["Actual Loops"] == loops
            assert round(node["Actual Rows"] * loops) == pytest.approx(rows, abs=loops * 0.006)
            assert "Actual Total Time" not in node
            sampled = node["Sampled"]
            assert sampled["Time Low"] <= sampled["Time"] <= sampled["Time High"]


def test_explain_in_text_with_timing_and_of_a_prepared_statement(connection18: Connection) -> None:
    found = connection18.execute(
        "EXPLAIN (ANALYZE, SAMPLING, COSTS off) SELECT count(*) FROM many"
    ).fetchall()
    text = "\n".join(line for (line,) in found)
    assert re.search(r"Sampled: calls=2 time=[\d.]+ ms \(each call timed\)", text)
    assert re.search(
        r"Sampled: calls=20001 time=[\d.]+ ms \(95% interval [\d.]+ to [\d.]+\), \d+ calls timed",
        text,
    )
    assert "Sampling: 128" in text
    root, scan = explained(connection18, "SELECT count(*) FROM many", ", TIMING, BUFFERS")
    assert scan["Shared Hit Blocks"] > 0
    assert scan["Actual Total Time"] > 0
    assert (scan["Sampled"]["Calls"], root["Sampled"]["Calls"]) == (20001, 2)
    connection18.execute("PREPARE counted AS SELECT count(*) FROM many")
    root = explained(connection18, "EXECUTE counted")[0]
    assert root["Sampled"]["Calls"] == 2
    connection18.execute("DEALLOCATE counted")


def test_explain_with_parallel_workers(connection18: Connection) -> None:
    with connection18.transaction():
        connection18.execute(PARALLEL.encode())
        nodes = explained(connection18, "SELECT count(*) FROM many")
    (scan,) = [node for node in nodes if node["Node Type"] == "Seq Scan"]
    assert scan["Sampled"]["Rows"] == 20000
    assert round(scan["Actual Rows"] * scan["Actual Loops"]) == pytest.approx(20000, abs=1)
    assert scan["Sampled"]["Workers"] in (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("SAMPLING 4", "SAMPLING requires ANALYZE"),
        ("ANALYZE, SAMPLING 0", "SAMPLING must be between 1 and 65536"),
        ("ANALYZE, SAMPLING 'much'", "sampling requires an integer value"),
    ],
)
def test_explain_options_that_make_no_sense(
    connection18: Connection, options: str, message: str
) -> None:
    with pytest.raises(psycopg.Error, match=message):
        connection18.execute(f"EXPLAIN ({options}) SELECT 1".encode())


def test_explain_that_fails_samples_nothing_later(connection18: Connection) -> None:
    run(connection18, "SELECT count(*) FROM few", 128)
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection18.execute("EXPLAIN (ANALYZE, SAMPLING 4) SELECT 1 / (random() * 0)::int")
    connection18.execute("EXPLAIN ANALYZE SELECT count(*) FROM many")
    assert found_in(row_loads.row_sources(connection18), "Seq Scan", "few")
    with connection18.transaction():  # a table that exists is not made, and there is no plan
        connection18.execute(
            "EXPLAIN (ANALYZE, SAMPLING 4) CREATE TABLE IF NOT EXISTS few AS SELECT 1"
        )
        found = connection18.execute("EXPLAIN (ANALYZE) SELECT count(*) FROM many").fetchall()
    assert "Sampl" not in "\n".join(line for (line,) in found)
