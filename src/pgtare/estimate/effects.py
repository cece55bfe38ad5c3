"""Mean effects of every arm: body and excess, plain and with carry-over, and the tail's rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pgtare.estimate.blocks import Blocks, Floats
from pgtare.estimate.inference import (
    NAN,
    Estimate,
    Expansion,
    Reference,
    mean_of_blocks,
    percent,
    varies,
)
from pgtare.estimate.outcomes import Unfinished
from pgtare.estimate.regression import LagFit, Model

THRESHOLD_QUANTILE = 0.999
#: With fewer transactions over the threshold, on average of the arm and the base, the mean of what
#: lies over it has no interval: a normal one would be too narrow where a handful of stalls decides.
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
    cut off what an arm adds to every transaction, where that is more than the base's own spread.
    """
    if not (reference.size and arm.size):
        return NAN
    values = np.concatenate([reference.ravel(), arm.ravel()])
    weights = np.repeat([0.5 / reference.size, 0.5 / arm.size], [reference.size, arm.size])
    order = np.argsort(values, kind="stable")
    at = np.searchsorted(np.cumsum(weights[order]), THRESHOLD_QUANTILE)
    return float(values[order[min(int(at), len(order) - 1)]])


def split(blocks: Blocks, reference: Sequence[int], *, peeked: bool = False) -> Effects:
    """Effects split where the base's 99.9th percentile is; `Effects.of` splits where an arm's is.

    reference: the arms that are the base: itself and its control.
    """
    return Effects(blocks, threshold(blocks.service_us[:, blocks.columns(reference)]), peeked)


