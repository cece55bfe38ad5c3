"""From an effect and its variance to intervals, p-values, power and time still needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pgtare.estimate import sequential
from pgtare.estimate.arrays import Floats
from pgtare.estimate.distributions import normal_quantile, student_below, student_quantile
from pgtare.estimate.effective_clusters import degrees_of_freedom

NAN = math.nan
#: A standard error below this share of its estimate, or of one unit, is what arithmetic leaves of
#: values that do not vary.
NOTHING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """An estimate with its standard error and interval; NaN if it cannot be had."""

    estimate: float
    se: float
    lo: float
    hi: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.hi - self.lo) / 2

    def times(self, factor: float) -> Estimate:
        """The same in another unit; factor: above zero, or NaN."""
        return Estimate(
            self.estimate * factor, self.se * factor, self.lo * factor, self.hi * factor
        )


MISSING = Estimate(NAN, NAN, NAN, NAN)


def varies(estimate: float, se: float) -> bool:
    """Whether a standard error is more than the last digits of the arithmetic; NaN is not."""
    return math.isfinite(se) and se > NOTHING * max(1.0, abs(estimate))


@dataclass(frozen=True)
class Reference:
    """What a studentised effect is held against.

    Student's t with df degrees of freedom, one less than the blocks or clusters that the variance
    is from: a thousand blocks are but 63 clusters, for which the normal is a little too narrow.
    The confidence sequence if the trial was stopped by someone who saw the effects (peeked).
    tuned_at: the number of blocks at which that sequence is tightest.
    """

    blocks: int
    df: float
    peeked: bool = False
    tuned_at: int = sequential.TUNED_AT

    def of(self, influence: Floats) -> Reference:
        """For an estimate with these influences of clusters: as few df as a few of them leave."""
        if self.df < 1 or len(influence) < 2:
            return self
        return replace(self, df=min(self.df, degrees_of_freedom(influence)))

    def _wider(self, alpha: float = 0.05) -> float:
        """The sequence is of normal estimates: by how much Student's interval is wider."""
        quantile = 1 - alpha / 2
        return student_quantile(self.df, quantile) / normal_quantile(quantile)

    def multiplier(self, alpha: float = 0.05) -> float:
        """Half-width of the two-sided 1 - alpha interval, in standard errors."""
        if self.df < 1:
            return NAN
        if self.peeked:
            return sequential.multiplier(self.blocks, alpha, self.tuned_at) * self._wider(alpha)
        return student_quantile(self.df, 1 - alpha / 2)

    def p_value(self, z: float) -> float:
        """Two-sided p-value of a studentised effect; NaN stays NaN."""
        if math.isnan(z) or self.df < 1:
            return NAN
        fixed = 2 * student_below(self.df, -abs(z))
        if self.peeked:
            z /= self._wider()
            return max(sequential.p_value(z, self.blocks, tuned_at=self.tuned_at), fixed)
        return fixed

    def p_of(self, effect: Expansion) -> float:
        """Two-sided p-value of an estimate; NaN if nothing varied."""
        if not varies(effect.value, effect.se):
            return NAN
        return self.p_value(effect.value / effect.se)

    def interval(self, estimate: float, se: float, alpha: float = 0.05) -> Estimate:
        """The two-sided 1 - alpha interval.

        A standard error of zero says that nothing varied, not that everything is known: it gives
        no interval.
        """
        if not (math.isfinite(estimate) and varies(estimate, se)):
            return Estimate(estimate, NAN, NAN, NAN)
        width = self.multiplier(alpha) * se
        return Estimate(estimate, se, estimate - width, estimate + width)


@dataclass(frozen=True)
class Expansion:
    """An estimate and the linear share that each cluster of blocks has in its error (G,).

    Sums and ratios of such estimates keep their covariances, which is the delta method.
    """

    value: float
    influence: Floats

    @property
    def se(self) -> float:
        """Standard error, clusters taken as independent, with the G / (G - 1) correction."""
        clusters = len(self.influence)
        if clusters < 2:
            return NAN
        variance = clusters / (clusters - 1) * float(self.influence @ self.influence)
        return math.sqrt(variance)

    def __add__(self, other: Expansion) -> Expansion:
        return Expansion(self.value + other.value, self.influence + other.influence)

    def scaled(self, factor: float) -> Expansion:
        """This estimate times a constant."""
        return Expansion(self.value * factor, self.influence * factor)

    def __sub__(self, other: Expansion) -> Expansion:
        return self + other.scaled(-1)

    def over(self, other: Expansion) -> Expansion:
        """This estimate divided by another."""
        if not other.value > 0:
            return Expansion(NAN, np.full_like(self.influence, NAN))
        ratio = self.value / other.value
        return Expansion(ratio, (self.influence - ratio * other.influence) / other.value)


def mean_of_blocks(values: Floats, reference: Reference) -> Estimate:
    """Mean of independent block values (B,) with SE sd / sqrt(B)."""
    if len(values) < 2:
        return MISSING
    se = float(values.std(ddof=1)) / math.sqrt(len(values))
    return reference.interval(float(values.mean()), se)


