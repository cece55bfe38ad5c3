"""The store's schema: its databases and tables as SQL, made once, and known by their version.

On a cluster each table is a ReplicatedMergeTree on every shard, and a second database has a
Distributed table over each. That is untried: no cluster was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgtare.errors import UsageError
from pgtare.keeping.spool.tables import TABLES, SpoolTable
from pgtare.keeping.store import store_tables
from pgtare.keeping.store.connection import StoreConnection, quoted

#: Of all tables; a store of another version is refused.
VERSION = 1
#: Added to the name of a database for its Distributed tables.
ALL = "_all"
#: The tables besides those of the spool: their columns, what a newer row replaces an older one
#: by, and what rows are sorted by.
#:
#: version: of the schema. pushes: what was sent of each spool: all commits up to seq; rolled_us: up
#: to which ts the rolled-up tables go, in µs since 1970. partial_segments: commits of which a table
#: has some rows but not all; state: 1 partial, 0 repaired. Of each key only the newest row counts.
_NOTES = {
    "version": (
        (
            ("version", "UInt32"),
            ("made_at", "DateTime64(3, 'UTC') DEFAULT now64(3)"),
        ),
        "made_at",
        "version",
    ),
    "pushes": (
        (
            ("spool", "LowCardinality(String)"),
            ("seq", "Int64"),
            ("rolled_us", "Map(LowCardinality(String), Int64)"),
            ("unsent_rows", "Int64"),
            ("at", "DateTime64(3, 'UTC') DEFAULT now64(3)"),
        ),
        "at",
        "spool",
    ),
    "partial_segments": (
        (
            ("spool", "LowCardinality(String)"),
            ("seq", "Int64"),
            ("table_name", "LowCardinality(String)"),
            ("day", "Date"),
            ("state", "UInt8"),
            ("at", "DateTime64(6, 'UTC') DEFAULT now64(6)"),
        ),
        "at",
        "(spool, seq, table_name, day)",
    ),
}
_SETTINGS = (
    "ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, "
    "replicated_deduplication_window_seconds = 604800"
)
_CLUSTER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


def check_cluster(name: str) -> None:
    """Raise UsageError if this can be no name of a cluster."""
    if not _CLUSTER.fullmatch(name):
        raise UsageError(f"--cluster {name}: give the name of a cluster in system.clusters")


def statements(database: str, cluster: str | None = None) -> Iterator[str]:
    """All that `make` runs. Each can be run again."""
    on = ""
    databases = [database]
    if cluster is not None:
        check_cluster(cluster)
        on = f" ON CLUSTER '{cluster}'"
        databases.append(f"{database}{ALL}")
    for name in databases:
        yield f"CREATE DATABASE IF NOT EXISTS {name}{on}"
    for name, text in _tables(database, cluster):
        yield f"CREATE TABLE IF NOT EXISTS {database}.{name}{on} {text}"
        if cluster is not None:
            yield (
                f"CREATE TABLE IF NOT EXISTS {database}{ALL}.{name}{on} AS {database}.{name} "
                f"ENGINE = Distributed('{cluster}', '{database}', '{name}')"
            )
    # the last: what has a version is complete
    yield f"INSERT INTO {database}.version (version) VALUES ({VERSION})"


def _tables(database: str, cluster: str | None) -> Iterator[tuple[str, str]]:
    """Names of all tables, and what makes them."""

    def engine(kind: str, table: str, version: str = "") -> str:
        if cluster is None:
            return f"{kind}({version})"
        # the server fills in {shard} and {replica}
        place = f"/clickhouse/tables/{{shard}}/{database}/{table}"
        return f"Replicated{kind}('{place}', '{{replica}}'{version and f', {version}'})"

    for name, (columns, newest, order) in _NOTES.items():
        made_of = engine("ReplacingMergeTree", name, newest)
        yield name, f"({_listed(columns)}\n)\nENGINE = {made_of}\nORDER BY {order}"
    for name, table in TABLES.items():
        columns = tuple(store_tables.columns(table))
        yield (
            name,
            f"({_listed(columns)},\n  INDEX seqs seq TYPE minmax GRANULARITY 1\n)\n"
            f"ENGINE = {engine('MergeTree', name)}\n"
            f"PARTITION BY {store_tables.partition(table)}\n"
            f"ORDER BY ({store_tables.order(table)})\n{_ttl(table)}SETTINGS {_SETTINGS}",
        )


def _listed(columns: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f"\n  {name} {definition}" for name, definition in columns)


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


def make(connection: StoreConnection, cluster: str | None = None) -> bool:
    """Make what is missing; whether anything was. Raises UsageError for another version."""
    found = version(connection)
    if found is not None:
        if wrong := fault(found):
            raise UsageError(f"the store cannot be used: {wrong}")
        return False
    for statement in statements(connection.database, cluster):
        connection.command(statement)
    return True
