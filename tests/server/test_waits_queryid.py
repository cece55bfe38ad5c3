"""Waits of utility statements stand under the identifier that pg_stat_statements shows."""

from collections.abc import Iterator

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.servers import CAPTURING, run_program
from tests.sessions import eventually, one, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

TRANSACTIONS = 5


@pytest.fixture(scope="module", params=["statements first", "waits first"])
def both_modules(request: pytest.FixtureRequest, each_server: Binaries) -> Iterator[Cluster]:
    """Both modules; that which is loaded later is called first."""
    module = loadable(each_server, "wait_event_timing")
    preload = ["pg_stat_statements", module.library]
    if request.param == "waits first":
        preload.reverse()
    settings = {**CAPTURING, "pg_stat_statements.track_utility": True, "autovacuum": False}
    with Cluster(each_server, settings, preload=preload) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
            connection.execute("CREATE EXTENSION pg_stat_statements; CREATE TABLE t (i int)")
        script = cluster.directory / "commits.sql"
        script.write_text("BEGIN;\nINSERT INTO t VALUES (1);\nCOMMIT;\n")
        script.chmod(0o644)
        yield cluster


def commits(cluster: Cluster, protocol: str) -> None:
    options = ("-n", "-M", protocol, "-t", TRANSACTIONS)
    run_program(
        cluster, "pgbench", *options, "-f", cluster.directory / "commits.sql", cluster.dsn()
    )


@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_commits_are_booked_under_their_identifier(both_modules: Cluster, protocol: str) -> None:
    with session(both_modules) as observer:
        one(observer, "SELECT wait_event_timing_reset()")
        one(observer, "SELECT pg_stat_statements_reset() IS NOT NULL")
        commits(both_modules, protocol)
        synced = (
            "SELECT sum(waits)::int FROM pg_stat_wait_event_timing_statements "
            "JOIN pg_stat_statements USING (queryid) "
            "WHERE query = 'COMMIT' AND lower(wait_event) = 'walsync'"
        )
        # of a prepared COMMIT, pg_stat_statements counts only the first
        assert eventually(lambda: one(observer, synced)) == TRANSACTIONS


def test_trace_names_utility_statements(both_modules: Cluster) -> None:
    with session(both_modules) as traced, session(both_modules) as observer:
        traced.execute("SET wait_event_timing.capture = trace")
        traced.execute("CHECKPOINT")
        known = (
            "SELECT query FROM wait_event_trace(%s) JOIN pg_stat_statements USING (queryid) "
            "WHERE query = 'CHECKPOINT'"
        )
        pid = traced.info.backend_pid
        assert rows(observer, known, pid) == [("CHECKPOINT",)]
        begins = "SELECT count(*) FROM wait_event_trace(%s) WHERE queryid = 0"
        assert one(observer, begins, pid) == 0
