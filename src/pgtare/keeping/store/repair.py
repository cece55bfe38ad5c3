"""Deletes the rows of commits that a store has only in part, so that the agent sends them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store import pushed_rows
from pgtare.keeping.store.connection import StoreConnection, StoreError, quoted


@dataclass(frozen=True)
class PartialCommits:
    """Commits of one spool, table and UTC day of which the store has some rows but not all."""

    spool: str
    table: str
    day: str
    seqs: list[int]
    rows: int = 0


def partial(connection: StoreConnection) -> list[PartialCommits]:
    """What is marked as partial, with its rows counted."""
    return [replace(one, rows=_rows(connection, one)) for one in partial_seqs(connection)]


def partial_seqs(
    connection: StoreConnection, settings: Mapping[str, Any] | None = None
) -> list[PartialCommits]:
    """What is marked as partial; rows are not counted."""
    found = connection.rows(
        "SELECT spool, table_name, toString(day), arraySort(groupArray(seq)) FROM ("
        "SELECT spool, table_name, day, seq, argMax(state, at) AS newest "
        f"FROM {connection.database}.partial_segments GROUP BY spool, table_name, day, seq"
        ") WHERE newest = 1 GROUP BY spool, table_name, day ORDER BY spool, table_name, day",
        settings=settings,
    )
    return [
        PartialCommits(spool, table, day, seqs)
        for spool, table, day, seqs in found
        if table in TABLES
    ]


def _where(one: PartialCommits) -> str:
    numbers = ", ".join(str(int(seq)) for seq in one.seqs)
    return f"spool = {quoted(one.spool)} AND seq IN ({numbers}) AND toDate(ts) = {quoted(one.day)}"


def _rows(connection: StoreConnection, one: PartialCommits) -> int:
    sql = f"SELECT count() FROM {connection.database}.{one.table} WHERE {_where(one)}"
    return int(connection.rows(sql)[0][0])


def delete(connection: StoreConnection, one: PartialCommits) -> None:
    """Delete what there is, on all replicas, and note it. Raises StoreError."""
    connection.command(
        f"ALTER TABLE {connection.database}.{one.table} DELETE WHERE {_where(one)}",
        {"mutations_sync": 2},
    )
    left = _rows(connection, one)
    if left:
        raise StoreError(f"{left} rows of {one.table} of {one.day} are still there: repair again")
    places = [(one.table, one.day, seq) for seq in one.seqs]
    pushed_rows.mark(connection, one.spool, places, partial=False)