@dataclass(frozen=True)
class Effects:
    """Estimators over one set of blocks, split at a threshold c; times in microseconds.

    With y = min(x, c) and e = max(x - c, 0), x = y + e, and OLS is linear, so that body and
    excess add up to the total exactly, in the estimates and in each cluster's influence.
    """

    blocks: Blocks
    c: float
    peeked: bool = False
    unfinished: Unfinished | None = None
    base_c: float | None = None  # of `base_body`, where it is not c
    models: dict[int, Model] = field(default_factory=dict, repr=False, compare=False)

    def of(self, arm: int, reference: Sequence[int]) -> Effects:
        """The same split at the threshold that the arm shares with the base.

        What percentages and the margin are of stays as it is.
        """
        service_us, blocks = self.blocks.service_us, self.blocks
        c = shared_threshold(
            service_us[:, blocks.columns(reference)], service_us[:, blocks.slots(arm)]
        )
        return replace(self, c=c, base_c=self.c)

    def within(self, blocks: Blocks) -> Effects:
        """The same of some of the blocks, without what the end cut short."""
        return Effects(blocks, self.c, self.peeked, base_c=self.base_c)

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
    def _body_fit(self) -> LagFit:
        return self._model(1).solve(self.body)

    @cached_property
    def _excess_fit(self) -> LagFit:
        return self._model(1).solve(self.excess)

    @cached_property
    def _two_lags(self) -> LagFit:
        return self._model(2).solve(self.body)

    def _model(self, lags: int) -> Model:
        """The regression, which all thresholds share."""
        if lags not in self.models:
            self.models[lags] = Model(self.blocks, lags)
        return self.models[lags]

    def own(self, arm: int) -> Expansion:
        """Body: effect on the transaction itself."""
        return self._body_fit.effect(arm, 0)

    def carry_over(self, arm: int) -> Expansion:
        """Body: effect on the next transaction."""
        return self._body_fit.effect(arm, 1)

    def second_lag(self, arm: int) -> Expansion:
        """Body: effect on the transaction after the next, from a regression with two lags."""
        return self._two_lags.effect(arm, 2)

    def body_cost(self, arm: int) -> Expansion:
        """Body of what an arm costs when left on: own effect + carry-over."""
        return self.own(arm) + self.carry_over(arm)

    def excess_cost(self, arm: int) -> Expansion:
        """The same of the mean above the threshold, with what the end of the trial cut short."""
        tail = self._excess_fit
        return tail.effect(arm, 0) + tail.effect(arm, 1) + self._cut_short(arm)

    def _cut_short(self, arm: int) -> Expansion:
        """What blocks under way at the end add to the excess of an arm, less the base's."""
        left = self.unfinished
        if left is None:
            return Expansion(0.0, np.zeros(self.blocks.n_clusters))
        excess = np.maximum(left.service_us - self.c, 0.0)
        one, base = (left.mean_shift(self.blocks, excess, self.excess, k) for k in (arm, 0))
        return one - base

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
        if self.base_c is None:
            return self.mean(self.body, 0)
        return self.mean(np.minimum(self.blocks.service_us, self.base_c), 0)

    def exceedances(self, arm: int) -> int:
        """How many units lie over the threshold, on average of the arm and the base."""
        return int(self.exceeds[:, self.blocks.columns((arm, 0))].sum()) // 2

    def tail_judged(self, arm: int) -> bool:
        """Whether so many units lie over the threshold that the mean over it has an interval."""
        return self.exceedances(arm) >= MIN_EXCEEDANCES

    def tail_interval(self, arm: int, expansion: Expansion, alpha: float = 0.05) -> Estimate:
        """The interval of an estimate that holds the arm's excess; none where too few exceed.

        The error is that of so many slow units, however many clusters there are.
        """
        if not self.tail_judged(arm):
            return Estimate(expansion.value, NAN, NAN, NAN)
        return self.by_tail(arm, expansion).interval(expansion.value, expansion.se, alpha)

    def at_most(self, arm: int, alpha: float) -> tuple[float, float]:
        """Upper ends of the 1 - alpha intervals of what an arm costs, in microseconds and percent.

        Of the total; of the body where too few transactions lie over the threshold.
        """
        if self.tail_judged(arm):
            cost = self.total_cost(arm)
            return self.tail_interval(arm, cost, alpha).hi, self.tail_percent(arm, cost, alpha).hi
        cost = self.body_cost(arm)
        return self.interval(cost, alpha).hi, self.percent(cost, alpha).hi

    def by_tail(self, arm: int, expansion: Expansion) -> Reference:
        """Reference for an estimate that holds the arm's excess."""
        reference = self.reference(expansion)
        return replace(reference, df=min(reference.df, self.exceedances(arm) - 1))

    def p_body(self, arm: int) -> float:
        """Two-sided p-value of the body."""
        return self.p_value(self.body_cost(arm))

    def p_total(self, arm: int) -> float:
        """Two-sided p-value of the total, NaN where the tail is not judged."""
        if not self.tail_judged(arm):
            return NAN
        cost = self.total_cost(arm)
        return _p_value(cost, self.by_tail(arm, cost))

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
        return _p_value(expansion, self.reference(expansion))

    def percent(self, expansion: Expansion, alpha: float = 0.05) -> Estimate:
        """An effect in percent of the base's body, with Fieller's interval."""
        return percent(expansion, self.base_body, self.reference(expansion), alpha)

    def tail_percent(self, arm: int, expansion: Expansion, alpha: float = 0.05) -> Estimate:
        """As `percent`, for an estimate that holds the arm's excess."""
        if not self.tail_judged(arm):
            return Estimate(100 * expansion.over(self.base_body).value, NAN, NAN, NAN)
        return percent(expansion, self.base_body, self.by_tail(arm, expansion), alpha)


def _p_value(cost: Expansion, reference: Reference) -> float:
    if not varies(cost.value, cost.se):
        return NAN
    return reference.p_value(cost.value / cost.se)


def cpu_cost(
    blocks: Blocks, reference: Sequence[int], *, peeked: bool = False
) -> tuple[float, dict[int, Estimate]] | None:
    """The base's mean CPU time a cycle, and the body of every arm's cost of it, microseconds.

    reference: the arms that are the base.

    Over the blocks in which it was taken of every unit; None where there is none.
    """
    taken = np.asarray(np.isfinite(blocks.cpu_us).all(axis=1), dtype=np.bool_)
    if not taken.any():
        return None
    kept = blocks.where(taken)
    kept = replace(kept, service_us=kept.cpu_us)
    effects = split(kept, reference, peeked=peeked)
    costs = {
        arm: effects.interval(effects.of(arm, reference).body_cost(arm))
        for arm in range(1, kept.n_arms)
    }
    return effects.mean(kept.cpu_us, 0).value, costs
