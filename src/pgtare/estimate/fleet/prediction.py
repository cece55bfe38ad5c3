"""The next server's true effect: prediction intervals of a fleet.

Two intervals, of which a fleet's estimate takes the outer ends.

- Student's: the mean ± t with k − 2 degrees of freedom × √(τ² + se²) (Higgins, Thompson and
  Spiegelhalter, Journal of the Royal Statistical Society A 2009). It takes τ² as estimated. If
  servers differ about as much as their errors, τ² is often estimated as 0 by chance, and the
  interval then holds in less than 90 %.
- Over the confidence distribution of τ²: for each share u, the τ² that the Q-profile's one-sided
  interval at level u ends at; given it, the next effect is normal. The interval has 95 % of the
  mixture over u (as Nagashima, Noma and Furukawa, Statistical Methods in Medical Research 2019,
  whose distribution of τ² is another one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.distributions import (
    chi_square_exceeded,
    normal_quantile,
    normals_below,
    student_quantile,
)
from pgtare.estimate.fleet.heterogeneity import equal_mean, tau2_at
from pgtare.estimate.inference import NAN

#: Values of τ² that stand for its confidence distribution, by Gauss and Legendre.
_NODES = 32
#: Steps to a quantile at most; mostly six will do.
_STEPS = 60


@dataclass(frozen=True)
class FleetIntervals:
    """Of many fleets at once (...): the mean, and the next server's true effect."""

    mean: Floats
    mean_se: Floats
    mean_width: Floats  # half of the interval
    tau2: Floats
    student_width: Floats  # half of Student's prediction interval; NaN if k < 3
    low: Floats  # of the prediction interval, the outer ends of both; NaN if k < 3
    high: Floats


def intervals(estimates: Floats, variances: Floats, level: float = 0.95) -> FleetIntervals:
    """Mean and prediction intervals of fleets with k ≥ 2 servers each (..., k).

    The mean's interval is Student's with k − 1 degrees of freedom.
    """
    k = estimates.shape[-1]
    tau2 = tau2_at(estimates, variances, k - 1)
    mean, se = equal_mean(estimates, variances)
    width = student_quantile(k - 1, (1 + level) / 2) * se
    if k < 3:
        nothing = np.full_like(mean, NAN)
        return FleetIntervals(mean, se, width, tau2, nothing, nothing, nothing)
    student = student_quantile(k - 2, (1 + level) / 2) * np.sqrt(tau2 + se**2)
    low, high = over_tau2(estimates, variances, level)
    low, high = np.minimum(low, mean - student), np.maximum(high, mean + student)
    return FleetIntervals(mean, se, width, tau2, student, low, high)


def over_tau2(estimates: Floats, variances: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Ends of the prediction interval over the confidence distribution of τ² (...)."""
    points, shares = np.polynomial.legendre.leggauss(_NODES)
    tau2, spreads = np.zeros(estimates.shape[:-1]), []
    k = estimates.shape[-1]
    mean, _ = equal_mean(estimates, variances)
    own = variances.sum(axis=-1) / k**2
    for share in ((1 + points) / 2).tolist():
        # falling, so that each root is at or above the one before
        target = chi_square_exceeded(k - 1, share)
        tau2 = tau2_at(estimates, variances, target, tau2)
        spreads.append(np.sqrt(tau2 + tau2 / k + own))
    mixture = np.repeat(mean[..., np.newaxis], len(spreads), axis=-1), np.stack(spreads, axis=-1)
    low = _quantile(*mixture, shares / 2, (1 - level) / 2)
    return low, _quantile(*mixture, shares / 2, (1 + level) / 2)


def _quantile(means: Floats, spreads: Floats, shares: Floats, p: float) -> Floats:
    """Quantile of mixtures of normals (..., nodes): Newton's method, or halving where it fails."""
    z = normal_quantile(p)
    low, high = (means + z * spreads).min(axis=-1), (means + z * spreads).max(axis=-1)
    found = (low + high) / 2
    for _ in range(_STEPS):
        at = (found[..., np.newaxis] - means) / spreads
        below = normals_below(at) @ shares
        density = (np.exp(-at * at / 2) / (math.sqrt(math.tau) * spreads)) @ shares
        low, high = np.where(below < p, found, low), np.where(below < p, high, found)
        with np.errstate(divide="ignore", over="ignore"):
            newton = found - (below - p) / density
        last, found = found, np.where((low < newton) & (newton < high), newton, (low + high) / 2)
        if np.all(np.abs(found - last) <= 1e-13 * np.abs(high - low + np.abs(found))):
            break
    return np.asarray(found, dtype=np.float64)
