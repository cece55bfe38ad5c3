"""Rows made up for spools, and sums over what a spool holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgtare.keeping.spool import manifest, rollup, segments
from pgtare.keeping.spool.believed_clock import BelievedClock
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.tables import TABLES, Column, rows
from pgtare.keeping.spool.writer import Spool

START = datetime(2026, 11, 2, 10, 0, tzinfo=UTC)
#: No reserve and no bound, whatever the disk of the tests is like.
UNLIMITED = SpoolLimits(most_bytes=1 << 60, reserve_bytes=0)


def at(seconds: float) -> datetime:
    """A time of the tests."""
    return START + timedelta(seconds=seconds)


def random_rows(
    table: str,
    times: Iterable[datetime],
    seed: int = 1,
    server: str = "one",
    each: int = 3,
    span: int = 1 << 40,
    covered_s: int = 60,
) -> pa.Table:
    """Rows of any table, `each` for a time, with random figures of this span.

    covered_s: they cover less than that; more than 90 s is spread over minutes.
    """
    rng = np.random.default_rng(seed)
    all_times = [ts for ts in times for _ in range(each)]
    found: dict[str, Any] = {
        column.name: _values(column, len(all_times), rng, span)
        for column in TABLES[table].columns
        if column.name != "segment"
    }
    found["covered_ns"] = rng.integers(min(span, covered_s * 10**9), size=len(all_times))
    return rows(table, {**found, "ts": all_times, "server": [server] * len(all_times)})


def _values(column: Column, number: int, rng: np.random.Generator, span: int) -> Any:
    if pa.types.is_string(column.type):
        return [f"{column.name}{rng.integers(2)}" for _ in range(number)]
    if pa.types.is_boolean(column.type):
        return rng.integers(2, size=number).astype(bool)
    if pa.types.is_timestamp(column.type):
        return [START] * number
    if pa.types.is_list(column.type):
        return [[1, 2]] * number
    if pa.types.is_floating(column.type):
        return rng.random(number)
    values = rng.integers(2 if column.rule == "key" else span, size=number)
    if pa.types.is_int32(column.type):
        return values.astype(np.int32) & 0xFFFF
    if column.nullable:
        return [None if rng.random() < 0.5 else int(value) for value in values]
    return values


def newest(directory: Path) -> manifest.SpoolManifest:
    """What a spool holds; nothing before its first commit."""
    found, wrong = manifest.read(directory)
    assert not wrong
    return found or manifest.SpoolManifest("none")


def held(directory: Path, table: str) -> pa.Table:
    """All rows of a table that the newest commit of a spool has."""
    content = newest(directory)
    found = [segments.read(directory, segment) for segment in content.of_table(table)]
    return pa.concat_tables(found) if found else TABLES[table].schema.empty_table()


def sums(found: pa.Table, table: str) -> dict[str, Any]:
    """What rolled-up rows have in common with those that they sum up: sums, and the largest."""
    result: dict[str, Any] = {}
    for column in TABLES[table].columns:
        if column.rule == "sum":
            result[column.name] = pc.sum(found[column.name]).as_py() or 0
        elif column.rule == "max":
            result[column.name] = pc.max(found[column.name]).as_py()
    return result


def up_to(found: pa.Table, us: int) -> pa.Table:
    """The rows with ts up to a time."""
    return rollup.between(found, -(1 << 62), us)


def check_rolled(directory: Path, table: str) -> None:
    """Every row up to the watermark of a rolled-up table is in it once, and none after it."""
    content = newest(directory)
    source = TABLES[table].source
    assert source is not None
    behind = up_to(held(directory, source), content.rolled_us.get(table, 0))
    assert sums(held(directory, table), table) == sums(behind, table)


def catch_up(spool: Spool, now: datetime) -> int:
    """All upkeep that is due at a time that is right; the number of steps."""
    for name in ("_roll_up_clock", "_age_clock"):
        setattr(spool, name, BelievedClock(int(now.timestamp() * 10**6), 0, math.inf))
    steps = 0
    while spool.maintain(now):
        steps += 1
        assert steps < 1000
    return steps


def number(value: int) -> pa.Table:
    """A reading."""
    return pa.table({"value": [value]})


def value(reading: pa.Table | None) -> int:
    """What a reading of `number` holds; 0 if there is none."""
    return 0 if reading is None else int(reading["value"][0].as_py())
