"""Random effects by arrays: weights, Cochran's Q, and the variance of true effects over servers.

All functions take servers in the last axis, so that a simulation has thousands of fleets at once.
statsmodels has Paule and Mandel's estimate and Hartung and Knapp's error, but no Q-profile
interval, no prediction interval and no scale of at least 1. It takes one fleet at a time, and
brings pandas: 115 MB more in each process. Its iteration also reports τ² = 0 if rounding takes Q a
last digit below its target, which a strict tolerance brings about. Here one root finder gives τ²
and its interval. Tests hold it against statsmodels and against published examples.
"""

from __future__ import annotations

import numpy as np
import scipy

from pgtare.estimate.arrays import Floats

#: Newton's steps: each at least doubles a τ² that is far too small, so this is never reached.
_MOST_STEPS = 2_000


def one_group(shape: tuple[int, ...]) -> Floats:
    """The groups of a fleet that has but one: (1, k) of ones."""
    return np.ones((1, shape[-1]))


def group_means(estimates: Floats, weights: Floats, groups: Floats) -> tuple[Floats, Floats]:
    """Weighted means and sums of weights of groups: (..., g) each; groups (g, k) of 0 and 1."""
    sums = weights @ groups.T
    return (weights * estimates) @ groups.T / sums, sums


def weighted_squares(
    estimates: Floats, variances: Floats, tau2: Floats, groups: Floats
) -> tuple[Floats, Floats]:
    """Cochran's Q at this τ², within groups, and the rate at which it falls with τ²: (...)."""
    weights = 1 / (variances + tau2[..., np.newaxis])
    means, _ = group_means(estimates, weights, groups)
    squares = weights * (estimates - means @ groups) ** 2
    return squares.sum(axis=-1), (weights * squares).sum(axis=-1)


def tau2_at(
    estimates: Floats,
    variances: Floats,
    target: float,
    groups: Floats | None = None,
    start: Floats | None = None,
) -> Floats:
    """The τ² at which Q is `target`; 0 if Q is less than that without any (...).

    With the degrees of freedom as target this is Paule and Mandel's estimate (Journal of Research
    of the National Bureau of Standards 1982), with quantiles of χ² the ends of the Q-profile
    interval (Viechtbauer, Statistics in Medicine 2007). Q is convex and falls, so that Newton's
    method comes to the root from below and never passes it.
    """
    groups = one_group(estimates.shape) if groups is None else groups
    tau2 = np.zeros(estimates.shape[:-1]) if start is None else start
    for _ in range(_MOST_STEPS):
        q, slope = weighted_squares(estimates, variances, tau2, groups)
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
    low, high = scipy.special.chdtri(estimates.shape[-1] - 1, [alpha / 2, 1 - alpha / 2])
    lower = tau2_at(estimates, variances, float(low))
    upper = tau2_at(estimates, variances, float(high))
    return lower, upper


def typical_variance(variances: Floats) -> Floats:
    """Higgins and Thompson's typical sampling variance, for I² (Statistics in Medicine 2002)."""
    weights = 1 / variances
    total = weights.sum(axis=-1)
    df = variances.shape[-1] - 1
    return np.asarray(df * total / (total**2 - (weights**2).sum(axis=-1)), dtype=np.float64)


def hartung_knapp(
    estimates: Floats, variances: Floats, tau2: Floats, groups: Floats
) -> tuple[Floats, Floats]:
    """Means of groups and their standard errors: (..., g) each.

    Hartung and Knapp's scale, at least 1: with it, servers that agree by chance do not make the
    mean surer than their own standard errors do (Röver, Knapp and Friede, BMC Medical Research
    Methodology 2015). Groups share the scale.
    """
    weights = 1 / (variances + tau2[..., np.newaxis])
    means, sums = group_means(estimates, weights, groups)
    q, _ = weighted_squares(estimates, variances, tau2, groups)
    df = estimates.shape[-1] - len(groups)
    scale = np.maximum(q / df, 1.0) if df > 0 else np.ones_like(q)
    return means, np.sqrt(scale[..., np.newaxis] / sums)
