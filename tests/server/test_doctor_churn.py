"""What churns the table of statements is named on real servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.doctor_servers import doctor
from tests.loads import repeating
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

Work = Callable[[psycopg.Connection, int], None]
_SCHEMAS = 60
#: From this version on entries go by the names of tables as written, not by their identity.
_BY_NAME = 18


@pytest.fixture(scope="module")
def churned(each_server: Binaries) -> Iterator[Cluster]:
    """A server whose table of statements has its smallest size."""
    settings = {"pg_stat_statements.max": 100, "compute_query_id": True}
    with Cluster(each_server, settings, ["pg_stat_statements"]) as cluster:
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute("CREATE TABLE item (id int, n int)")
            for number in range(_SCHEMAS):
                conn.execute(f"CREATE SCHEMA customer_{number}".encode())
                conn.execute(f"CREATE TABLE customer_{number}.item (id int)".encode())
        yield cluster


def _anew() -> Work:
    def make(conn: psycopg.Connection, number: int) -> None:
        conn.execute("CREATE TEMP TABLE basket (id int)")
        conn.execute("INSERT INTO basket SELECT 1")
        conn.execute("SELECT id FROM basket")
        conn.execute("DROP TABLE basket")

    return make


def _longer_rows() -> Work:
    lengths = itertools.cycle(range(2, 300))

    def insert(conn: psycopg.Connection, number: int) -> None:
        rows = ", ".join(["(1, 2)"] * next(lengths))
        conn.execute(f"INSERT INTO item VALUES {rows}".encode())

    return insert


def _customers() -> Work:
    numbers = itertools.cycle(range(_SCHEMAS))

    def select(conn: psycopg.Connection, number: int) -> None:
        conn.execute(f"SET search_path = customer_{next(numbers)}".encode())
        conn.execute("SELECT id FROM item WHERE id = 1")
        conn.execute("SELECT count(*) FROM item")

    return select


def _notifications() -> Work:
    numbers = itertools.count()

    def notify(conn: psycopg.Connection, number: int) -> None:
        conn.execute(f"NOTIFY channel_{next(numbers)}".encode())

    return notify


@pytest.mark.parametrize(
    ("work", "kind", "remedy"),
    [
        (_anew, "temporary tables", "TRUNCATE"),
        pytest.param(_longer_rows, "lists of values", "unnest", marks=pytest.mark.slow),
        pytest.param(
            _customers,
            "tables made anew, or one text in many schemas",
            "pg_stat_statements.max",
            marks=pytest.mark.slow,
        ),
        (_notifications, "utility statements", "track_utility = off"),
    ],
    ids=["temporary", "lists", "schemas", "notifications"],
)
def test_what_churns_is_named(
    churned: Cluster, work: Callable[[], Work], kind: str, remedy: str
) -> None:
    with churned.connect() as conn:
        conn.execute("SELECT pg_stat_statements_reset()")
    quiet = churned.binaries.major >= _BY_NAME and work in (_anew, _customers)

    def looked() -> dict[str, Any] | None:
        """On a busy machine the load may do too little in one interval."""
        report = doctor(churned.dsn())
        return report if quiet or any(f["kind"] == "churn" for f in report["findings"]) else None

    with repeating(churned.dsn(), 2, work()):
        report = eventually(looked)
    if quiet:
        # what sessions are busy with, at most
        assert {f["level"] for f in report["findings"]} <= {"info"}
        return
    evictions = report["findings"][0]
    assert evictions["kind"] == "evictions"
    found = [f for f in report["findings"] if f["kind"] == "churn"]
    assert any(f["title"].startswith(kind) for f in found), [f["title"] for f in found]
    assert any(remedy in one["command"] + one["does"] for f in found for one in f["remedy"])
