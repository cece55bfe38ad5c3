"""Queries whose nodes take time of known length, and how their row sources are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value

Connection = psycopg.Connection[tuple[Any, ...]]

MODULES = Path(__file__).parent.parent / "tests" / "server" / "modules"

SETTINGS: dict[str, Value] = {
    "autovacuum": False,
    "jit": False,
    "work_mem": "256MB",
    "shared_buffers": "256MB",
    "max_parallel_workers_per_gather": 0,
}


@dataclass(frozen=True)
class RowSource:
    """A node of the last statement; times in ms, nodes below it included."""

    node_id: int
    parent_id: int | None
    node: str
    relation: str | None
    calls: int
    rows: int | None
    loops: int
    timed: int
    time: float
    low: float
    high: float
    workers: int
    told_by: str


@dataclass(frozen=True)
class Load:
    """A query, and for each node that is checked the places at which it idles.

    nodes: (name of the node, relation or None) -> places of `idle_for` in it and below it.
    """

    name: str
    query: str
    nodes: dict[tuple[str, str | None], tuple[int, ...]]
    settings: str = ""


NESTED = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
SET LOCAL enable_memoize = off; SET LOCAL enable_material = off"
HASHED = "SET LOCAL enable_nestloop = off; SET LOCAL enable_mergejoin = off"

PARALLEL = "SET LOCAL max_parallel_workers_per_gather = 2; SET LOCAL parallel_setup_cost = 0; \
SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0; \
SET LOCAL min_parallel_index_scan_size = 0"

#: Delays: `spread` exponential, `mixed` mostly short and one in forty long, around 15 us each.
TRUTHS = (
    Load(
        "count(*)",
        "SELECT count(*) FROM delays WHERE idle_for(1, spread)",
        {("Aggregate", None): (1,), ("Seq Scan", "delays"): (1,)},
    ),
    Load(
        "one in forty long",
        "SELECT count(*) FROM delays WHERE idle_for(1, mixed)",
        {("Aggregate", None): (1,), ("Seq Scan", "delays"): (1,)},
    ),
    Load(
        "nested loop",
        "SELECT count(*) FROM delays d JOIN keys k ON k.i = d.i AND idle_for(2, k.spread)"
        " AND idle_for(3, d.i * 0 + k.i * 0 + 5) WHERE idle_for(1, d.spread)",
        {
            ("Nested Loop", None): (1, 2, 3),
            ("Seq Scan", "d"): (1,),
            ("Index Scan", "k"): (2, 3),
        },
        NESTED,
    ),
    Load(
        "hash join",
        "SELECT count(*) FROM delays d JOIN keys k ON k.i = d.i AND idle_for(2, k.spread)"
        " AND idle_for(3, d.i * 0 + k.i * 0 + 5) WHERE idle_for(1, d.spread)",
        {
            ("Hash Join", None): (1, 2, 3),
            ("Seq Scan", "d"): (1,),
            ("Hash", None): (2,),
            ("Seq Scan", "k"): (2,),
        },
        HASHED,
    ),
    Load(
        "sort",
        "SELECT count(*) FROM (SELECT i, spread FROM delays WHERE idle_for(1, mixed)"
        " ORDER BY spread OFFSET 0) x WHERE idle_for(2, spread)",
        {
            ("Subquery Scan", "x"): (1, 2),
            ("Sort", None): (1,),
            ("Seq Scan", "delays"): (1,),
        },
    ),
    Load(
        "append",
        "SELECT count(*) FROM (SELECT i FROM delays a WHERE idle_for(1, spread)"
        " UNION ALL SELECT i FROM keys b WHERE idle_for(2, spread / 3)) x",
        {("Append", None): (1, 2), ("Seq Scan", "a"): (1,), ("Seq Scan", "b"): (2,)},
    ),
    Load(
        "parallel",
        "SELECT count(*) FROM delays WHERE idle_for(1, spread)",
        {("Seq Scan", "delays"): (1,)},
        PARALLEL,
    ),
    Load(
        "1,001 calls",
        "SELECT * FROM (SELECT i FROM keys LIMIT 1000) f JOIN"
        " (SELECT i FROM delays WHERE idle_for(1, 10) AND (i + 0) % 1 = 0 OFFSET 0) d USING (i)",
        {("Hash Join", None): (1,), ("Hash", None): (1,)},
        f"{HASHED}; SET LOCAL join_collapse_limit = 1",
    ),
    Load(
        "one call long",
        "SELECT count(*) FROM delays WHERE CASE WHEN i = 7001 THEN idle_for(1, 130000)"
        " ELSE idle_for(2, spread) END",
        {("Aggregate", None): (1, 2), ("Seq Scan", "delays"): (1, 2)},
    ),
)

ROWS = 12_000


@contextlib.contextmanager
def serving(
    binaries: Binaries,
    settings: dict[str, Value] | None = None,
    rows: int = ROWS,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Iterator[Connection]:
    """A session on a server with both modules and the tables of the loads.

    `before` and `after`: libraries that are loaded before ours, and after.
    """
    ours, idler = loadable(binaries, "sql_trace"), loadable(binaries, "idler", MODULES)
    libraries = [*before, ours.library, idler.library, *after]
    with (
        Cluster(binaries, {**SETTINGS, **(settings or {})}, libraries) as cluster,
        psycopg.connect(cluster.dsn(), autocommit=True) as connection,
    ):
        for module in (ours, idler):
            connection.execute(module.create_sql.encode())
        connection.execute("SET search_path = public, sql_trace, idler")
        make_tables(connection, rows)
        yield connection


def make_tables(connection: Connection, rows: int) -> None:
    """The tables of the loads."""
    connection.execute("SELECT setseed(0.5)")
    for table in ("delays", "keys"):
        connection.execute(
            f"CREATE TABLE {table} AS SELECT i, -15 * ln(1 - random()) AS spread,"
            f" CASE WHEN random() < 0.025 THEN 400.0 ELSE 5.0 END::float8 AS mixed"
            f" FROM generate_series(1, {rows}) i".encode()
        )
    connection.execute("CREATE INDEX ON keys (i)")
    connection.execute("VACUUM ANALYZE delays, keys")


def row_sources(connection: Connection) -> list[RowSource]:
    """Those of the session's last statement."""
    found = connection.execute(
        "SELECT node_id, parent_id, node, relation, calls, rows, loops, calls_timed, time_ms,"
        " low_ms, high_ms, workers, told_by FROM sql_trace_row_sources()"
    ).fetchall()
    return [RowSource(*row) for row in found]


def run(connection: Connection, query: str, every: int, settings: str = "") -> list[RowSource]:
    """The row sources of a query; about one call in `every` is timed."""
    with connection.transaction():
        if settings:
            connection.execute(settings.encode())
        connection.execute("SET LOCAL sql_trace.level = 1")
        connection.execute(f"SET LOCAL sql_trace.rowsource_sampling = {every}".encode())
        # two loads are one text with other settings: the plan must not be kept
        connection.execute(query.encode(), prepare=False).fetchall()
    return row_sources(connection)


def idled(connection: Connection, places: Sequence[int]) -> float:
    """Milliseconds that the functions really took since the last reset."""
    (total,) = connection.execute(
        "SELECT sum((idled(p)).milliseconds) FROM unnest(%s) p", (list(places),)
    ).fetchone() or (0.0,)
    return float(total or 0.0)


def found_in(sources: Sequence[RowSource], node: str, relation: str | None) -> RowSource:
    """The only one of this name."""
    (found,) = [s for s in sources if s.node == node and relation in (None, s.relation)]
    return found


def root_of(sources: Sequence[RowSource]) -> RowSource:
    """The root of the plan."""
    return next(s for s in sources if s.parent_id is None)
