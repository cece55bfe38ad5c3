"""Readings as tables, kept in the spool: the next agent continues where this one ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pgtare.postgres.wait_counters import steady_clock
from pgtare.postgres.wait_counters.counter_table import SUMS, Array, CounterTable
from pgtare.postgres.wait_counters.epoch import Origin, Taken

_ORIGIN = ("system_identifier", "started_us", "memory_us", "reset_us", "resets")
_COUNTS = ("max_ns", "running", "processes")

#: The stored table of a part, or None.
Stored = Callable[[str], pa.Table | None]
StoredReading = tuple[Origin, Taken, CounterTable]


def moment_table(origin: Origin, taken: Taken) -> pa.Table:
    """When a reading was taken, and of which counters: one row."""
    values: dict[str, Any] = {name: getattr(origin, name) for name in _ORIGIN}
    values |= {name: getattr(taken, name) for name in ("server_us", "agent_us", "monotonic_ns")}
    columns = {name: pa.array([value], pa.int64()) for name, value in values.items()}
    return pa.table({**columns, "boot": pa.array([steady_clock.boot()], pa.string())})


def moment(table: pa.Table) -> tuple[Origin, Taken]:
    """The same, read again."""
    (row,) = table.to_pylist()
    same_boot = row["boot"] is not None and row["boot"] == steady_clock.boot()
    monotonic_ns = row["monotonic_ns"] if same_boot else None
    taken = Taken(row["server_us"], row["agent_us"], monotonic_ns)
    return Origin(*(row[name] for name in _ORIGIN)), taken


def counter_columns(table: CounterTable) -> pa.Table:
    """Counters, one column each; those of the keys begin with "key_"."""
    columns: dict[str, Array] = {f"key_{name}": column for name, column in table.keys.items()}
    columns |= {name: table.sums[:, number] for number, name in enumerate(SUMS)}
    columns |= {name: getattr(table, name) for name in _COUNTS}
    return pa.table({name: arrow(column) for name, column in columns.items()})


def counters(table: pa.Table) -> CounterTable:
    """The same, read again."""
    columns = {name: _array(table.column(name)) for name in table.column_names}
    keys = {
        name.removeprefix("key_"): column
        for name, column in columns.items()
        if name.startswith("key_")
    }
    sums = np.stack([columns[name] for name in SUMS], axis=1)
    # earlier agents stored what the server gave, which may have had an entry twice
    return CounterTable(keys, sums, *(columns[name] for name in _COUNTS)).distinct()


def arrow(column: Array) -> pa.Array:
    """A column as Arrow has it."""
    text = column.dtype.kind == "U"
    return pa.array(
        column.astype(object) if text else np.ascontiguousarray(column),
        pa.string() if text else None,
    )


def _array(column: pa.ChunkedArray) -> Array:
    found: Array = column.to_numpy()
    return found.astype("U") if pa.types.is_string(column.type) else found


def stored_reading(stored: Stored, part: str) -> StoredReading | None:
    """A reading of counters, if the spool has all of it."""
    table, info = stored(part), stored(f"{part}-info")
    if table is None or info is None:
        return None
    return (*moment(info), counters(table))


def stored_activity(stored: Stored, part: str) -> tuple[Origin, Taken, Array] | None:
    """The matrix of what databases did, if the spool has all of it."""
    table, info = stored(part), stored(f"{part}-info")
    if table is None or info is None:
        return None
    columns: list[Any] = [column.to_numpy() for column in table.columns]
    return (*moment(info), np.stack(columns, axis=1))


def stored_recordings(stored: Stored) -> set[tuple[int, int]]:
    """Numbers and beginnings of the recordings that were known."""
    table = stored("recordings")
    if table is None:
        return set()
    return {(row["number"], row["started_us"]) for row in table.to_pylist()}
