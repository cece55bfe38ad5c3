"""Mean effects of every arm: body and excess, plain and with carry-over, and the tail's rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pgtare.estimate.blocks import Blocks, Floats
from pgtare.estimate.inference import (
    MISSING,
    NAN,
    Estimate,
    Expansion,
    Reference,
    mean_of_blocks,
    varies,
)
from pgtare.estimate.regression import LagFit, fit

THRESHOLD_QUANTILE = 0.999
TRIM = 0.1
#: With fewer transactions over the threshold, in the arm or in the base, the mean of what lies over
#: it has no interval: a normal one would be too narrow where a handful of stalls decides.
MIN_EXCEEDANCES = 20


def threshold(values: Floats) -> float:
    """c, the 99.9th percentile pooled over all arms, which no relabelling of arms can move."""
    return float(np.quantile(values, THRESHOLD_QUANTILE)) if values.size else NAN


@dataclass(frozen=True)
class Effects:
    """Estimators over one set of blocks, split at a threshold c; times in microseconds.

    With y = min(x, c) and e = max(x - c, 0), x = y + e, and OLS is linear, so that body and
    excess add up to the total exactly, in the estimates and in each cluster's influence.
    """

    blocks: Blocks
    c: float
    peeked: bool = False

    @cached_property
    def body(self) -> Floats:
        """y = min(x, c), (B, L)."""
        return np.minimum(self.blocks.service_us, self.c)

    @cached_property
    def excess(self) -> Floats:
        """e = max(x - c, 0), (B, L)."""
        return np.maximum(self.blocks.service_us - self.c, 0.0)

    @cached_property
    def exceeds(self) -> Floats:
        """1 where x > c, else 0, (B, L)."""
        return (self.blocks.service_us > self.c).astype(np.float64)

    @cached_property
    def by_block(self) -> Reference:
        """Reference for estimates whose error is a mean of independent blocks."""
        return Reference(self.blocks.n, self.blocks.n - 1, self.peeked)

    @cached_property
    def by_cluster(self) -> Reference:
        """Reference for estimates whose error is a sum over clusters."""
        return Reference(self.blocks.n, self.blocks.n_clusters - 1, self.peeked)

    @cached_property
    def _fits(self) -> tuple[LagFit, LagFit]:
        body, excess = fit(self.blocks, [self.body, self.excess])
        return body, excess

    @cached_property
    def _two_lags(self) -> LagFit:
        return fit(self.blocks, [self.body], lags=2)[0]

    def own(self, arm: int) -> Expansion:
        """Body: effect on the transaction itself."""
        return self._fits[0].effect(arm, 0)

    def carry_over(self, arm: int) -> Expansion:
        """Body: effect on the next transaction."""
        return self._fits[0].effect(arm, 1)

    def second_lag(self, arm: int) -> Expansion:
        """Body: effect on the transaction after the next, from a regression with two lags."""
        return self._two_lags.effect(arm, 2)

    def body_cost(self, arm: int) -> Expansion:
        """Body of what an arm costs when left on: own effect + carry-over."""
        return self.own(arm) + self.carry_over(arm)

    def excess_cost(self, arm: int) -> Expansion:
        """The same of the mean above the threshold."""
        tail = self._fits[1]
        return tail.effect(arm, 0) + tail.effect(arm, 1)

    def total_cost(self, arm: int) -> Expansion:
        """Body + excess."""
        return self.body_cost(arm) + self.excess_cost(arm)

    def mean(self, values: Floats, arm: int) -> Expansion:
        """Mean of an arm's slots over all blocks; values (B, L)."""
        blocks = self.blocks
        if not blocks.n:
            return Expansion(NAN, np.empty(0))
        by_block = blocks.arm_mean(values, arm)
        centre = float(by_block.mean())
        influence = np.add.reduceat(by_block - centre, blocks.cluster_starts) / blocks.n
        return Expansion(centre, influence)

    @cached_property
    def base_body(self) -> Expansion:
        """The base arm's mean of min(x, c): what every percentage and the margin are of.

        Not the raw mean, which one stall of a minute can double.
        """
        return self.mean(self.body, 0)

    def exceedances(self, arm: int) -> int:
        """How many units lie over the threshold: of the arm or of the base, whichever has fewer."""
        columns = (self.blocks.slots(arm), self.blocks.slots(0))
        return min(int(self.exceeds[:, slots].sum()) for slots in columns)

    def tail_judged(self, arm: int) -> bool:
        """Whether so many units lie over the threshold that the mean over it has an interval."""
        return self.exceedances(arm) >= MIN_EXCEEDANCES

    def tail_interval(self, arm: int, expansion: Expansion, alpha: float = 0.05) -> Estimate:
        """The interval of an estimate that holds the arm's excess; none where too few exceed.

        The error is that of so many slow units, however many clusters there are.
        """
        if not self.tail_judged(arm):
            return Estimate(expansion.value, NAN, NAN, NAN)
        reference = self.reference(expansion)
        reference = replace(reference, df=min(reference.df, self.exceedances(arm) - 1))
        return reference.interval(expansion.value, expansion.se, alpha)

    def plain(self, values: Floats, arm: int) -> Estimate:
        """Plain effect: mean block difference from the base; values (B, L)."""
        return mean_of_blocks(self.blocks.difference(values, arm), self.by_block)

    def interval(self, expansion: Expansion, alpha: float = 0.05) -> Estimate:
        """The 1 - alpha interval of an estimate by clusters, in its own unit."""
        return self.reference(expansion).interval(expansion.value, expansion.se, alpha)

    def reference(self, expansion: Expansion) -> Reference:
        """`by_cluster`, with fewer degrees of freedom if a few clusters dominate this estimate."""
        return self.by_cluster.of(expansion.influence)

    def p_value(self, expansion: Expansion) -> float:
        """Two-sided p of an estimate by clusters; NaN where it does not vary."""
        if not varies(expansion.value, expansion.se):
            return NAN
        return self.reference(expansion).p_value(expansion.value / expansion.se)

    def percent(self, expansion: Expansion) -> Expansion:
        """An effect in percent of the base's body (delta method)."""
        return expansion.over(self.base_body).scaled(100.0)


def trimmed_mean(values: Floats, reference: Reference) -> Estimate:
    """10 % trimmed mean of block differences (B,), with its SE from the winsorised variance.

    Tukey and McLaughlin (1963).
    """
    n = len(values)
    cut = int(TRIM * n)
    if n - 2 * cut < 2:
        return MISSING
    ordered = np.sort(values)
    winsorised = np.clip(ordered, ordered[cut], ordered[n - cut - 1])
    se = float(winsorised.std(ddof=1)) / ((1 - 2 * TRIM) * math.sqrt(n))
    return reference.interval(float(ordered[cut : n - cut].mean()), se)


def cpu_cost(blocks: Blocks, *, peeked: bool = False) -> tuple[float, dict[int, Estimate]] | None:
    """The base's mean CPU time a cycle, and the body of every arm's cost of it, microseconds.

    Over the blocks in which it was taken of every unit; None where there is none.
    """
    taken = np.asarray(np.isfinite(blocks.cpu_us).all(axis=1), dtype=np.bool_)
    if not taken.any():
        return None
    kept = blocks.where(taken)
    effects = Effects(replace(kept, service_us=kept.cpu_us), threshold(kept.cpu_us), peeked)
    costs = {arm: effects.interval(effects.body_cost(arm)) for arm in range(1, kept.n_arms)}
    return effects.mean(kept.cpu_us, 0).value, costs
