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

Statistic = Literal["mean", "p50", "p95", "p99"]
Ints = np.ndarray[Any, np.dtype[np.int64]]

_PERCENTILES: Mapping[Statistic, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def pair_cycles(
    thread: Ints, cycle: Ints, variant: Ints, latency_ns: Ints, n_variants: int
) -> Floats:
    """The complete cycles of a round, (n, K): variant k's transaction in column k, in µs.

    Transactions (N,) of the same thread and cycle are put side by side. Give it only those whose
    latency counts, from the time they were due, or in a closed loop sent; a cycle that lacks one is
    left out.
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
    return np.asarray(latency_ns[kept] / 1000.0)


@dataclass(frozen=True)
class RoundStatistics:
    """What a round says of each variant, in µs: statistic -> (K,). cycles: complete ones."""

    latency_us: Mapping[Statistic, Floats]
    cycles: int


def summarise(cycles: Floats) -> RoundStatistics:
    """The statistics of one round (n, K). Raises ValueError if it has no complete cycle."""
    if not len(cycles):
        raise ValueError("a round without a complete cycle has no statistics")
    found: dict[Statistic, Floats] = {"mean": cycles.mean(axis=0)}
    for name, p in _PERCENTILES.items():
        found[name] = np.quantile(cycles, p, axis=0)
    return RoundStatistics(found, len(cycles))
