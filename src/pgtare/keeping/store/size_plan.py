"""What N servers take in a store: rows, bytes, parts and shards, from rates and bytes a row.

Each figure says whether it was measured or is computed from measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pgtare.keeping.spool.manifest import SpoolManifest
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store.connection import StoreConnection, quoted

_DAY_S, _DAY_US = 86400, 86_400_000_000
#: Rows a day of a simulated server with 500 sessions, some 12 of them active (`python -m bench
#: spool`).
SIMULATED_RATES: dict[str, float] = {
    "waits": 345_600,
    "waits_1m": 57_600,
    "waits_1h": 960,
    "statements": 288_000,
    "statements_1h": 196_383,
    "sessions": 1_036_274,
    "activity": 4_320,
    "activity_1h": 72,
    "ticks": 8_640,
    "ticks_1m": 1_440,
    "ticks_1h": 24,
    "agent": 51_840,
}
#: Bytes a row of such rows in ClickHouse, merged: measured by `python -m bench store` on hours of
#: one server. Hours of statements and minutes of waits: of two hours, the others of four.
SIMULATED_BYTES: dict[str, float] = {
    "waits": 23.0,
    "waits_1m": 53.6,
    "statements": 24.9,
    "statements_1h": 32.3,
    "sessions": 11.6,
    "activity": 64.3,
    "ticks": 10.9,
    "agent": 10.3,
}
#: Of these tables a few hours have too few rows to measure them.
ASSUMED_BYTES: dict[str, float] = {
    "waits_1h": 60.0,
    "activity_1h": 70.0,
    "ticks_1m": 20.0,
    "ticks_1h": 40.0,
}
_OTHER_BYTES = 100.0
#: Tables without an age are planned for this long, s.
FOR_GOOD_S = 400 * _DAY_S
#: An agent watches about this many servers, and inserts each table once a minute.
SERVERS_OF_AGENT = 75
#: Parts of a day and table after merging; while the day goes on there are more.
_PARTS_OF_DAY, _PARTS_OF_TODAY = 2, 20


@dataclass(frozen=True)
class PlannedTable:
    """A table for all servers, when rows go as fast as they come.

    rate_from, bytes_from: measured, simulated (measured on simulated rows) or assumed. kept_s: the
    age at which rows go if ttl is true; else they stay, and it is planned for that long.
    """

    table: str
    rows_a_day: float
    rate_from: str
    bytes_a_row: float
    bytes_from: str
    kept_s: int
    ttl: bool
    rows: int
    bytes: int
    parts: int


@dataclass(frozen=True)
class StorePlan:
    """What a store needs for a number of servers; bytes are of one replica.

    disk_bytes and shard_rows_a_second are what a shard has room for and takes, as given.
    """

    servers: int
    tables: list[PlannedTable]
    rows: int
    bytes: int
    parts: int
    rows_a_second: float
    inserts_a_minute: float
    agents: int
    shards: int
    disk_bytes: int
    shard_rows_a_second: float


def rates_of_spool(content: SpoolManifest) -> dict[str, float]:
    """Rows a day of a spool, of all its servers together; only tables that have hours of rows."""
    found = {}
    for name in TABLES:
        segments = content.of_table(name)
        if not segments:
            continue
        span_us = max(s.last_us for s in segments) - min(s.first_us for s in segments)
        width_us = TABLES[name].bucket_s * 1_000_000
        if span_us >= max(3_600_000_000, 3 * width_us):
            rows = sum(segment.rows for segment in segments)
            found[name] = rows * _DAY_US / (span_us + width_us)
    return found


def bytes_of_store(connection: StoreConnection, least: int = 10_000) -> dict[str, float]:
    """Bytes a row of each table that has rows enough to tell."""
    found = connection.rows(
        "SELECT table, sum(bytes_on_disk) / sum(rows) FROM system.parts WHERE active "
        f"AND database = {quoted(connection.database)} GROUP BY table "
        f"HAVING sum(rows) >= {least:d}"
    )
    return {str(table): float(size) for table, size in found if table in TABLES}


def plan(
    servers: int,
    rates: Mapping[str, tuple[float, str]],
    sizes: Mapping[str, tuple[float, str]],
    disk_bytes: int,
    shard_rows_a_second: float,
) -> StorePlan:
    """A plan. rates: rows a day of one server, and where that is from; sizes: bytes a row alike."""
    tables = []
    for name, table in TABLES.items():
        rate, rate_from = rates.get(name, (0.0, "simulated"))
        size, bytes_from = sizes.get(name, (_OTHER_BYTES, "assumed"))
        kept_s = table.kept_s or FOR_GOOD_S
        rows_a_day = rate * servers
        rows = round(rows_a_day * kept_s / _DAY_S)
        parts = 0
        if rows:
            partitions = kept_s // _DAY_S if table.kept_s else kept_s // (30 * _DAY_S)
            parts = partitions * _PARTS_OF_DAY + _PARTS_OF_TODAY
        tables.append(
            PlannedTable(
                table=name,
                rows_a_day=rows_a_day,
                rate_from=rate_from,
                bytes_a_row=size,
                bytes_from=bytes_from,
                kept_s=kept_s,
                ttl=table.kept_s is not None,
                rows=rows,
                bytes=round(rows * size),
                parts=parts,
            )
        )
    total = sum(one.bytes for one in tables)
    rows_a_second = sum(one.rows_a_day for one in tables) / _DAY_S
    agents = math.ceil(servers / SERVERS_OF_AGENT)
    used = sum(1 for one in tables if one.rows)
    shards = max(1, math.ceil(total / disk_bytes), math.ceil(rows_a_second / shard_rows_a_second))
    return StorePlan(
        servers=servers,
        tables=tables,
        rows=sum(one.rows for one in tables),
        bytes=total,
        parts=sum(one.parts for one in tables),
        rows_a_second=rows_a_second,
        inserts_a_minute=float(agents * used),
        agents=agents,
        shards=shards,
        disk_bytes=disk_bytes,
        shard_rows_a_second=shard_rows_a_second,
    )


def simulated_rates() -> dict[str, tuple[float, str]]:
    """Rows a day of the simulated server, labelled."""
    return {name: (value, "simulated") for name, value in SIMULATED_RATES.items()}


def simulated_sizes() -> dict[str, tuple[float, str]]:
    """Bytes a row of the simulated server, labelled."""
    measured = {name: (value, "simulated") for name, value in SIMULATED_BYTES.items()}
    return measured | {name: (value, "assumed") for name, value in ASSUMED_BYTES.items()}
