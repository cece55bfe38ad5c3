"""How fast a store takes rows and answers the page, on ClickHouse's engine in process (chdb).

There is no server and no network: the rates are those of the engine, with the rows on this
machine's disk or in memory. Rows are simulated (`bench.spool`): one server's hours, which are
repeated for more servers and days. What is measured and what is computed is printed next to each
figure.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.spool import TICK_S, Server
from pgtare.keeping.live.store_worker import StoreWorker
from pgtare.keeping.spool import rollup
from pgtare.keeping.spool.publication import segment_id, with_segment
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store import pushed_rows, store_schema
from pgtare.keeping.store.connection import StoreConnection
from pgtare.kit.numbers import volume

TAKES = "some minutes and gigabytes"

SPOOL = "11111111-2222-3333-4444-555555555555"
#: How many ticks an agent sends at a time.
WINDOW = 6
#: Servers of one agent.
OF_AGENT = 75
#: Rows a day of a simulated server with 500 sessions (`python -m bench spool`).
ROWS_A_DAY = 1_991_153


def ticks(hours: float, start: datetime) -> Iterator[tuple[int, dict[str, pa.Table]]]:
    """The ticks of one simulated server."""
    server = Server()
    for index in range(1, int(hours * 3600 / TICK_S) + 1):
        yield index, server.tick(start + timedelta(seconds=TICK_S * index))


def stored(table: str, rows: pa.Table, seq: int) -> pa.Table:
    """Rows as they are sent."""
    whole = with_segment(rows, segment_id(SPOOL, seq)).select(TABLES[table].schema.names)
    return store_schema.stored(table, whole)


def of_many(rows: pa.Table, servers: int) -> pa.Table:
    """The rows of one server as those of many."""
    at = rows.schema.get_field_index("server")
    parts = [
        rows.set_column(at, "server", pa.repeat(f"server-{number}", rows.num_rows))
        for number in range(servers)
    ]
    return pa.concat_tables(parts).combine_chunks()


def ingest(
    connection: StoreConnection, base: list[dict[str, pa.Table]], servers: int
) -> tuple[int, float, float]:
    """Insert windows as an agent of that many servers does: rows, seconds, processor seconds."""
    number, seconds, processor_s = 0, 0.0, 0.0
    for first in range(0, len(base) - WINDOW + 1, WINDOW):
        for table in TABLES:
            parts = [
                stored(table, found[table], first + at + 1)
                for at, found in enumerate(base[first : first + WINDOW])
                if table in found
            ]
            if not parts:
                continue
            rows = of_many(pa.concat_tables(parts), servers)
            begun, used = time.perf_counter(), time.process_time()
            connection.insert(table, rows, f"{table}-{first}-{servers}")
            seconds += time.perf_counter() - begun
            processor_s += time.process_time() - used
            number += rows.num_rows
    return number, seconds, processor_s


def sizes(client: Any, base: list[dict[str, pa.Table]]) -> dict[str, float]:
    """Bytes a row of one server, merged; rows of several alike would compress one another."""
    connection = StoreConnection(client, "single")
    store_schema.make(connection)
    for table in TABLES.values():
        root = table.name.partition("_1")[0]
        if root not in TABLES or not any(root in found for found in base):
            continue
        parts = [(number, found[root]) for number, found in enumerate(base, 1) if root in found]
        if table.source is None:
            rows = pa.concat_tables(stored(root, some, number) for number, some in parts)
        else:
            whole = pa.concat_tables(some for _, some in parts)
            rows = stored(table.name, rollup.summed(whole, table), 1)
        connection.insert(table.name, rows)
        connection.command(f"OPTIMIZE TABLE single.{table.name} FINAL")
    found = connection.rows(
        "SELECT table, sum(bytes_on_disk) / sum(rows) FROM system.parts WHERE active "
        f"AND database = '{connection.database}' GROUP BY table"
    )
    return {str(table): float(size) for table, size in found if table in TABLES}


def fill_hours(
    connection: StoreConnection, base: list[dict[str, pa.Table]], servers: int, days: int
) -> int:
    """Hours of waits and ticks, of many servers and days; the rows are made by the engine."""
    database, number = connection.database, 0
    for source in ("waits", "ticks"):
        table = f"{source}_1h"
        rows = pa.concat_tables(found[source] for found in base)
        hours = rollup.summed(rows, TABLES[table])
        connection.command(f"CREATE TABLE {database}.one_{table} AS {database}.{table} ENGINE Log")
        connection.insert(f"one_{table}", stored(table, hours, 1))
        names = [c.name for c in TABLES[table].columns if c.name not in ("segment", "server", "ts")]
        of_day = 24 // max(1, len(base) * TICK_S // 3600)
        connection.command(
            f"INSERT INTO {database}.{table} (server, ts, spool, seq, {', '.join(names)}) "
            f"SELECT concat('server-', toString(s.number)), ts - toIntervalHour(d.number * "
            f"{24 // of_day}), spool, seq, {', '.join(names)} FROM {database}.one_{table} "
            f"CROSS JOIN numbers({servers}) AS s CROSS JOIN numbers({days * of_day}) AS d",
            {"max_partitions_per_insert_block": 0, "max_threads": 2, "async_insert": 0},
        )
        number += int(connection.rows(f"SELECT count() FROM {database}.{table}")[0][0])
    return number


def ask(worker: StoreWorker, name: str, window: tuple[int, int], grain: str, **more: Any) -> str:
    """A query of the page: how long it takes, three times, and its rows."""
    asked = {
        "query": name,
        "identifiers": {},
        "only": {},
        "values": {"source": "waits", "most": 200, "step_us": 3_600_000_000},
        "window": window,
        "grain": grain,
        **more,
    }
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        found = worker.answer(asked)
        took.append((time.perf_counter() - begun) * 1e3)
        assert "error" not in found, found
    times = ", ".join(f"{one:.0f}" for one in took)
    return f"{times} ms, {len(found['rows'])} rows"


def run(directory: Path, hours: float, servers: int, days: int, bytes_only: bool) -> None:
    """Measure and print."""
    import clickhouse_connect

    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    base = [found for _, found in ticks(hours, end - timedelta(hours=hours))]
    client = clickhouse_connect.get_client(interface="chdb", path=str(directory))
    print(f"measured: bytes of a row on disk, one server, {hours:g} h, merged")
    for name, size in sizes(client, base).items():
        print(f"  {name:15}{size:8.1f}")
    if bytes_only:
        client.close()
        return
    connection = StoreConnection(client, "bench")
    store_schema.make(connection)
    number, seconds, processor_s = ingest(connection, base, OF_AGENT)
    rate = number / seconds
    print(f"measured: {number} rows of {OF_AGENT} servers and {hours:g} h, as an agent sends them:")
    print(f"  {rate:.0f} rows/s, {processor_s / number * 1e6:.2f} µs of processor time a row")
    needed = ROWS_A_DAY * servers / 86400
    print(
        f"computed: {servers} servers bring {needed:.0f} rows/s: {needed / rate * 100:.0f} % of "
        f"that, {needed * processor_s / number:.2f} processors"
    )
    filled = fill_hours(connection, base, servers, days)
    us = int(end.timestamp()) * 10**6
    marks = {"waits_1h": us, "ticks_1h": us}
    pushed_rows.note_push(connection, SPOOL, len(base), marks)
    worker = StoreWorker(lambda: connection)
    print(f"measured: {filled} rows of hours, {servers} servers, {days} days; the page's queries:")
    month = (us - days * 86400 * 10**6, us)
    by_event = {"identifiers": {"rows": "waits", "dimension": "event"}}
    found = ask(worker, "breakdown", month, "hour", **by_event)
    print(f"  what sessions waited for, all, {days} d: {found}")
    series = {**by_event, "identifiers": {"rows": "waits", "dimension": "type"}}
    print(f"  activity, all, {days} d: {ask(worker, 'series', month, 'hour', **series)}")
    one = {**by_event, "only": {"server": "server-7"}}
    found = ask(worker, "breakdown", month, "hour", **one)
    print(f"  what sessions waited for, one server, {days} d: {found}")
    last = (us - 3600 * 10**6, us)
    print(f"  what sessions waited for, {OF_AGENT} servers, ticks of 1 h: "
          f"{ask(worker, 'breakdown', last, 'tick', **by_event)}")  # fmt: skip
    begun = time.perf_counter()
    connection.rows(
        "SELECT seq, count() FROM bench.waits WHERE spool = {spool:String} AND seq >= 7 "
        "AND seq <= 12 GROUP BY seq",
        {"spool": SPOOL},
    )
    print(f"  rows of six commits counted: {(time.perf_counter() - begun) * 1e3:.0f} ms")
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"measured: {volume(size)} on disk, memory of this process at most {volume(peak)}")
    client.close()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--bytes-only", action="store_true", help="only the bytes of a row")


def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        run(Path(name), given.hours, given.servers, given.days, given.bytes_only)
