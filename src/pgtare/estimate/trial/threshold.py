"""The threshold c between body and tail: a service time x is min(x, c) + max(x - c, 0)."""

from __future__ import annotations

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import NAN

THRESHOLD_QUANTILE = 0.999
#: With fewer transactions over the threshold, on average of the arm and the base, the mean of what
#: lies over it has no interval: a normal one would be too narrow if a handful of stalls decides.
#: They may all be the arm's: then it is their number that decides.
MIN_EXCEEDANCES = 20


def threshold(values: Floats, quantile: float = THRESHOLD_QUANTILE) -> float:
    """The 99.9th percentile, or another one."""
    return float(np.quantile(values, quantile)) if values.size else NAN


def alike(values: Floats, together: float = 1.0) -> tuple[Floats, Floats]:
    """Values with weights that are all the same, and add up to this."""
    return values, np.full(len(values), together / max(len(values), 1))


def weighted_threshold(
    reference: tuple[Floats, Floats],
    arm: tuple[Floats, Floats],
    quantile: float = THRESHOLD_QUANTILE,
) -> float:
    """c, the 99.9th percentile of an equal mixture of the base's values and of an arm's.

    Both are values with their weights, which add up to 1. It is the least value with at most 0.1 %
    (1 - quantile) of the mixture above it. reference: of the base and its control. Other arms have
    no part in it: what divides an arm's body from its tail would else depend on what it is weighed
    with. Both sides count the same, however many slots they have, and exchanging them moves
    nothing. A c from the base alone would cut off what an arm adds to every transaction, if that is
    more than the base's own spread.
    """
    if not (reference[0].size and arm[0].size):
        return NAN
    values = np.concatenate([reference[0], arm[0]])
    weights = np.concatenate([reference[1], arm[1]]) / 2
    # only the greatest are put in order
    most = 1 - quantile
    kept = min(len(values), int(most / float(weights[weights > 0].min(initial=1.0))) + 2)
    top = np.argpartition(values, len(values) - kept)[len(values) - kept :]
    top = top[np.argsort(values[top])[::-1]]
    # so much lies above each of them, all of its own weight included; sums are off by a last digit
    above = np.cumsum(weights[top])
    at = int(np.searchsorted(above, most * (1 + 1e-9), side="right"))
    return float(values[top[min(at, kept - 1)]])
