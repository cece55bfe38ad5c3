"""The spool's tables as ClickHouse has them: columns, order, and rows on their way there.

In place of the text `segment` a row has `spool` and `seq`, which take next to no room; `segment` is
an alias of both. A list that is NULL in a spool is empty in a store.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgtare.keeping.spool import segments
from pgtare.keeping.spool.tables import TABLES, Column, SpoolTable

#: Texts that are different in most rows; of the others there are few.
_MANY_VALUES = frozenset({"text", "detail", "settings", "labels", "title", "file"})
_TYPES = {
    "string": "String",
    "int64": "Int64",
    "int32": "Int32",
    "bool": "Bool",
    "double": "Float64",
    "timestamp[us, tz=UTC]": "DateTime64(6, 'UTC')",
    "list<item: int32>": "Array(Int32)",
}
#: Texts of statements are looked up by their hash; everything else by server and time.
_ORDER = {"texts": "text_hash, server, ts"}
_SEGMENT = (
    ("spool", "LowCardinality(String)"),
    ("seq", "Int64 CODEC(Delta, ZSTD)"),
    ("segment", "String ALIAS concat(spool, '-', leftPad(toString(seq), 10, '0'))"),
)
_CODECS = {"ts": "Delta, ZSTD", "epoch": "ZSTD", "covered_ns": "ZSTD"}
DAY_S = 86400


def column_type(column: Column) -> str:
    """The type of a column."""
    name = _TYPES[str(column.type)]
    if name.startswith("Array"):
        return name
    if column.nullable:
        name = f"Nullable({name})"
    if pa.types.is_string(column.type) and column.name not in _MANY_VALUES:
        name = f"LowCardinality({name})"
    return name


def columns(table: SpoolTable) -> list[tuple[str, str]]:
    """Names and definitions of all columns."""
    found: list[tuple[str, str]] = []
    for column in table.columns:
        if column.name == "segment":
            found += _SEGMENT
            continue
        codec = _CODECS.get(column.name)
        if codec is None and str(column.type) in ("int64", "int32"):
            codec = "ZSTD"
        found.append((column.name, column_type(column) + (f" CODEC({codec})" if codec else "")))
    return found


def order(table: SpoolTable) -> str:
    """What rows are sorted by."""
    return _ORDER.get(table.name, "server, ts")


def partition(table: SpoolTable) -> str:
    """What rows of a partition have in common: a day, or a month if they are kept for good."""
    return "toDate(ts)" if table.age is not None else "toYYYYMM(ts)"


def stored(table: str, rows: pa.Table) -> pa.Table:
    """Rows of a spool with the columns of a store."""
    schema = TABLES[table].schema
    numbers = segments.seqs(rows)
    found: dict[str, pa.Array | pa.ChunkedArray] = {}
    for field in schema:
        if field.name == "segment":
            uuid = str(rows["segment"][0].as_py()).rpartition("-")[0]
            found["spool"] = pa.repeat(pa.scalar(uuid, pa.string()), rows.num_rows)
            found["seq"] = pa.array(numbers, pa.int64())
        elif pa.types.is_list(field.type):
            found[field.name] = pc.coalesce(rows[field.name], pa.scalar([], field.type))
        else:
            found[field.name] = rows[field.name]
    return pa.table(found)
