"""Stalls whose cause is known: the widest frame of `pgtare flame off` names it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.flame_recordings import flame, needs_perf, shares
from tests.loads import repeating, traffic

pytestmark = [pytest.mark.usefixtures("real_disk"), pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def stalling(each_server: Binaries) -> Iterator[Cluster]:
    """A server whose pg_stat_statements has little room."""
    needs_perf()
    settings = {"pg_stat_statements.max": 100, "compute_query_id": True}
    with Cluster(each_server, settings, ["pg_stat_statements"]) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
            connection.execute("CREATE TABLE queue AS SELECT 1 AS id, 0 AS n")
            connection.execute("CREATE TABLE log (n int)")
        yield cluster


def _update(connection: psycopg.Connection, number: int) -> None:
    with connection.transaction():
        connection.execute("UPDATE queue SET n = n + 1 WHERE id = 1")
        connection.execute("SELECT pg_sleep(0.05)")


def _insert(connection: psycopg.Connection, number: int) -> None:
    connection.execute("INSERT INTO log VALUES (1)")


@pytest.mark.slow
def test_a_queue_for_a_row(stalling: Cluster, tmp_path: Path) -> None:
    with repeating(stalling.dsn(), 4, _update):
        found = flame("off", stalling, tmp_path / "off.folded")
    # three of four wait for the row, one sleeps
    lock, sleep = shares(found, "ProcSleep", "pg_sleep")
    assert lock > 0.55
    assert lock > 2 * sleep
    widest = max(found, key=lambda stack: found[stack])
    assert "ProcSleep" in widest
    assert {"heap_update", "XactLockTableWait", "LockTuple"} & set(widest)


@pytest.mark.slow
def test_waits_for_the_disk(stalling: Cluster, tmp_path: Path) -> None:
    with repeating(stalling.dsn(), 1, _insert):
        found = flame("off", stalling, tmp_path / "off.folded")
    commit, sync = shares(found, "CommitTransactionCommand", "fdatasync")
    assert sync > 0.5
    assert commit > 0.5
    widest_wait = max(found, key=lambda stack: found[stack])
    assert "fdatasync" in widest_wait


@pytest.mark.slow
def test_a_storm_of_evicted_statements(stalling: Cluster, tmp_path: Path) -> None:
    numbers = itertools.count()

    def distinct(connection: psycopg.Connection, number: int) -> None:
        # the number of columns tells statements apart
        columns = ", ".join(["1"] * (1 + next(numbers) % 400))
        connection.execute(f"SELECT {columns}".encode())

    with repeating(stalling.dsn(), 8, distinct):
        found = flame("off", stalling, tmp_path / "off.folded")
    (lock,) = shares(found, "LWLockAcquire")
    waits = {stack: ns for stack, ns in found.items() if stack[0] == "backend"}
    widest = max(waits, key=lambda stack: waits[stack])
    assert "LWLockAcquire" in widest
    assert lock > 0.3
    assert any("pgss" in name or "pg_stat_statements" in name for name in widest), widest


@pytest.mark.slow
def test_who_ends_a_wait_for_a_row(stalling: Cluster, tmp_path: Path) -> None:
    with repeating(stalling.dsn(), 3, _update):
        found = flame("wake", stalling, tmp_path / "wake.folded")
    lock = {stack: ns for stack, ns in found.items() if "ProcSleep" in stack}
    by_backend = sum(ns for stack, ns in lock.items() if "woken by backend" in stack)
    assert by_backend > 0.8 * sum(lock.values())
    releasing = [stack for stack in lock if "woken by backend" in stack]
    assert any("LockReleaseAll" in stack or "ProcReleaseLocks" in stack for stack in releasing)


@pytest.mark.slow
def test_where_it_computes(stalling: Cluster, tmp_path: Path) -> None:
    with traffic(stalling.dsn(), 1, "SELECT count(*) FROM generate_series(1, 50000)"):
        found = flame("on", stalling, tmp_path / "on.folded", "--rate", "499")
    (executor,) = shares(found, "standard_ExecutorRun")
    assert executor > 0.6
