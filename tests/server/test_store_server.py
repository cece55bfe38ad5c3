"""What needs a ClickHouse server. PGTARE_CLICKHOUSE names one, as clickhouse://USER@HOST/DATABASE.

The user may create databases and roles. The database is dropped at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pgtare.keeping.spool.writer import Spool
from pgtare.keeping.store import repair, store_check, store_schema
from pgtare.keeping.store.address import read
from pgtare.keeping.store.connection import StoreConnection, connect
from pgtare.keeping.store.pusher import SpoolPusher
from tests.unit.spool_rows import UNLIMITED, random_rows
from tests.unit.store_engine import differences

URL = os.environ.get("PGTARE_CLICKHOUSE")
pytestmark = pytest.mark.skipif(
    URL is None, reason="PGTARE_CLICKHOUSE names no ClickHouse server: not run"
)


@pytest.fixture(scope="module")
def store() -> Iterator[StoreConnection]:
    with connect(read(URL or "")) as found:
        store_schema.make(found)
        yield found
        found.command(f"DROP DATABASE {found.database}")


def test_a_store_can_be_used(store: StoreConnection) -> None:
    assert store_check.check(store).faults == []


def test_rows_are_sent_and_a_lost_memory_asks(tmp_path: Path, store: StoreConnection) -> None:
    start = datetime.now(UTC) - timedelta(hours=1)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(8):
            rows = random_rows("waits", [start + timedelta(seconds=10 * index)], index)
            spool.commit({"waits": rows}, {})
    for _ in range(2):
        pusher = SpoolPusher(tmp_path, lambda: connect(read(URL or "")), 4, lambda level, why: None)
        while pusher.step():
            pass
        (tmp_path / "pushed.json").unlink()
    assert differences(store, tmp_path) == {}


def test_an_insert_that_is_delivered_twice_is_left_out(
    tmp_path: Path, store: StoreConnection
) -> None:
    from pgtare.keeping.store.pushed_rows import PushUnit

    with Spool.open(tmp_path, UNLIMITED) as spool:
        rows = random_rows("ticks", [datetime.now(UTC)], 1)
        uuid = spool.commit({"ticks": rows}, {}).rpartition("-")[0]
    from tests.unit.spool_rows import held

    unit = PushUnit(uuid, "ticks", "2026-01-01", held(tmp_path, "ticks"))
    for _ in range(2):
        store.insert("ticks", store_schema.stored("ticks", unit.rows), unit.token(0))
    assert differences(store, tmp_path) == {}
    assert repair.partial(store) == []


def test_roles(store: StoreConnection) -> None:
    for _ in range(2):
        for statement in store_schema.role_statements(store.database):
            store.command(statement)
    grants = store.rows(f"SHOW GRANTS FOR {store_schema.AGENT}")
    assert not any("DELETE" in row[0] for row in grants)
