"""Row sources of plans that PostgreSQL runs in other ways: compiled, asynchronous, very large."""

from collections.abc import Iterator

import pytest
from bench import row_loads
from bench.row_loads import PARALLEL, Connection, found_in, root_of, run

from pgtare.postgres.binaries import Binaries

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

COMPILED = (
    "SET LOCAL jit = on; SET LOCAL jit_above_cost = 0; SET LOCAL jit_inline_above_cost = 0;"
    "SET LOCAL jit_optimize_above_cost = 0"
)


@pytest.fixture(scope="module")
def connection(each_server: Binaries) -> Iterator[Connection]:
    """A session on both servers, one after the other."""
    with row_loads.serving(each_server, rows=5000) as found:
        yield found


@pytest.mark.slow
def test_compilation_is_in_the_calls_that_wait_for_it(connection: Connection) -> None:
    with connection.transaction():
        connection.execute(COMPILED.encode())  # where it is off, it is not available
        if connection.execute("SELECT pg_jit_available()").fetchone() != (True,):
            pytest.skip("the server has no JIT")
    query = "SELECT sum(i + 1) FROM delays WHERE i % 7 <> 0 AND i % 11 <> 1"
    (rows,) = connection.execute(query.replace("sum(i + 1)", "count(*)")).fetchone() or (0,)
    plain = run(connection, query, 128)
    compiled = run(connection, query, 128, COMPILED)
    for sources in (plain, compiled):
        assert found_in(sources, "Seq Scan", "delays").rows == rows
        assert root_of(sources).timed == root_of(sources).calls == 2
    # compiling takes milliseconds at the least, the scan by itself less than one
    assert root_of(compiled).time > root_of(plain).time + 2
    assert found_in(compiled, "Seq Scan", "delays").low <= root_of(compiled).time


def test_scans_of_an_asynchronous_append_are_not_reported(connection: Connection) -> None:
    info = connection.info
    connection.execute("CREATE EXTENSION IF NOT EXISTS postgres_fdw SCHEMA public")
    connection.execute(
        f"CREATE SERVER again FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{info.host}',"
        f" port '{info.port}', dbname '{info.dbname}', async_capable 'true')".encode()
    )
    connection.execute(
        f"CREATE USER MAPPING FOR CURRENT_USER SERVER again OPTIONS (user '{info.user}')".encode()
    )
    connection.execute("CREATE TABLE remote (i int) PARTITION BY RANGE (i)")
    for table, low, high in (("delays", 0, 2500), ("keys", 2500, 9999)):
        connection.execute(
            f"CREATE FOREIGN TABLE remote_{table} PARTITION OF remote FOR VALUES FROM ({low})"
            f" TO ({high}) SERVER again OPTIONS (table_name '{table}')".encode()
        )
    sources = run(connection, "SELECT count(*) FROM remote", 128)
    scans = [s for s in sources if s.node == "Foreign Scan"]
    append = found_in(sources, "Append", None)
    assert append.rows == 10_000  # neither table is restricted to its range
    assert append.calls == 10_001
    assert append.low <= append.time <= append.high <= root_of(sources).time * 1.001
    assert [(s.told_by, s.calls, s.time) for s in scans] == [("none", 0, 0)] * 2


def test_more_nodes_below_gather_than_are_merged(connection: Connection) -> None:
    """Those beyond the limit show what the leader did; the others, what all did."""
    scans = 140
    query = " UNION ALL ".join(["SELECT i FROM delays"] * scans)
    sources = run(connection, f"SELECT count(*) FROM ({query}) x", 128, PARALLEL)
    below = [s for s in sources if s.node == "Seq Scan"]
    merged, rest = [s for s in below if s.workers > 0], [s for s in below if s.workers == 0]
    assert found_in(sources, "Append", None).rows == scans * 5000
    assert len(below) == scans
    assert 100 < len(merged) < 128
    assert all(s.rows == 5000 for s in merged)
    assert all((s.rows or 0) <= 5000 for s in rest)
    assert all(s.low <= s.time <= s.high for s in sources)


def test_a_clock_that_is_new_while_an_open_cursor_takes_up_the_pool(connection: Connection) -> None:
    """What its readings cost cannot be found out then; the server lives, and calls are timed."""
    wide = " UNION ALL ".join(["SELECT i FROM delays"] * 140)
    clock = "SET LOCAL sql_trace.clock = syscall"
    with connection.transaction():
        connection.execute("SET LOCAL sql_trace.level = 1")
        connection.execute("SET LOCAL sql_trace.rowsource_sampling = 128")
        connection.execute(f"DECLARE wide CURSOR FOR {wide}".encode())
        connection.execute("FETCH wide")
        sources = run(connection, "SELECT count(*) FROM delays", 128, clock)
    scan = found_in(sources, "Seq Scan", "delays")
    assert (scan.rows, scan.calls) == (5000, 5001)
    assert 0 < scan.low <= scan.time <= scan.high
