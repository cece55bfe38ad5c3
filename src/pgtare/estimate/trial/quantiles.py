"""Effects on percentiles, with standard errors from blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import MISSING, Estimate, Reference, mean_of_blocks
from pgtare.estimate.trial.blocks import Blocks

PERCENTILES = (0.50, 0.99)


@dataclass(frozen=True)
class Quantiles:
    """The percentiles of one arm, and the influence of its units on each."""

    value: Floats  # (2,) microseconds
    psi: Floats  # (2, B) mean influence of the arm's units in each block


def _step(p: float) -> float:
    """h of the finite difference that estimates the density at a quantile."""
    return min(0.02, (1 - p) / 2)


def of_arm(blocks: Blocks, arm: int) -> Quantiles:
    """Percentiles of an arm.

    psi = (p - 1[x <= q]) / f(q), the influence function of a sample quantile (Bahadur 1966), with
    the density f by finite difference of the quantile function.
    """
    values = blocks.service_us[:, blocks.slots(arm)]
    if values.size == 0:
        return Quantiles(np.full(len(PERCENTILES), np.nan), np.empty((len(PERCENTILES), 0)))
    wanted = [point for p in PERCENTILES for point in (p - _step(p), p, p + _step(p))]
    points = np.quantile(values, wanted).reshape(-1, 3)
    psi = [
        (p - (values <= q).mean(axis=1)) * (above - below) / (2 * _step(p))
        for p, (below, q, above) in zip(PERCENTILES, points, strict=True)
    ]
    return Quantiles(points[:, 1], np.stack(psi))


def differences(arm: Quantiles, base: Quantiles, reference: Reference) -> list[Estimate]:
    """Difference of each percentile of an arm from the base's, one for each of PERCENTILES.

    Each arm's influence is taken at its own quantile. Linearising both at a pooled quantile is
    the same for small effects, but if the effect is as large as the spread of service times,
    the pooled quantile falls between the two humps, where there is no density to divide by.
    """
    return [
        _difference(float(q - q_base), psi - psi_base, reference)
        for q, q_base, psi, psi_base in zip(arm.value, base.value, arm.psi, base.psi, strict=True)
    ]


def _difference(effect: float, psi: Floats, reference: Reference) -> Estimate:
    if len(psi) < 2:
        return MISSING
    spread = mean_of_blocks(psi, reference)
    return reference.interval(effect, spread.se)
