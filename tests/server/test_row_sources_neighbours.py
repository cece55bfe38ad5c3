"""Row sources in the trace, and together with modules that take over the same calls."""

from collections.abc import Iterator

import psycopg
import pytest
from bench import row_loads
from bench.row_loads import MODULES, Connection, row_sources, run

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.modules import loadable
from tests.servers import SESSIONS_LOAD_MODULES
from tests.trace_records import traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

EXACT, PARALLEL, UNFINISHED, BYPASSED = 1, 2, 4, 8


@pytest.fixture(scope="module")
def connection(each_server: Binaries) -> Iterator[Connection]:
    """A session on both servers, one after the other."""
    with row_loads.serving(each_server) as found:
        yield found


@pytest.mark.slow
def test_traced_statement_has_its_row_sources(connection: Connection) -> None:
    with psycopg.connect(connection.info.dsn, autocommit=True) as client:
        client.execute("SET sql_trace.rowsource_sampling = 16")
        trace = traced(connection, client, "SELECT count(*) FROM delays JOIN keys USING (i)")
    (record,) = trace.of("rowsources")
    execution = trace.one("execute", "SELECT count(*) FROM delays")
    assert record.call == execution.call
    assert record.sampling == 16
    by_rows = {entry["rows"]: entry for entry in record.entries}
    assert {1, row_loads.ROWS} == set(by_rows)
    (hashed,) = [entry for entry in record.entries if entry["flags"] & BYPASSED]
    (root,) = [entry for entry in record.entries if entry["rows"] == 1]
    assert root["flags"] & EXACT
    assert 0 < hashed["time"] <= root["time"] <= execution.busy
    for entry in record.entries:
        assert 0 <= entry["low"] <= entry["time"] <= entry["high"]


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("name", ["wheel", pytest.param("debian15", marks=pytest.mark.debian)])
@pytest.mark.slow
def test_module_that_takes_over_the_same_calls(
    request: pytest.FixtureRequest, name: str, ours_first: bool
) -> None:
    """Loaded later it is called closer to the nodes, and we leave the query to it."""
    binaries: Binaries = request.getfixturevalue(name)
    taker = loadable(binaries, "taker", MODULES)
    order = {"after" if ours_first else "before": [taker.library]}
    with row_loads.serving(binaries, rows=2000, **order) as connection:
        connection.execute(taker.create_sql.encode())
        connection.execute("SET search_path = public, sql_trace, idler, taker")
        query = "SELECT count(*), sum(k.i) FROM delays d JOIN keys k USING (i)"
        for every in (1, 16):
            assert connection.execute(query.encode()).fetchone() == (2000, 2001000)
            run(connection, query, every)
            sources = row_sources(connection)
            if ours_first:
                assert not sources
            else:
                assert sorted(s.rows or 0 for s in sources)[-1] == 2000
        ((calls,),) = connection.execute("SELECT taker_calls()").fetchall()
        assert calls > 0


@SESSIONS_LOAD_MODULES
def test_without_shared_memory_in_one_session(wheel: Binaries) -> None:
    """From PostgreSQL 17 on a session can load the library by itself."""
    ours = loadable(wheel, "sql_trace")
    idler = loadable(wheel, "idler", MODULES)
    from pgtare.postgres.cluster import Cluster

    with (
        Cluster(wheel, row_loads.SETTINGS) as cluster,
        psycopg.connect(cluster.dsn(), autocommit=True) as connection,
    ):
        connection.execute(f"LOAD '{ours.library}'".encode())
        connection.execute(ours.create_sql.encode())
        connection.execute(idler.create_sql.encode())
        row_loads.make_tables(connection, 20000)
        settings = (
            "SET LOCAL max_parallel_workers_per_gather = 2; SET LOCAL parallel_setup_cost = 0;"
            "SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0"
        )
        sources = run(connection, "SELECT count(*) FROM delays", 128, settings)
    (scan,) = [s for s in sources if s.node == "Seq Scan"]
    assert scan.rows == 20000
    assert scan.workers > 0
