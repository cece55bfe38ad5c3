"""PostgreSQL keeps working while everything is traced."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.server.account import server_account
from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable
from tests.server.waits_tools import eventually, names, one, rows, serving, session

pytest_plugins = ["tests.server.fix_waits"]
pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TRACE_ALL = {"wait_event_timing.capture": "trace", "wait_event_timing.trace_ring_records": 4096}


@pytest.fixture
def all_traced(binaries: Binaries) -> Iterator[Cluster]:
    with serving(binaries, TRACE_ALL) as cluster:
        yield cluster


def run(cluster: Cluster, *command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        check=True, capture_output=True, text=True, cwd="/", **cluster.run_as,
    )  # fmt: skip
    return done.stdout


def assert_nothing_was_lost(cluster: Cluster) -> None:
    with session(cluster) as connection:
        assert rows(
            connection, "SELECT overflows, negative_clock, missed FROM wait_event_timing_info()"
        ) == [(0, 0, 0)]
    log = cluster.log_path.read_text()
    assert "terminated by signal" not in log
    assert "PANIC" not in log


def test_dump_and_restore(all_traced: Cluster, open_directory: Path) -> None:
    pgbench = all_traced.binaries.pgbench
    open_directory.chmod(0o777)
    run(all_traced, pgbench, "-i", "-q", all_traced.dsn())
    run(all_traced, pgbench, "-t", "20", "-c", "4", all_traced.dsn())
    dump = open_directory / "dump"
    run(all_traced, all_traced.binaries.program("pg_dump"), "-Fd", "-j", "2", "-f", dump,
        "-t", "pgbench_*", all_traced.dsn())  # fmt: skip
    with all_traced.connect() as connection:
        connection.execute("CREATE DATABASE restored")
    run(all_traced, all_traced.binaries.program("pg_restore"), "-j", "2", "-d",
        all_traced.dsn("restored"), dump)  # fmt: skip
    sums = []
    for database in ("postgres", "restored"):
        with all_traced.connect(database) as connection:
            connection.execute("VACUUM (FULL, ANALYZE)")
            sums.append(one(connection, "SELECT sum(abalance) FROM pgbench_accounts"))
    assert sums[0] == sums[1]
    assert_nothing_was_lost(all_traced)


def test_standby_follows_and_is_promoted(binaries: Binaries, open_directory: Path) -> None:
    """walreceiver and startup process wait, and are watched, on the standby."""
    with serving(binaries, {**TRACE_ALL, "wal_keep_size": "64MB"}) as primary:
        open_directory.chmod(0o777)
        data = open_directory / "standby"
        run(primary, binaries.program("pg_basebackup"), "-D", data, "-R", "-c", "fast",
            "-d", primary.dsn())  # fmt: skip
        sockets = open_directory / "socket"
        sockets.mkdir()
        sockets.chmod(0o777)
        control = [binaries.program("pg_ctl"), "-D", data]
        hba = open_directory / "pg_hba.conf"
        hba.write_text("local all all trust\n")
        preload = primary_setting(primary, "shared_preload_libraries")
        options = (
            f"-k {sockets} -c listen_addresses= -c hba_file={hba} "
            f"-c shared_preload_libraries='{preload}' -c wait_event_timing.capture=trace"
        )
        run(primary, *control, "-w", "-l", open_directory / "log", "-o", options, "start")
        try:
            dsn = f"host={sockets} user=postgres dbname=postgres"
            with session(primary) as up, psycopg.connect(dsn, autocommit=True) as down:
                names(down)
                up.execute("CREATE TABLE t AS SELECT generate_series(1, 10000) AS i")
                eventually(lambda: table_has(down, 10000))
                query = "SELECT backend_type, wait_event FROM pg_stat_wait_event_timing_system"
                wanted = {("walreceiver", "WalReceiverMain"), ("startup", "RecoveryWalStream")}

                def seen() -> bool:
                    up.execute("INSERT INTO t VALUES (0)")
                    return wanted <= set(rows(down, query))

                eventually(seen)
                down.execute("SELECT pg_promote()")
                down.execute("INSERT INTO t VALUES (1)")
        finally:
            run(primary, *control, "-m", "fast", "stop")
        assert "terminated by signal" not in (open_directory / "log").read_text()


def primary_setting(cluster: Cluster, name: str) -> str:
    with cluster.connect() as connection:
        return str(one(connection, "SELECT current_setting(%s)", name))


def table_has(connection: psycopg.Connection[tuple[object, ...]], count: int) -> bool:
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        return bool(one(connection, "SELECT count(*) >= %s FROM t", count))
    return False


@pytest.mark.debian
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls(debian15: Binaries, open_directory: Path) -> None:
    """Reads and writes go through libssl, waits through the server's own latch."""
    open_directory.chmod(0o777)
    subprocess.run(
        ["openssl", "req", "-new", "-x509", "-nodes", "-subj", "/CN=localhost",
         "-out", open_directory / "crt", "-keyout", open_directory / "key"],
        check=True, capture_output=True, **server_account().run_as,
    )  # fmt: skip
    settings = {
        "ssl": True,
        "ssl_cert_file": str(open_directory / "crt"),
        "ssl_key_file": str(open_directory / "key"),
    }
    module = loadable(debian15, "wait_event_timing")
    with Cluster(
        debian15, {**TRACE_ALL, **settings}, preload=[module.library], tcp=True
    ) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        dsn = cluster.dsn(tcp=True, sslmode="require")
        with psycopg.connect(dsn, autocommit=True) as connection:
            names(connection)
            assert one(connection, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            for _ in range(20):
                connection.execute("SELECT pg_sleep(0.001), repeat('x', 100000)")
            query = "SELECT wait_event, waits FROM pg_stat_wait_event_timing WHERE pid = %s"
            found = dict(rows(connection, query, connection.info.backend_pid))
            assert found["PgSleep"] == 20
            assert found["ClientRead"] > 5
