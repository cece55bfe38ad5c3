"""ClickHouse's own engine in this process (chdb), as a store; and sums over what it holds.

One engine and one path for a process: a fixture opens it for a file of tests and closes it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pgtare.keeping.spool.tables import TABLES, SpoolTable
from pgtare.keeping.spool.writer import Spool
from pgtare.keeping.store import store_schema
from pgtare.keeping.store.connection import StoreConnection, listed
from tests.unit.spool_rows import UNLIMITED, held, newest, random_rows

#: The rows are of now: a store would drop older ones.
NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
#: How many commits a window has.
COMMITS = 4
SOME = ("waits", "sessions", "ticks")
_numbers = itertools.count(1)


def at(seconds: float) -> datetime:
    """A time after NOW."""
    return NOW + timedelta(seconds=seconds)


def commit(spool: Spool, index: int, *tables: str) -> None:
    """A commit with rows of these tables, or of some."""
    rows = {
        name: random_rows(name, [at(10 * index)], index)
        for name in tables or SOME
        if TABLES[name].source is None
    }
    spool.commit(rows, {})


def filled(root: Path, first: int, last: int, *tables: str) -> Path:
    """A spool with commits of these numbers, of a writer that comes and goes."""
    with Spool.open(root, UNLIMITED) as spool:
        for index in range(first, last + 1):
            commit(spool, index, *tables)
    return root


@contextlib.contextmanager
def engine(directory: Path) -> Iterator[Any]:
    """A client of clickhouse-connect over the engine, with its files in a directory."""
    pytest.importorskip("chdb")
    import clickhouse_connect

    client = clickhouse_connect.get_client(interface="chdb", path=str(directory))
    try:
        yield client
    finally:
        client.close()


def new_store(client: Any) -> StoreConnection:
    """A store of its own in the engine, with all tables."""
    connection = StoreConnection(client, f"store{next(_numbers)}")
    store_schema.make(connection)
    client.command("SYSTEM STOP TTL MERGES")  # rows of tests may be old
    return connection


def figures(table: SpoolTable) -> list[str]:
    """Columns that are summed."""
    return [c.name for c in table.columns if str(c.type) in ("int64", "int32")]


def of_store(connection: StoreConnection, table: str, spools: list[str]) -> tuple[Any, ...]:
    """Rows, commits, and a sum over every figure, exactly, of some spools."""
    sums = ", ".join(f"sum(toInt128({name}))" for name in figures(TABLES[table]))
    (row,) = connection.rows(
        f"SELECT count(), uniqExact(segment), {sums} FROM {connection.database}.{table} "
        f"WHERE spool IN ({listed(spools)})"
    )
    return tuple(int(value or 0) for value in row)


def of_spool(directory: Path, table: str, to: int | None = None) -> tuple[Any, ...]:
    """The same of a spool. to: commits up to this one."""
    found = held(directory, table).to_pylist()
    if to is not None:
        found = [row for row in found if int(row["segment"].rpartition("-")[2]) <= to]
    sums = (sum(row[name] or 0 for row in found) for name in figures(TABLES[table]))
    return (len(found), len({row["segment"] for row in found}), *sums)


def differences(
    connection: StoreConnection, *directories: Path, to: int | None = None
) -> dict[str, Any]:
    """Tables in which a store differs from what these spools have together."""
    wrong = {}
    spools = [newest(directory).uuid for directory in directories]
    for table in TABLES:
        parts = [of_spool(directory, table, to) for directory in directories]
        expected = tuple(sum(column) for column in zip(*parts, strict=True))
        found = of_store(connection, table, spools)
        if found != expected:
            wrong[table] = (found, expected)
    return wrong
