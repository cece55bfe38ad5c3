"""Duet rounds: cycles paired, statistics of each variant in each round, and their log-ratios.

In a cycle every variant does the same transaction once, in random order, so its differences are
paired. A round gives one number for each variant and statistic; transactions are never the unit
of inference. Rounds come in sets in which each variant plays each cluster once: over a set, what a
cluster's placement is worth cancels out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pgtare.estimate.arrays import Floats

Statistic = Literal["mean", "body", "p50", "p95", "p99"]
Ints = np.ndarray[Any, np.dtype[np.int64]]

#: The body's cap is this percentile, pooled over the variants so that it favours none.
CAP = 0.999
_PERCENTILES: Mapping[Statistic, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Cycles:
    """The complete cycles of a round, (n, K): variant k's transaction in column k, in µs.

    latency: from the time it was due, or in a closed loop sent. incomplete: transactions left out
    because their cycle lacks another one.
    """

    latency_us: Floats
    incomplete: int

    @property
    def n(self) -> int:
        """Complete cycles."""
        return len(self.latency_us)


def pair_cycles(
    thread: Ints, cycle: Ints, variant: Ints, latency_ns: Ints, n_variants: int
) -> Cycles:
    """Put the transactions (N,) of the same thread and cycle side by side.

    Give it only transactions whose latency counts; a cycle that lacks one is left out.
    """
    order = np.lexsort((variant, cycle, thread))
    thread, cycle = thread[order], cycle[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (thread[1:] != thread[:-1]) | (cycle[1:] != cycle[:-1])
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, len(order)))
    rows = starts[sizes == n_variants][:, None] + np.arange(n_variants)[None, :]
    kept = order[rows]
    if not np.array_equal(variant[kept], np.broadcast_to(np.arange(n_variants), kept.shape)):
        raise ValueError("a cycle holds a variant twice")
    return Cycles(latency_ns[kept] / 1000.0, len(order) - int(rows.size))


def statistics_of(values: Floats) -> dict[Statistic, Floats]:
    """Each statistic of each variant (K,), from the cycles' values (n, K).

    mean: of all; body: of min(x, c), c the pooled 99.9th percentile; p50, p95, p99: percentiles.
    """
    if not len(values):
        raise ValueError("a round without a complete cycle has no statistics")
    result: dict[Statistic, Floats] = {
        "mean": values.mean(axis=0),
        "body": np.minimum(values, np.quantile(values, CAP)).mean(axis=0),
    }
    for name, p in _PERCENTILES.items():
        result[name] = np.quantile(values, p, axis=0)
    return result


@dataclass(frozen=True)
class RoundStatistics:
    """What a round says of each variant, in µs: statistic -> (K,). cycles: complete ones."""

    latency_us: Mapping[Statistic, Floats]
    cycles: int
    incomplete: int


def summarise(cycles: Cycles) -> RoundStatistics:
    """The statistics of one round. Raises ValueError if it has no complete cycle."""
    return RoundStatistics(statistics_of(cycles.latency_us), cycles.n, cycles.incomplete)


def by_set(ratios: Floats, sets: Ints) -> Floats:
    """The mean over each set of rounds (S, K): the unit of inference of a duet.

    ratios: (R, K), with NaN for dropped rounds; sets: (R,), which set a round belongs to. A set
    with a dropped round is left out as a whole, as placement would not cancel in it.
    """
    means = np.stack([ratios[sets == number].mean(axis=0) for number in np.unique(sets)])
    return np.asarray(means[np.isfinite(means).all(axis=1)])
