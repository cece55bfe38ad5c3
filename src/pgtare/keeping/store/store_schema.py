"""The store's schema as SQL: its tables, made once and known by their version, and its roles.

The agent may insert, and read the columns by which its rows are counted. The page may read. Only
the third role may delete what is partial; no service should have it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pgtare.errors import UsageError
from pgtare.keeping.spool.tables import TABLES, SpoolTable
from pgtare.keeping.store import store_tables
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
  unsent_rows Int64,
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
    """What makes a table of the spool."""
    columns = "".join(f"  {name} {of},\n" for name, of in store_tables.columns(table))
    return (
        f"(\n{columns}  INDEX seqs seq TYPE minmax GRANULARITY 1\n)\nENGINE = MergeTree\n"
        f"PARTITION BY {store_tables.partition(table)}\n"
        f"ORDER BY ({store_tables.order(table)})\n{_ttl(table)}SETTINGS {_SETTINGS}"
    )


def _ttl(table: SpoolTable) -> str:
    if table.kept_s is None:
        return ""
    return f"TTL toDateTime(ts) + INTERVAL {table.kept_s // store_tables.DAY_S} DAY\n"


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
