"""Percentiles of values that were written down in whole units, so that many are alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgtare.estimate.arrays import Floats


def mid_quantiles(values: Floats, shares: Sequence[float]) -> Floats:
    """Quantiles of the mid-distribution function, one for each share; values (n,), n > 0.

    F(x) = P(X < x) + P(X = x) / 2 at the values that occur, and lines between them (Ma, Genton and
    Parzen, "Asymptotic properties of sample quantiles of discrete distributions", Ann. Inst. Stat.
    Math. 63, 2011). A usual quantile of latencies in whole microseconds is a whole number itself,
    and two variants that differ by less than one would look equal, or a whole one apart; here it
    says how far into its unit the share reaches.
    """
    found, counts = np.unique(values, return_counts=True)
    middle = (np.cumsum(counts) - counts / 2) / len(values)
    return np.interp(shares, middle, found)
