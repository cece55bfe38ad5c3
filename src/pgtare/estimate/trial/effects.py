"""Mean effects of every arm: body and excess, plain and with carry-over, and the tail's rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import (
    NAN,
    Estimate,
    Expansion,
    Reference,
    mean_of_blocks,
    percent,
)
from pgtare.estimate.trial.blocks import Blocks
from pgtare.estimate.trial.carry_over import LagFit, Model
from pgtare.estimate.trial.comparison import Comparison, Yardstick
from pgtare.estimate.trial.outcomes import Unfinished
from pgtare.estimate.trial.threshold import THRESHOLD_QUANTILE, shared_threshold, threshold
from pgtare.estimate.trial.verdict import TAIL_TOLERANCE


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
    base_c: float | None = None  # of `base_body`, if it is not c
    models: dict[int, Model] = field(default_factory=dict, repr=False, compare=False)
    body_fit: LagFit | None = None  # if it was solved together with that of other trials

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
        """1 if x > c, else 0, (B, L)."""
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
        return self._model(1).solve(self.body) if self.body_fit is None else self.body_fit

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
        """Body of what an arm costs when left on: own effect + carry-over.

        With what the end of the trial or of a session cut short.
        """
        return self.own(arm) + self.carry_over(arm) + self._cut_short(arm)[0]

    def excess_cost(self, arm: int) -> Expansion:
        """The same of the mean above the threshold."""
        tail = self._excess_fit
        return tail.effect(arm, 0) + tail.effect(arm, 1) + self._cut_short(arm)[1]

    def _cut_short(self, arm: int) -> tuple[Expansion, Expansion]:
        """What blocks under way at the end add to an arm's body and excess, less the base's."""
        left = self.unfinished
        if left is None:
            nothing = Expansion(0.0, np.zeros(self.blocks.n_clusters))
            return nothing, nothing
        body, excess = left.body(self.c), left.excess(self.c)
        return (
            left.mean_shift(self.blocks, body, self.body, arm)
            - left.mean_shift(self.blocks, body, self.body, 0),
            left.mean_shift(self.blocks, excess, self.excess, arm)
            - left.mean_shift(self.blocks, excess, self.excess, 0),
        )

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

    def yardstick(self, arm: int) -> Yardstick:
        """What the effects of an arm are measured by."""
        exceedances = int(self.exceeds[:, self.blocks.columns((arm, 0))].sum()) // 2
        return Yardstick(self.base_body, self.by_cluster, exceedances)

    def compared(self, arm: int) -> Comparison:
        """An arm against the base."""
        blocks = self.blocks
        slots, base_slots = len(blocks.slots(arm)), len(blocks.slots(0))
        pooled = 1 - THRESHOLD_QUANTILE
        least = NAN
        if blocks.n:
            least = math.sqrt(pooled * (1 / slots + TAIL_TOLERANCE**2 / base_slots) / blocks.n)
        return Comparison(
            scale=self.yardstick(arm),
            body=self.body_cost(arm),
            excess=self.excess_cost(arm),
            total=self.total_cost(arm),
            rate=self.mean(self.exceeds, arm),
            base_rate=self.mean(self.exceeds, 0),
            least_rate_se=least,
        )

    def plain(self, values: Floats, arm: int) -> Estimate:
        """Plain effect: mean block difference from the base; values (B, L)."""
        return mean_of_blocks(self.blocks.difference(values, arm), self.by_block)

    def interval(self, expansion: Expansion, alpha: float = 0.05) -> Estimate:
        """The 1 - alpha interval of an estimate by clusters, in its own unit."""
        return self.reference(expansion).interval(expansion.value, expansion.se, alpha)

    def reference(self, expansion: Expansion) -> Reference:
        """`by_cluster`, with fewer degrees of freedom if a few clusters dominate this estimate."""
        return self.by_cluster.of(expansion.influence)

    def percent(self, expansion: Expansion, alpha: float = 0.05) -> Estimate:
        """An effect in percent of the base's body, with Fieller's interval."""
        return percent(expansion, self.base_body, self.reference(expansion), alpha)


def cpu_cost(
    blocks: Blocks, reference: Sequence[int], *, peeked: bool = False
) -> tuple[float, dict[int, Estimate]] | None:
    """The base's mean CPU time a cycle, and the body of every arm's cost of it, microseconds.

    reference: the arms that are the base.

    Over the blocks in which it was taken of every unit; None if there is none.
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
