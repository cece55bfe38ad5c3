"""PostgreSQL keeps working while everything is traced."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from bench.truth.loads import certificate
from bench.truth.standby import standby

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.servers import run_program, serving
from tests.sessions import eventually, one, rows, session, set_search_path

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

TRACE_ALL = {"wait_event_timing.capture": "trace", "wait_event_timing.trace_ring_records": 4096}


@pytest.fixture(scope="module")
def all_traced(each_server: Binaries) -> Iterator[Cluster]:
    """A server that traces everything, and vacuums as soon as it can."""
    quick = {"autovacuum_naptime": "1s", "autovacuum_vacuum_threshold": 1}
    with serving(each_server, {**TRACE_ALL, **quick}) as cluster:
        yield cluster


def assert_nothing_was_lost(cluster: Cluster) -> None:
    with session(cluster) as connection:
        assert rows(
            connection, "SELECT overflows, negative_clock, missed FROM wait_event_timing_info()"
        ) == [(0, 0, 0)]
    log = cluster.log_path.read_text()
    assert "terminated by signal" not in log
    assert "PANIC" not in log


@pytest.mark.slow
def test_every_protocol_dump_and_restore(all_traced: Cluster, open_directory: Path) -> None:
    open_directory.chmod(0o777)
    run_program(all_traced, "pgbench", "-i", "-q", all_traced.dsn())
    for protocol in ("simple", "extended", "prepared"):
        options = ("-M", protocol, "-t", 20, "-c", 4)
        output = run_program(all_traced, "pgbench", *options, all_traced.dsn())
        assert "number of transactions actually processed: 80/80" in output
    dump = open_directory / "dump"
    directory = ("-Fd", "-j", 2, "-f", dump)
    run_program(all_traced, "pg_dump", *directory, "-t", "pgbench_*", all_traced.dsn())
    with all_traced.connect() as connection:
        connection.execute("CREATE DATABASE restored")
    run_program(all_traced, "pg_restore", "-j", 2, "-d", all_traced.dsn("restored"), dump)
    sums = []
    for database in ("postgres", "restored"):
        with all_traced.connect(database) as connection:
            connection.execute("VACUUM (FULL, ANALYZE)")
            sums.append(one(connection, "SELECT sum(abalance) FROM pgbench_accounts"))
    assert sums[0] == sums[1]
    assert_nothing_was_lost(all_traced)


def test_vacuum_and_autovacuum(all_traced: Cluster) -> None:
    """VACUUM with parallel workers, VACUUM FULL, CLUSTER, REINDEX, and autovacuum meanwhile."""
    with session(all_traced) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT i, i % 7 AS j, repeat('x', 50) AS filler "
            "FROM generate_series(1, 20000) i"
        )
        connection.execute("SET min_parallel_index_scan_size = 0")
        for column in ("i", "j"):
            connection.execute(f"CREATE INDEX t_{column} ON t ({column})".encode())
        connection.execute("DELETE FROM t WHERE i % 3 = 0")
        connection.execute("VACUUM (PARALLEL 2, ANALYZE) t")
        connection.execute("DELETE FROM t WHERE i % 3 = 1")
        query = "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 't'"
        eventually(lambda: one(connection, query) > 0, 90)
        connection.execute("VACUUM FULL t")
        connection.execute("CLUSTER t USING t_i")
        connection.execute("REINDEX TABLE t")
        assert one(connection, "SELECT count(*) FROM t") == 6667
        seen = rows(
            connection, "SELECT DISTINCT backend_type FROM pg_stat_wait_event_timing_system"
        )
        assert {("autovacuum worker",), ("logical replication launcher",)} <= set(seen)
        assert_nothing_was_lost(all_traced)


@pytest.mark.slow
def test_standby_follows_and_is_promoted(binaries: Binaries) -> None:
    """walreceiver and startup process wait, and are watched, on the standby."""
    with (
        serving(binaries, {**TRACE_ALL, "wal_keep_size": "64MB"}) as primary,
        standby(primary, {"wait_event_timing.capture": "trace"}) as other,
        session(primary) as up,
        psycopg.connect(other.dsn, autocommit=True) as down,
    ):
        set_search_path(down)
        up.execute("CREATE TABLE t AS SELECT generate_series(1, 10000) AS i")
        eventually(lambda: table_has(down, 10000))
        query = "SELECT backend_type, wait_event FROM pg_stat_wait_event_timing_system"
        wanted = {("walreceiver", "WalReceiverMain"), ("startup", "RecoveryWalStream")}

        def seen() -> bool:
            up.execute("INSERT INTO t VALUES (0)")
            return wanted <= set(rows(down, query))

        eventually(seen)
        sender = "SELECT wait_event FROM pg_stat_wait_event_timing WHERE backend_type = 'walsender'"
        wal_read = "WalRead" if binaries.major >= 17 else "WALRead"
        assert {"WalSenderMain", wal_read} <= {event for (event,) in rows(up, sender)}
        down.execute("SELECT pg_promote()")
        down.execute("INSERT INTO t VALUES (1)")
        assert rows(
            down, "SELECT overflows, negative_clock, missed FROM wait_event_timing_info()"
        ) == [(0, 0, 0)]
        assert "terminated by signal" not in other.log.read_text()


def table_has(connection: psycopg.Connection[tuple[object, ...]], count: int) -> bool:
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        return bool(one(connection, "SELECT count(*) >= %s FROM t", count))
    return False


@pytest.mark.debian
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls(debian15: Binaries) -> None:
    """Reads and writes go through libssl, waits through the server's own latch."""
    module = loadable(debian15, "wait_event_timing")
    with (
        certificate() as settings,
        Cluster(debian15, {**TRACE_ALL, **settings}, preload=[module.library], tcp=True) as cluster,
    ):
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        dsn = cluster.dsn(tcp=True, sslmode="require")
        with psycopg.connect(dsn, autocommit=True) as connection:
            set_search_path(connection)
            assert one(connection, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            for _ in range(20):
                connection.execute("SELECT pg_sleep(0.001), repeat('x', 100000)")
            query = "SELECT wait_event, waits FROM pg_stat_wait_event_timing WHERE pid = %s"
            found = dict(rows(connection, query, connection.info.backend_pid))
            assert found["PgSleep"] == 20
            assert found["ClientRead"] > 5
