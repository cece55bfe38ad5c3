"""Who keeps old rows, and how full the lock table is, as real servers show it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgtare.observing.doctor.session import connected
from pgtare.observing.findings import queries, read, server_findings
from pgtare.observing.findings.observation import ELSEWHERE
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.servers import SLOWLY_ON_15
from tests.sessions import eventually, one, until_it_waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

#: So that a transaction keeps a predicate lock for each row that it reads.
BY_ROW = {"max_pred_locks_per_page": 1000, "max_pred_locks_per_relation": 5000}


@pytest.fixture(scope="module", params=SLOWLY_ON_15)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    binaries: Binaries = request.getfixturevalue(request.param)
    with Cluster(binaries, {"wal_level": "logical", **BY_ROW}) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE DATABASE crm")
            for name in ("customers", "orders"):
                connection.execute(
                    f"CREATE TABLE {name} AS SELECT i AS id, 0 AS n FROM generate_series(1, 1000) i"
                )
                connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        yield cluster


def test_a_transaction_of_another_database_is_named_and_not_who_sees_it(server: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(server.connect())
        cron, report = (stack.enter_context(server.connect("crm")) for _ in range(2))
        web = stack.enter_context(server.connect())
        theirs, reports = cron.info.backend_pid, report.info.backend_pid
        report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1")
        for _ in range(5):
            admin.execute("SELECT pg_current_xact_id()")
        cron.execute("BEGIN")
        cron.execute("CREATE TABLE visits (id int)")
        for _ in range(5):
            admin.execute("SELECT pg_current_xact_id()")
        report.execute("SELECT pg_current_xact_id()")  # all that others see of it is this number
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(web.cancel)
        pool.submit(web.execute, "SELECT pg_sleep(90)")
        asleep = "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: one(admin, asleep, web.info.backend_pid))
        with connected(server.dsn()) as session:
            found = {holder.kind: holder for holder in read.now(session).horizon}
            assert read.slots(session, server.binaries.major) == ()
    assert (found["session"].pid, found["session"].database) == (theirs, "crm")
    assert (found[ELSEWHERE].pid, found[ELSEWHERE].database) == (reports, "crm")
    assert found[ELSEWHERE].age_xids - 5 == found["session"].age_xids >= 5


def test_the_first_copy_of_a_subscription_is_a_session_and_no_standby(server: Cluster) -> None:
    slot = "CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL pgoutput USE_SNAPSHOT"
    with psycopg.connect(server.dsn(replication="database"), autocommit=True) as copying:
        copying.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        copying.execute(slot)
        pid = copying.info.backend_pid
        with connected(server.dsn()) as session:
            (holder,) = (one for one in read.now(session).horizon if not one.is_slot)
            found = {one.pid: one for one in read.sample(session, 0.0, 1.0, ()).sessions}
    assert (holder.kind, holder.pid) == ("session", pid)
    _, (fix,) = server_findings.held_by(holder, found[pid])
    assert fix.does == "let the walsender finish: it must not be ended"


def test_what_a_serializable_transaction_has_read_is_not_in_the_lock_table(server: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(server.connect())
        holder, reader = (stack.enter_context(server.connect()) for _ in range(2))
        holder.execute("BEGIN")
        holder.execute("UPDATE orders SET n = 1 WHERE id = 1")
        waiter = reader.info.backend_pid
        reader.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        reader.execute("SET LOCAL enable_seqscan = off")
        reader.execute("SET LOCAL enable_bitmapscan = off")
        reader.execute("SELECT * FROM customers WHERE id BETWEEN 1 AND 1000")
        kept = "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'"
        assert one(admin, kept) > 500
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(reader.cancel)
        pool.submit(reader.execute, "UPDATE orders SET n = 2 WHERE id = 1")
        until_it_waits(admin, reader, "Lock")
        with connected(server.dsn()) as session:
            table = read.lock_table(session)
            locks = read.locks(session.rows(queries.LOCKS))
    assert table is not None
    assert table.objects < 100
    assert locks[waiter].object == "rows of orders"


def test_statistics_are_known_though_counters_were_lost(server: Cluster) -> None:
    """As after a crash. Whoever may not read a table does not say that it has none."""
    with server.connect() as admin:
        admin.execute("DROP ROLE IF EXISTS watcher")
        admin.execute("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher")
        admin.execute("CREATE TABLE cabins AS SELECT i AS id FROM generate_series(1, 200000) i")
        admin.execute("ALTER TABLE cabins SET (autovacuum_enabled = off)")

        def analyzed(role: str) -> bool:
            admin.execute("SELECT pg_stat_reset_single_table_counters('cabins'::regclass)")
            admin.execute("SELECT count(*) FROM cabins")
            admin.execute("SELECT pg_stat_force_next_flush()")
            admin.execute("SELECT 1")
            with connected(f"{server.dsn()} user={role}") as session:
                return read.tables(session)["cabins"].analyzed

        owner: str = one(admin, "SELECT current_user")
        try:
            assert not analyzed("watcher")  # its rows were never counted
            admin.execute("VACUUM cabins")
            assert (analyzed(owner), analyzed("watcher")) == (False, True)
            admin.execute("ANALYZE cabins")
            assert (analyzed(owner), analyzed("watcher")) == (True, True)
        finally:
            admin.execute("DROP TABLE cabins")


def test_temporary_tables_of_others_are_left_out(server: Cluster) -> None:
    """Nobody but their own session can index or analyze them."""
    with server.connect() as other:
        other.execute(
            "CREATE TEMP TABLE scratch AS SELECT i AS id FROM generate_series(1, 200000) i"
        )
        other.execute("SELECT count(*) FROM scratch")
        other.execute("SELECT pg_stat_force_next_flush()")
        other.execute("SELECT 1")
        with connected(server.dsn()) as session:
            assert not any("scratch" in name for name in read.tables(session))


def test_a_database_whose_drop_was_interrupted_ages_for_nobody(server: Cluster) -> None:
    """Vacuum and the server's own warnings leave it out, too."""
    with server.connect() as admin:
        admin.execute("CREATE DATABASE half_dropped")
        admin.execute(
            "UPDATE pg_database SET datconnlimit = -2, datfrozenxid = '3', datminmxid = '1'"
            " WHERE datname = 'half_dropped'"
        )
        try:
            with connected(server.dsn()) as session:
                counters = read.counters(session, server.binaries.major)
        finally:
            admin.execute("DROP DATABASE half_dropped")
    assert "half_dropped" not in (counters.xid_database, counters.multixact_database)
    assert counters.xid_database
