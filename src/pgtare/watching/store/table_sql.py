"""Prints the migration of a table: `python -m pgtare.watching.store.table_sql TABLE`.

For a new table. A migration that was released is never changed: new columns get one of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pgtare.watching.spool.tables import TABLES
from pgtare.watching.store import store_tables

_SETTINGS = (
    "ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, "
    "replicated_deduplication_window_seconds = 604800"
)


def lines(name: str) -> Iterator[str]:
    """The text of a table's first migration."""
    table = TABLES[name]
    yield f"-- {table.about[:1].upper()}{table.about[1:]}."
    yield f"CREATE TABLE IF NOT EXISTS {{database}}.{name}{{on_cluster}} ("
    for column, definition in store_tables.columns(table):
        yield f"  {column} {definition},"
    yield "  INDEX seqs seq TYPE minmax GRANULARITY 1"
    yield ")"
    yield "ENGINE = {engine MergeTree}"
    yield f"PARTITION BY {store_tables.partition(table)}"
    yield f"ORDER BY ({store_tables.order(table)})"
    if table.kept_s is not None:
        days = table.kept_s // store_tables.DAY_S
        yield f"TTL toDateTime(ts) + INTERVAL {days} DAY"
    yield f"SETTINGS {_SETTINGS};"


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1])))
