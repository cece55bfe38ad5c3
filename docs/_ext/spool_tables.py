"""The tables of a spool as Markdown: the list of them, and the columns of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pgtare.keeping.spool.reader import type_name
from pgtare.keeping.spool.tables import COMMON, HISTOGRAM, TABLES, Column, SpoolTable

_DAY_S = 86400


def lines() -> Iterator[str]:
    """The list of tables, then the columns of each."""
    yield from ("| table | rows | kept |", "|---|---|---|")
    for table in TABLES.values():
        yield f"| `{table.name}` | {table.about} | {_kept(table)} |"
    yield ""
    yield "### All tables"
    yield ""
    yield from _columns(COMMON)
    common = {column.name for column in COMMON}
    for table in TABLES.values():
        if table.source is None:
            names = [table.name, *(one.name for one in TABLES.values() if _root(one) == table.name)]
            yield "### " + ", ".join(f"`{name}`" for name in names)
            yield ""
            yield from _columns(column for column in table.columns if column.name not in common)


def _root(table: SpoolTable) -> str | None:
    while table.source is not None:
        source = TABLES[table.source]
        if source.source is None:
            return source.name
        table = source
    return None


def _kept(table: SpoolTable) -> str:
    if table.kept_s is None:
        return "always"
    return f"{table.kept_s // _DAY_S} days"


def _columns(columns: Iterable[Column]) -> Iterator[str]:
    yield from ("| column | type | meaning | rolled up |", "|---|---|---|---|")
    for column in columns:
        if column.name in HISTOGRAM[2:-1]:
            continue
        name, about = f"`{column.name}`", column.about
        if column.name == HISTOGRAM[1]:
            name = f"`{HISTOGRAM[1]}` … `{HISTOGRAM[-2]}`"
            about = "`h`*NN*: waits of 2^(NN+7) to 2^(NN+8) ns"
        how = {"key": "", "sum": "sum", "max": "largest", "last": "last"}[column.rule]
        nullable = ", may be NULL" if column.nullable else ""
        yield f"| {name} | {type_name(column)}{nullable} | {about} | {how} |"
    yield ""
