"""Random effects by arrays: Cochran's Q, the variance of true effects over servers, their mean.

All functions take servers in the last axis, so that a simulation has thousands of fleets at once.
statsmodels has Paule and Mandel's estimate, but no Q-profile interval and no prediction interval.
It takes one fleet at a time, and
brings pandas: 115 MB more in each process. Its iteration also reports τ² = 0 if rounding takes Q a
last digit below its target, which a strict tolerance brings about. Here one root finder gives τ²
and its interval. Tests hold it against statsmodels and against published examples.
"""

from __future__ import annotations

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.distributions import chi_square_exceeded

#: Newton's steps: each at least doubles a τ² that is far too small, so this is never reached.
_MOST_STEPS = 2_000


def weighted_squares(estimates: Floats, variances: Floats, tau2: Floats) -> tuple[Floats, Floats]:
    """Cochran's Q at this τ², and the rate at which it falls with τ²: (...)."""
    weights = 1 / (variances + tau2[..., np.newaxis])
    means = (weights * estimates).sum(axis=-1) / weights.sum(axis=-1)
    squares = weights * (estimates - means[..., np.newaxis]) ** 2
    return squares.sum(axis=-1), (weights * squares).sum(axis=-1)


def tau2_at(
    estimates: Floats,
    variances: Floats,
    target: float,
    start: Floats | None = None,
) -> Floats:
    """The τ² at which Q is `target`; 0 if Q is less than that without any (...).

    With the degrees of freedom as target this is Paule and Mandel's estimate (Journal of Research
    of the National Bureau of Standards 1982), with quantiles of χ² the ends of the Q-profile
    interval (Viechtbauer, Statistics in Medicine 2007). Q is convex and falls, so that Newton's
    method comes to the root from below and never passes it.
    """
    tau2 = np.zeros(estimates.shape[:-1]) if start is None else start
    for _ in range(_MOST_STEPS):
        q, slope = weighted_squares(estimates, variances, tau2)
        # equal estimates have no slope; their step is not taken
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            step = np.where(q > target, (q - target) / slope, 0.0)
        tau2 = tau2 + step
        if not np.any(step > 1e-9 * tau2):
            break
    return tau2


def tau2_interval(
    estimates: Floats, variances: Floats, alpha: float = 0.05
) -> tuple[Floats, Floats]:
    """Ends of the Q-profile interval of τ² (...)."""
    df = estimates.shape[-1] - 1
    lower = tau2_at(estimates, variances, chi_square_exceeded(df, alpha / 2))
    upper = tau2_at(estimates, variances, chi_square_exceeded(df, 1 - alpha / 2))
    return lower, upper


def typical_variance(variances: Floats) -> Floats:
    """Higgins and Thompson's typical sampling variance, for I² (Statistics in Medicine 2002)."""
    weights = 1 / variances
    total = weights.sum(axis=-1)
    df = variances.shape[-1] - 1
    return np.asarray(df * total / (total**2 - (weights**2).sum(axis=-1)), dtype=np.float64)


def equal_mean(estimates: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """The plain mean over servers, and its standard error: (...).

    A server that is dear is often slow, has fewer transactions, and so a larger error: weights from
    errors are then weights from costs, and the mean is not the fleet's. So each server counts the
    same. The error is that of the estimates' spread, and no smaller than their own errors leave it:
    servers that agree by chance do not make the mean surer (as Röver, Knapp and Friede, BMC Medical
    Research Methodology 2015, for weighted means).
    """
    k = estimates.shape[-1]
    spread = estimates.var(axis=-1, ddof=1) / k
    own = variances.sum(axis=-1) / k**2
    return estimates.mean(axis=-1), np.sqrt(np.maximum(spread, own))
