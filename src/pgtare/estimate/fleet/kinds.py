"""Whether servers of a fleet are of two kinds: then no interval says what to expect of the next.

A prediction interval takes true effects for normal. If one server in five is dear, and the others
are not, it is wide, and still holds too seldom. So the fleet is cut in two at each place, in the
order of the estimates. The statistic is the largest ratio of the squares between the parts to those
within. What chance makes of it is simulated: normal effects with the fleet's τ², and each server's
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Floats, Ints
from pgtare.estimate.fleet.heterogeneity import tau2_at
from pgtare.estimate.fleet.server_effect import ServerEffect, arrays_of

#: With fewer servers nobody can tell kinds from chance.
FEWEST = 5
#: In fewer than one homogeneous or normal fleet in twenty, whatever the simulation's own error.
ALPHA = 0.03
_DRAWS = 2_000
_SEED = 20_263


@dataclass(frozen=True)
class Kinds:
    """Two kinds of servers. fewer: names of those of the smaller kind; dearer: whether they are."""

    fewer: tuple[str, ...]
    dearer: bool
    p: float  # of "they are of one kind"


def find_kinds(effects: Sequence[ServerEffect]) -> Kinds | None:
    """The two kinds of a fleet, if it is shown to have two. effects: usable ones.

    Deterministic: the simulation has a fixed seed.
    """
    k = len(effects)
    if k < FEWEST:
        return None
    estimates, variances = arrays_of(effects)
    tau2 = float(tau2_at(estimates, variances, k - 1))
    ratio, cut = largest_ratio(estimates)
    rng = np.random.default_rng(_SEED)
    drawn = rng.standard_normal((_DRAWS, k)) * np.sqrt(variances + tau2)
    hits = int(np.count_nonzero(largest_ratio(drawn)[0] >= ratio))
    p = (hits + 1) / (_DRAWS + 1)
    if not p < ALPHA:
        return None
    order = np.argsort(estimates, kind="stable")
    below, above = order[: int(cut)], order[int(cut) :]
    dearer = len(above) <= len(below)
    fewer = sorted(effects[i].server for i in (above if dearer else below))
    return Kinds(tuple(fewer), dearer, p)


def largest_ratio(estimates: Floats) -> tuple[Floats, Ints]:
    """Squares between the parts over those within, where that is largest, and how many are below.

    estimates: (..., k).
    """
    ordered = np.sort(estimates, axis=-1)
    k = ordered.shape[-1]
    below = np.arange(1, k)
    sums = np.cumsum(ordered, axis=-1)
    total = sums[..., -1:]
    gap = (total - sums[..., :-1]) / (k - below) - sums[..., :-1] / below
    between = below * (k - below) / k * gap**2
    squares = ((ordered - total / k) ** 2).sum(axis=-1, keepdims=True)
    # equal estimates have no squares at all
    with np.errstate(over="ignore"):  # parts that agree exactly have none within: infinite
        ratio = between / np.maximum(squares - between, np.finfo(np.float64).tiny)
    cut = ratio.argmax(axis=-1)
    largest = np.take_along_axis(ratio, cut[..., np.newaxis], axis=-1)[..., 0]
    return np.asarray(largest, dtype=np.float64), np.asarray(cut + 1, dtype=np.int64)
