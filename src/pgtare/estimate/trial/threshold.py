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


def threshold(values: Floats) -> float:
    """The 99.9th percentile."""
    return float(np.quantile(values, THRESHOLD_QUANTILE)) if values.size else NAN


def shared_threshold(reference: Floats, arm: Floats) -> float:
    """c, the 99.9th percentile of an equal mixture of the base's values and of an arm's.

    reference: of the base and its control. Other arms have no part in it: what divides an arm's
    body from its tail would else depend on what it is weighed with. Both sides count the same,
    however many slots they have, and exchanging them moves nothing. A c from the base alone would
    cut off what an arm adds to every transaction, if that is more than the base's own spread.
    """
    if not (reference.size and arm.size):
        return NAN
    return float(shared_thresholds(reference.reshape(1, -1), arm.reshape(1, -1))[0])


def shared_thresholds(reference: Floats, arm: Floats) -> Floats:
    """The same of several trials (T,); reference: (T, N), arm: (T, M), neither empty.

    It is the least value with at most 0.1 % of the mixture after it in ascending order. Only the
    greatest are put in order: each weighs at least half of one of the larger side's.
    """
    sizes = reference.shape[1], arm.shape[1]
    values = np.concatenate([reference, arm], axis=1)
    kept = min(sum(sizes), int(2 * (1 - THRESHOLD_QUANTILE) * max(sizes)) + 2)
    top = np.argpartition(values, sum(sizes) - kept, axis=1)[:, sum(sizes) - kept :]
    top = np.take_along_axis(top, np.argsort(np.take_along_axis(values, top, 1), axis=1), axis=1)
    # in whole numbers, so that no sum is off by its last digit: each value weighs the other's size
    weight = np.array([sizes[1], sizes[0]])[(top >= sizes[0]).astype(np.int64)]
    above = weight.sum(axis=1, keepdims=True) - np.cumsum(weight, axis=1)
    at = (round(1 / (1 - THRESHOLD_QUANTILE)) * above <= 2 * sizes[0] * sizes[1]).argmax(axis=1)
    return np.asarray(values[np.arange(len(values)), top[np.arange(len(values)), at]])
