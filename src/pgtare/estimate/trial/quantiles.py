"""Effects on percentiles of later runs, with standard errors from their blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import MISSING, Estimate, Expansion, Reference
from pgtare.estimate.trial.strata import Units

PERCENTILES = (0.50, 0.99)


@dataclass(frozen=True)
class Quantiles:
    """The percentiles of one arm, and the share of each block in the error of each."""

    value: Floats  # (2,) microseconds
    influence: Floats  # (2, G)


def _step(p: float) -> float:
    """h of the finite difference that estimates the density at a quantile."""
    return min(0.02, (1 - p) / 2)


def of_arm(units: Units, arm: int) -> Quantiles:
    """Percentiles of an arm.

    The influence is (p - 1[x <= q]) / f(q), that of a sample quantile (Bahadur 1966), with the
    density f by finite difference of the quantile function.
    """
    values = units.service_us[units.members(arm)]
    if values.size == 0:
        shape = (len(PERCENTILES), units.n_clusters)
        return Quantiles(np.full(len(PERCENTILES), np.nan), np.full(shape, np.nan))
    wanted = [point for p in PERCENTILES for point in (p - _step(p), p, p + _step(p))]
    points = np.quantile(values, wanted).reshape(-1, 3)
    n = units.counts(arm)
    influence = []
    for p, (low, q, high) in zip(PERCENTILES, points, strict=True):
        at_most = units.sums((units.service_us <= q).astype(np.float64), arm)
        influence.append((p * n - at_most) * (high - low) / (2 * _step(p)) / n.sum())
    return Quantiles(points[:, 1], np.stack(influence))


def differences(arm: Quantiles, base: Quantiles, reference: Reference) -> list[Estimate]:
    """Difference of each percentile of an arm from the base's, one for each of PERCENTILES.

    Each arm's influence is taken at its own quantile. Linearising both at a pooled quantile is
    the same for small effects, but if the effect is as large as the spread of service times,
    the pooled quantile falls between the two humps, where there is no density to divide by.
    """
    return [
        _difference(Expansion(float(q - q_base), share - share_base), reference)
        for q, q_base, share, share_base in zip(
            arm.value, base.value, arm.influence, base.influence, strict=True
        )
    ]


def _difference(effect: Expansion, reference: Reference) -> Estimate:
    if len(effect.influence) < 2:
        return MISSING
    return reference.interval(effect.value, effect.se)
