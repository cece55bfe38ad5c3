"""Cumulative counters at one moment, as arrays: one row an entry, all sums in one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Columns of the matrix of sums: calls (waits that ended), total_ns, active_ns, then the buckets
#: h00 … h31.
CALLS, TOTAL_NS, ACTIVE_NS, FIRST_BUCKET = 0, 1, 2, 3
BUCKETS = 32
WIDTH = FIRST_BUCKET + BUCKETS
SUMS = ("calls", "total_ns", "active_ns", *(f"h{bucket:02}" for bucket in range(BUCKETS)))
#: There is no maximum.
NO_MAXIMUM = -1


@dataclass(frozen=True)
class CounterTable:
    """One row an entry.

    keys: what an entry is, equally long columns. sums: int64, shape (entries, WIDTH); active_ns is
    total_ns and what the waits in progress have lasted so far. max_ns: int64, the longest wait.
    running: int64, waits in progress. processes: int64, processes that the figures come from.
    """

    keys: Mapping[str, Array]
    sums: Array
    max_ns: Array
    running: Array
    processes: Array

    def __len__(self) -> int:
        return len(self.max_ns)

    def select(self, rows: Array) -> CounterTable:
        """The entries that an index or a mask chooses."""
        keys = {name: column[rows] for name, column in self.keys.items()}
        return CounterTable(
            keys, self.sums[rows], self.max_ns[rows], self.running[rows], self.processes[rows]
        )

    def distinct(self) -> CounterTable:
        """Each entry once: a server may give two of its events one name."""
        codes = codes_of(self.keys)
        if not len(codes) or len(np.unique(codes)) == len(codes):
            return self
        return self.grouped(tuple(self.keys))

    def grouped(self, names: Sequence[str]) -> CounterTable:
        """Summed over all other keys; the maximum is the greatest of them."""
        columns = {name: self.keys[name] for name in names}
        if not len(self):
            return empty(columns)
        codes = codes_of(columns)
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0])
        return CounterTable(
            {name: column[order][starts] for name, column in columns.items()},
            np.add.reduceat(self.sums[order], starts, axis=0),
            np.maximum.reduceat(self.max_ns[order], starts),
            np.add.reduceat(self.running[order], starts),
            np.add.reduceat(self.processes[order], starts),
        )


def empty(like: Mapping[str, Array]) -> CounterTable:
    """No entries, with keys of the same names and types."""
    keys = {name: column[:0] for name, column in like.items()}
    none = np.zeros(0, np.int64)
    return CounterTable(keys, np.zeros((0, WIDTH), np.int64), none, none, none)


def joined(first: CounterTable, second: CounterTable) -> CounterTable:
    """The entries of both, one after the other."""
    return CounterTable(
        {name: np.concatenate([first.keys[name], second.keys[name]]) for name in second.keys},
        np.concatenate([first.sums, second.sums]),
        np.concatenate([first.max_ns, second.max_ns]),
        np.concatenate([first.running, second.running]),
        np.concatenate([first.processes, second.processes]),
    )


def codes_of(columns: Mapping[str, Array]) -> Array:
    """A number for each row, equal where all columns are."""
    codes = np.zeros(len(next(iter(columns.values()))), np.int64)
    for column in columns.values():
        _, inverse = np.unique(column, return_inverse=True)
        # at most rows², so it never overflows
        _, codes = np.unique(codes * (len(column) + 1) + inverse, return_inverse=True)
    return codes


def matched(first: CounterTable, last: CounterTable) -> tuple[Array, Array, Array]:
    """Which rows are of the same entry.

    Returns rows of `first` and of `last` that belong together, and the rows of `first` that have
    none in `last`. Each table should have an entry once: see `CounterTable.distinct`.
    """
    both = {name: np.concatenate([first.keys[name], column]) for name, column in last.keys.items()}
    codes = codes_of(both)
    before, after = codes[: len(first)], codes[len(first) :]
    _, in_first, in_last = np.intersect1d(before, after, return_indices=True)
    gone = np.setdiff1d(np.arange(len(first)), in_first, assume_unique=True)
    return in_first, in_last, gone