def fieller(
    top: Expansion, bottom: Expansion, reference: Reference, alpha: float = 0.05
) -> Estimate:
    """Ratio of an estimate of either sign to one whose truth is above zero (Fieller 1954).

    The interval holds the ratios r for which top - r * bottom cannot be distinguished from zero.
    So it covers zero if, and only if, the interval of `top` with the same reference does,
    and it holds if a few clusters make up most of the denominator. Ends are infinite if the
    denominator cannot be distinguished from zero. There are none if `top` has no interval of its
    own, as it does not vary. The standard error is the delta method's.
    """
    z = reference.multiplier(alpha)
    ratio = top.over(bottom)
    known = math.isfinite(ratio.value) and varies(top.value, top.se)
    known = known and varies(ratio.value, ratio.se)
    if math.isnan(z) or not known:
        return Estimate(ratio.value, NAN, NAN, NAN)
    scale = len(top.influence) / max(len(top.influence) - 1, 1) * z * z
    aa = top.value**2 - scale * float(top.influence @ top.influence)
    ab = top.value * bottom.value - scale * float(top.influence @ bottom.influence)
    bb = bottom.value**2 - scale * float(bottom.influence @ bottom.influence)
    root = ab * ab - aa * bb
    if bb > 0 and root >= 0:
        ends = (ab - math.sqrt(root)) / bb, (ab + math.sqrt(root)) / bb
        return Estimate(ratio.value, ratio.se, min(ends), max(ends))
    if aa <= 0 or bb == 0:
        return Estimate(ratio.value, ratio.se, -math.inf, math.inf)
    # The top is distinguished from zero, the bottom is not: all ratios beyond one end.
    ends = (ab - math.sqrt(root)) / bb, (ab + math.sqrt(root)) / bb
    if top.value > 0:
        return Estimate(ratio.value, ratio.se, max(ends), math.inf)
    return Estimate(ratio.value, ratio.se, -math.inf, min(ends))


def ratio_interval(
    top: Expansion, bottom: Expansion, reference: Reference, alpha: float = 0.05
) -> Estimate:
    """`fieller` of two quantities that are not below zero, such as rates of rare events."""
    ratio = top.over(bottom)
    if math.isnan(reference.multiplier(alpha)) or not math.isfinite(ratio.value):
        return MISSING
    found = fieller(top, bottom, reference, alpha)
    if not math.isfinite(found.hi):
        return Estimate(ratio.value, ratio.se, 0.0, math.inf)
    return replace(found, lo=max(found.lo, 0.0))


def holm(p_values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """Adjusted p-values over a family (Holm 1979), in the order given.

    weights: of the hypotheses, all 1 unless given; p / weight is what is compared, and the weights
    of those not yet rejected add up. A missing (NaN) p-value stays missing, but still counts in
    the family. A hypothesis without weight is never rejected.
    """
    weight = [1.0] * len(p_values) if weights is None else list(weights)
    adjusted = [NAN if math.isnan(p) else 1.0 for p in p_values]
    known = sorted(
        (p / w, i)
        for i, (p, w) in enumerate(zip(p_values, weight, strict=True))
        if w > 0 and not math.isnan(p)
    )
    left, largest = sum(weight), 0.0
    for ratio, i in known:
        largest = max(largest, min(1.0, ratio * left))
        adjusted[i] = largest
        left -= weight[i]
    return adjusted


def detectable(interval: Estimate, power: float = 0.8) -> float:
    """The smallest effect for which such a 95 % interval excludes zero with this power; its unit.

    With 80 % that is 1.43 half-widths.
    """
    z = normal_quantile(0.975)
    return interval.half_width * (1 + normal_quantile(power) / z)


def effect_factor(
    effect: Estimate, margin: float, family: float, reference: Reference, power: float = 0.8
) -> float:
    """By what factor a trial must lengthen to be decided with this power.

    effect: with its 95 % interval. If that covers zero, the factor is the one to equivalence
    if there is no effect, as the estimate is then mostly noise; else the one to p below 5 % over
    the family, if the estimate is true. Effect and margin share one unit.
    """
    if not (math.isfinite(effect.lo) and math.isfinite(effect.hi) and margin >= 0):
        return NAN
    if effect.lo <= 0 <= effect.hi:
        wanted = margin / _equivalence_width(reference, power)
    else:
        z_power = normal_quantile(power)
        wanted = abs(effect.estimate) / (reference.multiplier(0.05 / max(family, 1)) + z_power)
    return (effect.se / wanted) ** 2 if wanted > 0 else math.inf


def _equivalence_width(reference: Reference, power: float) -> float:
    """Standard errors from zero to the margin that holds a 95 % interval."""
    # Near zero both sides of the margin can fail, which leaves each side half of the misses.
    return reference.multiplier(0.05) + normal_quantile((1 + power) / 2)


def tail_factor(excess: float, se: float, reference: Reference, power: float = 0.8) -> float:
    """By what factor a trial must lengthen until `excess` is shown to be below zero (one-sided).

    excess: an arm's rate of exceeding the threshold less what is tolerated. Infinite if it is
    not below zero.
    """
    if not (math.isfinite(excess) and math.isfinite(se)):
        return NAN
    wanted = -excess / (reference.multiplier(0.10) + normal_quantile(power))
    return (se / wanted) ** 2 if wanted > 0 else math.inf
