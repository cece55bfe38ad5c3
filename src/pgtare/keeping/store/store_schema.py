"""The store's schema as SQL: its tables, made once and known by their version, and its roles.

The tables are those of the spool. In place of the text `segment` a row has `spool` and `seq`, which
take next to no room; `segment` is an alias of both. A list that is NULL in a spool is empty.

The agent may insert, and read the columns by which its rows are counted. The page may read. Only
the third role may delete what is partial; no service should have it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pgtare.errors import UsageError
from pgtare.keeping.spool import segments
from pgtare.keeping.spool.tables import TABLES, Column, SpoolTable
from pgtare.keeping.store.connection import StoreConnection, quoted

#: Of all tables; a store of another version is refused.
VERSION = 1
AGENT, PAGE, REPAIR = "pgtare_agent", "pgtare_page", "pgtare_repair"
#: Columns that the agent counts its rows by.
_KEYS = "spool, seq, ts"
#: The tables besides those of the spool; of each key only the newest row counts.
#:
#: version: of the schema. pushes: what was sent of each spool: all commits up to seq; rolled_us: up
#: to which ts the rolled-up tables go, in µs since 1970. partial_segments: commits of which a table
#: has some rows but not all; state: 1 partial, 0 repaired.
_NOTES = {
    "version": """(
  version UInt32,
  made_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(made_at) ORDER BY version""",
    "pushes": """(
  spool LowCardinality(String),
  seq Int64,
  rolled_us Map(LowCardinality(String), Int64),
  at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(at) ORDER BY spool""",
    "partial_segments": """(
  spool LowCardinality(String),
  seq Int64,
  table_name LowCardinality(String),
  day Date,
  state UInt8,
  at DateTime64(6, 'UTC') DEFAULT now64(6)
) ENGINE = ReplacingMergeTree(at) ORDER BY (spool, seq, table_name, day)""",
}
_SETTINGS = "ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000"
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
_SEGMENT = (
    ("spool", "LowCardinality(String)"),
    ("seq", "Int64 CODEC(Delta, ZSTD)"),
    ("segment", "String ALIAS concat(spool, '-', leftPad(toString(seq), 10, '0'))"),
)
_CODECS = {"ts": "Delta, ZSTD", "epoch": "ZSTD", "covered_ns": "ZSTD"}
_DAY_S = 86400
#: What an agent inserts into.
FILLED = (*TABLES, "pushes", "partial_segments")


def statements(database: str) -> Iterator[str]:
    """All that `make` runs. Each can be run again."""
    yield f"CREATE DATABASE IF NOT EXISTS {database}"
    made_of = _NOTES | {name: _table(table) for name, table in TABLES.items()}
    for name, text in made_of.items():
        yield f"CREATE TABLE IF NOT EXISTS {database}.{name} {text}"
    # the last: what has a version is complete
    yield f"INSERT INTO {database}.version (version) VALUES ({VERSION})"


def role_statements(database: str) -> Iterator[str]:
    """What makes the roles. Each can be run again."""
    for role in (AGENT, PAGE, REPAIR):
        yield f"CREATE ROLE IF NOT EXISTS {role}"
    for name in TABLES:
        yield f"GRANT INSERT, SELECT({_KEYS}) ON {database}.{name} TO {AGENT}"
        yield f"GRANT SELECT({_KEYS}), ALTER DELETE ON {database}.{name} TO {REPAIR}"
    for name in _NOTES:
        insert = "INSERT, " if name in FILLED else ""
        yield f"GRANT {insert}SELECT ON {database}.{name} TO {AGENT}, {REPAIR}"
    yield f"GRANT SELECT ON {database}.* TO {PAGE}"


def _table(table: SpoolTable) -> str:
    """What makes a table of the spool; rows that are kept for good are partitioned by month."""
    columns = "".join(f"  {name} {of},\n" for name, of in _columns(table))
    # texts of statements are looked up by their hash, everything else by server and time
    order = "text_hash, server, ts" if table.name == "texts" else "server, ts"
    partition, ttl = "toYYYYMM(ts)", ""
    if table.kept_s is not None:
        partition = "toDate(ts)"
        ttl = f"TTL toDateTime(ts) + INTERVAL {table.kept_s // _DAY_S} DAY\n"
    return (
        f"(\n{columns}  INDEX seqs seq TYPE minmax GRANULARITY 1\n)\nENGINE = MergeTree\n"
        f"PARTITION BY {partition}\nORDER BY ({order})\n{ttl}SETTINGS {_SETTINGS}"
    )


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


def _columns(table: SpoolTable) -> list[tuple[str, str]]:
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


def version(connection: StoreConnection) -> int | None:
    """The version of a store's schema; None if it has none, or not all tables."""
    database = connection.database
    sql = (
        f"SELECT count() FROM system.tables WHERE database = {quoted(database)} "
        "AND name = 'version'"
    )
    if not connection.rows(sql)[0][0]:
        return None
    ((found,),) = connection.rows(f"SELECT max(version) FROM {database}.version")
    return int(found) or None


def fault(found: int | None) -> str | None:
    """What keeps a store of this version from being used, in a sentence; None: nothing."""
    if found == VERSION:
        return None
    if found is None:
        return "it has no tables of pgtare, or not all; run `pgtare store create`"
    return (
        f"its tables are of version {found} and this pgtare uses version {VERSION}: use the pgtare "
        "that made them, or make a store in another database"
    )


def make(connection: StoreConnection) -> bool:
    """Make what is missing; whether anything was. Raises UsageError for another version."""
    found = version(connection)
    if found is not None:
        if wrong := fault(found):
            raise UsageError(f"the store cannot be used: {wrong}")
        return False
    for statement in statements(connection.database):
        connection.command(statement)
    return True
