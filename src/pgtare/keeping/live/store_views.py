"""The relations that the page's queries read, as parts of a WITH over a store's tables.

As over a spool, long windows are summed from hours and minutes as far as these go. How far they go
differs between spools, so spools are grouped by that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pgtare.keeping.live import spool_views
from pgtare.keeping.live.spool_views import Grain, RowsSpan
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store.connection import listed, quoted

_MICROS = "toUnixTimestamp64Micro"
#: Sums of these over many servers can exceed 64 bits, and ClickHouse would not say so.
_LARGE = frozenset({"covered_ns", "total_ns", "active_ns"})
#: Texts are looked up only for the statements that are asked for.
_TEXTS = (
    "text_hash IN (SELECT text_hash FROM statements WHERE query_id IN {statements:Array(Int64)})"
)


def with_relations(
    relations: Sequence[str],
    database: str,
    window: tuple[int, int],
    grain: Grain,
    rolled_us: Mapping[str, Mapping[str, int]],
    partial: Collection[str] = (),
) -> str:
    """The WITH of a query that reads these relations.

    rolled_us: by spool, up to where its rolled-up tables go. partial: tables of which commits are
    left out, because the store has them only in part.
    """
    parts = []
    for relation in relations:
        if relation == "samples":
            text = spool_views.SAMPLES
        elif relation == "texts":
            text = select("texts", database, _TEXTS, partial)
        else:
            wanted = [(relation, "1")]
            if relation not in spool_views.WHOLE:
                wanted = _conditions(relation, window, grain, rolled_us) or [(relation, "0")]
            rows = [select(table, database, condition, partial) for table, condition in wanted]
            text = spool_views.union(relation, rows, _MICROS)
        parts.append(f"{relation} AS ({text})")
    return "WITH " + ", ".join(parts)


def _conditions(
    relation: str,
    window: tuple[int, int],
    grain: Grain,
    rolled_us: Mapping[str, Mapping[str, int]],
) -> list[tuple[str, str]]:
    """The tables that a relation is read from in a window, and which rows of each."""
    groups: dict[tuple[RowsSpan, ...], list[str]] = {}
    for spool, marks in rolled_us.items():
        spans = spool_views.spans(relation, *window, grain, marks)
        groups.setdefault(tuple(spans), []).append(spool)
    found = []
    for spans_of_group, spools in groups.items():
        of_spools = f" AND spool IN ({listed(sorted(spools))})" if len(groups) > 1 else ""
        for span in spans_of_group:
            condition = (
                f"ts > fromUnixTimestamp64Micro({span.after_us}, 'UTC') "
                f"AND ts <= fromUnixTimestamp64Micro({span.to_us}, 'UTC')"
            )
            found.append((span.table, condition + of_spools))
    return found


def select(table: str, database: str, condition: str, partial: Collection[str]) -> str:
    """The rows of a table for which a condition holds. partial: as above."""
    columns = [
        f"toInt128({column.name}) AS {column.name}" if column.name in _LARGE else column.name
        for column in TABLES[table].columns
        if column.name != "segment" or table == "agent"  # an alias, made for each row
    ]
    if table in partial:
        condition += (
            " AND (spool, seq) NOT IN (SELECT spool, seq FROM ("
            "SELECT spool, seq, day, argMax(state, at) AS newest "
            f"FROM {database}.partial_segments WHERE table_name = {quoted(table)} "
            "GROUP BY spool, seq, day) WHERE newest = 1)"
        )
    return f"SELECT {', '.join(columns)} FROM {database}.{table} WHERE {condition}"
