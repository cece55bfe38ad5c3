"""Sums over the waits of a trace, block by block: what is read and forgotten takes no memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.file.blocks import Block
from pgtare.observing.trace.file.reader import MAX_EVENTS, Integers, scan
from pgtare.observing.trace.file.tables import Table

BUCKETS = 64

Floats = npt.NDArray[np.float64]


def bucket(length_ns: Integers) -> npt.NDArray[np.int64]:
    """The power of two below each length: bucket b holds lengths from 2^b up to 2^(b+1) ns.

    A length of 0 or 1 ns is in bucket 0.
    """
    bits = np.maximum(length_ns, 1).astype(np.float64).view(np.int64) >> 52
    # the conversion rounds 2^k - 1 up to 2^k from 2^53 on: those are 104 days and more
    return np.asarray(bits - 1023, dtype=np.int64)


@dataclass
class Totals:
    """By event number: waits, their time in ns, shortest, longest, and lengths by bucket."""

    count: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    total: Floats = field(default_factory=lambda: np.zeros(0))
    shortest: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    longest: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, BUCKETS), int))

    @property
    def waits(self) -> int:
        """All waits."""
        return int(self.count.sum())

    def add(self, event: Integers, length: Integers) -> None:
        """Take waits: their events, by number, and lengths in ns."""
        if not len(event):
            return
        event = np.where((event >= 0) & (event < MAX_EVENTS), event, MAX_EVENTS)
        length = np.clip(length, 0, 1 << 61)
        n = int(event.max()) + 1
        self._grow(n)
        size = len(self.count)
        self.count += np.bincount(event, minlength=size)
        self.total += np.bincount(event, weights=length, minlength=size)
        cells = np.bincount(event * BUCKETS + bucket(length), minlength=size * BUCKETS)
        self.histogram += cells.reshape(size, BUCKETS)
        # sorting 16-bit numbers stably is a radix sort
        order = np.argsort(event.astype(np.uint16), kind="stable")
        ordered = length[order]
        met = np.flatnonzero(np.bincount(event))
        begins = np.searchsorted(event[order], met)
        self.longest[met] = np.maximum(self.longest[met], np.maximum.reduceat(ordered, begins))
        self.shortest[met] = np.minimum(self.shortest[met], np.minimum.reduceat(ordered, begins))

    def _grow(self, n: int) -> None:
        more = n - len(self.count)
        if more > 0:
            self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
            self.total = np.concatenate([self.total, np.zeros(more)])
            self.longest = np.concatenate([self.longest, np.zeros(more, np.int64)])
            limit = np.full(more, np.iinfo(np.int64).max)
            self.shortest = np.concatenate([self.shortest, limit])
            self.histogram = np.concatenate([self.histogram, np.zeros((more, BUCKETS), int)])


def totals(path: Path) -> Totals:
    """The waits of a trace by event. Raises UsageError; what is damaged is left out."""
    found = Totals()
    for block in scan(path, frozenset({int(Table.WAITS)})):
        if isinstance(block, Block):
            found.add(np.asarray(block.columns["event"]), np.asarray(block.columns["length_ns"]))
    return found
