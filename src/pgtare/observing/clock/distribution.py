"""The exact distribution of differences: conversion to ns, percentiles, log2 histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgtare.observing.clock.probe import ProbeRun

NS = 1_000_000_000


@dataclass(frozen=True)
class Distribution:
    """Differences in ticks, ascending and each once, how often each was seen, and their rate."""

    ticks: tuple[int, ...]
    counts: tuple[int, ...]
    hz: int

    @classmethod
    def of(cls, recording: ProbeRun, hz: int) -> Distribution:
        """What a run recorded; `hz` is 1,000,000,000 for a clock that gives ns."""
        return cls(tuple(recording.ticks.tolist()), tuple(recording.counts.tolist()), hz)

    def ns(self, ticks: float) -> float:
        """Ticks in ns."""
        return ticks * NS / self.hz

    def whole_ns(self, ticks: int) -> int:
        """Ticks above 0 in whole ns, cut off as PostgreSQL does, in exact arithmetic."""
        return ticks * NS // self.hz

    def step(self) -> int | None:
        """The smallest difference above 0."""
        return next((t for t in self.ticks if t > 0), None)

    def quantile(self, share: float) -> int | None:
        """The smallest difference that at least this share of all do not exceed."""
        if not self.ticks:
            return None
        running = np.cumsum(np.array(self.counts, np.float64))
        return self.ticks[
            min(int(np.searchsorted(running, share * running[-1])), len(self.ticks) - 1)
        ]

    def observed(self) -> int:
        """Ticks that all the differences above 0 add up to."""
        return sum(t * n for t, n in zip(self.ticks, self.counts, strict=True) if t > 0)

    def histogram(self) -> list[tuple[int, int]]:
        """Upper bound in ns and count of the buckets 0, 1, 3, 7, … up to the highest used."""
        counts: list[int] = [0]
        for t, n in zip(self.ticks, self.counts, strict=True):
            if t >= 0:
                bucket = self.whole_ns(t).bit_length()
                counts.extend([0] * (bucket + 1 - len(counts)))
                counts[bucket] += n
        return [((1 << bucket) - 1, n) for bucket, n in enumerate(counts)]


@dataclass(frozen=True)
class Cost:
    """ns a reading takes by itself, and what the recording loop adds."""

    read_ns: float
    loop_ns: float


def cost_of(groups: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Cost:
    """From repetitions of batches, each in both loops: medians, which a stall does not move."""
    read = float(np.median([np.median(only) for only, _ in groups]))
    loop = float(np.median([np.median(both - only) for only, both in groups]))
    return Cost(read, max(0.0, loop))
