"""Rows of a real server as an agent commits them, for the simulated day of `bench/spool.py`."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.agent_runs import AgentProcess, watched_load
from bench.harness import say
from pgtare.watching.spool import reader, segments
from pgtare.watching.spool.tables import TABLES

TICK_US = 10_000_000

#: The rows of one tick, by table.
Tick = dict[str, pa.Table]


def record(
    minutes: float, server: str, *, clients: int, rate: float, scale: int = 20
) -> list[Tick]:
    """What an agent keeps of an embedded server with a load, tick by tick, for a time."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        spool, config = directory / "spool", directory / "agent.toml"
        with watched_load(
            directory, clients=clients, rate=rate, statements=100, scale=scale
        ) as load:
            config.write_text(f"[servers.{server}]\ndsn = {json.dumps(load.agent_dsn)}\n")
            words = ["--config", config, "--spool", spool]
            with AgentProcess(directory / "log", *words) as agent:
                agent.wait_connected()
                say(f"real rows for {minutes:g} minutes")
                time.sleep(60 * minutes)
                load.running.check()
                reports = load.running.progress
                say(f"{np.mean([report.tps for report in reports]):.0f} tx/s, {clients} sessions")
        return ticks(spool)


def ticks(spool: Path) -> list[Tick]:
    """The rows of a spool that are not sums of others, by ticks of ten seconds; none is left out.

    A tick without rows is an empty one.
    """
    content, _ = reader.newest(spool)
    tables = {}
    for name, table in TABLES.items():
        found = [segments.read(spool, segment) for segment in content.of_table(name)]
        if found and table.source is None:
            tables[name] = pa.concat_tables(found).select(table.row_schema.names)
    times = {name: segments.times_us(table) for name, table in tables.items()}
    first = min(int(us.min()) for us in times.values()) // TICK_US * TICK_US
    number = {name: (us - first) // TICK_US for name, us in times.items()}
    last = max(int(of_table.max()) for of_table in number.values())
    return [
        {
            name: table.filter(pa.array(number[name] == index))
            for name, table in tables.items()
            if np.any(number[name] == index)
        }
        for index in range(last + 1)
    ]


def moved(tick: Tick, index: int, start: datetime) -> Tick:
    """The rows of a tick, at the time of the tick of that number since the start."""
    start_us = int(start.timestamp()) * 1_000_000 + (index - 1) * TICK_US
    return {name: _moved(table, start_us) for name, table in tick.items()}


def _moved(table: pa.Table, start_us: int) -> pa.Table:
    # the first of a tick's interval is left out and its end is in it, as in the simulated ones
    since = segments.times_us(table) % TICK_US
    at = table.schema.get_field_index("ts")
    values = pa.array(start_us + np.where(since == 0, TICK_US, since), pa.int64())
    return table.set_column(
        at, table.schema.field("ts"), values.cast(table.schema.field("ts").type)
    )
