"""Totals of the waits of one server since its metrics began: arrays in, totals out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pgtare.postgres.wait_counters.active_sessions import CPU_TYPE
from pgtare.postgres.wait_counters.counter_table import BUCKETS, SUMS, WIDTH, Array

#: Buckets of a histogram whose upper bound is shown; the last one has none.
SHOWN_BUCKETS = tuple(range(0, BUCKETS - 1, 2))
#: The most time series of a server.
MOST_SERIES = 5000
#: What is not shown on its own is counted under this type, event and kind of process.
OTHER = "(other)"
#: A pair that is new on a server that is shown already begins with zero, for this long, in s:
#: Prometheus cannot see an increase up to the first value of a series.
ZERO_S = 60.0
_KEYS = ("backend_type", "type", "event", "idle")
_SHOWN, _FULL = "shown_", "full_"
#: A sum that reaches 2 to the power of this goes on from zero, and that is counted: a thousand idle
#: sessions have waited for 2^63 ns after 107 days.
_FULL_BITS = 62


class WaitKey(NamedTuple):
    """What a series is of."""

    backend_type: str
    type: str
    event: str
    idle: bool


@dataclass(frozen=True)
class WaitSeries:
    """The totals of one pair of process and event, in the order of SUMS.

    full: how many times each was full, and began again.
    """

    key: WaitKey
    sums: Array
    full: Array
    new_until_s: float

    def seconds(self, column: int) -> float:
        """A total in ns, in s."""
        return ((int(self.full[column]) << _FULL_BITS) + int(self.sums[column])) / 1e9


class WaitTotals:
    """Totals by pair of process and event.

    most: time series that there may be. A pair keeps its place for good, so that no series comes
    and goes.

    Sums are exact. What is shown is their highest value so far: differences are signed, and a
    total that falls by a nanosecond would look like a reset.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._rows: dict[WaitKey, int] = {}
        self._totals = np.zeros((0, 3, WIDTH), np.int64)
        """of each pair: the sums, what is shown of them, and how often they were full"""
        self._new_until_s: list[float] = []
        self.series = 0
        """time series of the pairs that have a place"""

    def add(self, rows: pa.Table, now_s: float) -> None:
        """Rows of the spool's table `waits`. now_s: by a clock that is never set."""
        if not rows.num_rows:
            return
        columns = [rows[name].to_pylist() for name in _KEYS]
        keys = [WaitKey(*values) for values in zip(*columns, strict=True)]
        sums = np.stack([rows[name].to_numpy() for name in SUMS], axis=1).astype(np.int64)
        began = now_s + ZERO_S if self._rows else 0.0
        largest_first = np.argsort(-np.abs(sums[:, SUMS.index("active_ns")]), kind="stable")
        for row in largest_first.tolist():
            self._find_place(keys[row], began)
        places = [self._rows.get(key, self._rows.get(other(key), -1)) for key in keys]
        totals, shown, times_full = self._totals.swapaxes(0, 1)
        np.add.at(totals, places, sums)
        np.maximum(shown, totals, out=shown)
        full = (totals >> _FULL_BITS > 0).astype(np.int64)
        times_full += full
        totals -= full << _FULL_BITS
        shown -= full << _FULL_BITS

    def all_series(self) -> Iterator[WaitSeries]:
        """All series to show; the arrays are copies."""
        _, shown, full = self._totals.copy().swapaxes(0, 1)
        for key, row in self._rows.items():
            yield WaitSeries(key, shown[row], full[row], self._new_until_s[row])

    def _find_place(self, key: WaitKey, began_s: float) -> None:
        if key in self._rows:
            return
        series = self._series_of(key)
        if self.series + series > self.most:
            key = other(key)
            if key in self._rows:
                return
        else:
            self.series += series
        self._add_row(key, began_s)

    def _add_row(self, key: WaitKey, began_s: float) -> None:
        self._rows[key] = len(self._rows)
        self._totals = np.concatenate([self._totals, np.zeros((1, 3, WIDTH), np.int64)])
        self._new_until_s.append(began_s)

    def _series_of(self, key: WaitKey) -> int:
        """A histogram has its buckets, one of them without a bound, a sum and a count.

        What is not idle also has its active time.
        """
        if key.type == CPU_TYPE:
            return 1
        return len(SHOWN_BUCKETS) + (3 if key.idle else 4)

    # The spool

    def to_table(self) -> pa.Table:
        """All of it, for the spool; the order of the rows is that in which pairs came."""
        columns: dict[str, Any] = {
            name: [getattr(key, name) for key in self._rows] for name in _KEYS
        }
        sums, shown, full = self._totals.swapaxes(0, 1)
        for number, name in enumerate(SUMS):
            columns[name] = np.ascontiguousarray(sums[:, number])
            above = shown[:, number] - sums[:, number]
            if np.any(above):  # few columns ever fall
                columns[_SHOWN + name] = above
            if np.any(full[:, number]):
                columns[_FULL + name] = np.ascontiguousarray(full[:, number])
        types = {"idle": pa.bool_(), **dict.fromkeys(_KEYS[:3], pa.string())}
        return pa.table(
            {name: pa.array(column, types.get(name)) for name, column in columns.items()}
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a table of `to_table`. Pairs without room are dropped."""
        columns = [table[name].to_pylist() for name in _KEYS]
        sums = np.stack([table[name].to_numpy() for name in SUMS], axis=1).astype(np.int64)
        shown, full = sums.copy(), np.zeros_like(sums)
        for number, name in enumerate(SUMS):
            if _SHOWN + name in table.column_names:
                shown[:, number] += table[_SHOWN + name].to_numpy()
            if _FULL + name in table.column_names:
                full[:, number] = table[_FULL + name].to_numpy()
        for row, values in enumerate(zip(*columns, strict=True)):
            key = WaitKey(*values)
            series = 0 if key == other(key) else self._series_of(key)
            if self.series + series > self.most:
                continue
            self.series += series
            self._add_row(key, 0.0)
            self._totals[-1] = sums[row], shown[row], full[row]


def other(key: WaitKey) -> WaitKey:
    """Where a pair is counted that has no place of its own."""
    return WaitKey(OTHER, OTHER, OTHER, key.idle)
