"""Mean effects of every arm: body and excess over both strata, and the tail's rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import Estimate, Expansion, Reference
from pgtare.estimate.sequential import TUNED_AT
from pgtare.estimate.trial.comparison import Comparison, Yardstick
from pgtare.estimate.trial.results import LiveArm
from pgtare.estimate.trial.runs import Selection
from pgtare.estimate.trial.strata import FirstRuns, LaterRuns, Units, mixed, nothing
from pgtare.estimate.trial.threshold import THRESHOLD_QUANTILE, alike, threshold, weighted_threshold
from pgtare.estimate.trial.verdict import TAIL_TOLERANCE

#: What is estimated of each transaction (N,).
Outcome = Callable[[Units], Floats]


@dataclass(frozen=True)
class Strata:
    """What the answer is of: later runs, and first runs if they are a part that counts.

    share: weight of the first runs, 0 if they are not used. quantile: which one divides body and
    tail.
    """

    later: LaterRuns
    first: FirstRuns | None = None
    share: float = 0.0
    quantile: float = THRESHOLD_QUANTILE

    @classmethod
    def of(cls, selection: Selection) -> Strata:
        """The strata of a trial."""
        if not selection.uses_first:
            return cls(selection.later)
        return cls(selection.later, selection.first, selection.first_weight)

    def as_cpu(self) -> Strata:
        """The same of processor time."""
        later = LaterRuns(self.later.units.as_cpu())
        if self.first is None:
            return Strata(later)
        return Strata(later, replace(self.first, units=self.first.units.as_cpu()), self.share)

    def uses_first(self, arm: int) -> bool:
        """Whether first runs are in the answer of an arm."""
        return self.first is not None and self.first.comparable(arm)

    def clusters(self, arm: int) -> int:
        """Blocks, and pairs of sessions, that an arm and the base are compared in."""
        blocks = self.later.blocks(arm)
        if self.first is None or not self.uses_first(arm):
            return blocks
        return blocks + min(self.first.sessions(arm), self.first.sessions(0))

    def cost(self, outcome: Outcome, arm: int) -> Expansion:
        """An arm less the base.

        The influences have G / (G - 1) of their own stratum's clusters; a standard error would
        have that of all of them as well, which widens it by 7 % if there are eight.
        """
        found = self._cost(outcome, arm)
        clusters = max(len(found.influence), 1)
        return replace(found, influence=found.influence * math.sqrt(1 - 1 / clusters))

    def _cost(self, outcome: Outcome, arm: int) -> Expansion:
        later = self.later.cost(outcome(self.later.units), arm)
        if self.first is None:
            return later
        if not self.uses_first(arm):
            return mixed(nothing(self.first.units.n_clusters), later, 0.0)
        return mixed(self.first.cost(outcome(self.first.units), arm), later, self.share)

    def mean(self, outcome: Outcome, of: int, arm: int) -> Expansion:
        """The mean of an arm, `of`, where first runs are used as for the cost of `arm`."""
        later = self.later.units.mean(outcome(self.later.units), of)
        if self.first is None:
            return later
        if not (self.first.comparable(arm) if arm else self.first.sessions(0)):
            return mixed(nothing(self.first.units.n_clusters), later, 0.0)
        return mixed(self.first.units.mean(outcome(self.first.units), of), later, self.share)

    def values(self, arms: Sequence[int], arm: int) -> tuple[Floats, Floats]:
        """Service times of arms, and their weights, which add up to 1; as for the cost of `arm`."""
        later = self.later.units
        of_later = later.service_us[np.isin(later.arm, arms)]
        if self.first is None or not self.uses_first(arm):
            return alike(of_later)
        first = self.first.units
        of_first = first.service_us[np.isin(first.arm, arms)]
        parts = alike(of_first, self.share), alike(of_later, 1 - self.share)
        values, weights = (np.concatenate(each) for each in zip(*parts, strict=True))
        return values, weights


@dataclass(frozen=True)
class Effects:
    """The estimators of one arm against the base, split at a threshold c; times in microseconds.

    With y = min(x, c) and e = max(x - c, 0), x = y + e, so that body and excess add up to the total
    exactly, in the estimates and in each cluster's influence.
    """

    strata: Strata
    arm: int
    c: float
    base_us: float  # the base's mean of its own body in the same strata: percentages are of it
    peeked: bool = False
    tuned_at: int = TUNED_AT

    @cached_property
    def body(self) -> Expansion:
        """What the arm costs below c."""
        return self.strata.cost(lambda units: units.body(self.c), self.arm)

    @cached_property
    def excess(self) -> Expansion:
        """The same above c."""
        return self.strata.cost(lambda units: units.excess(self.c), self.arm)

    @cached_property
    def reference(self) -> Reference:
        """Student's t over blocks and sessions."""
        clusters = self.strata.clusters(self.arm)
        return Reference(clusters, clusters - 1, self.peeked, self.tuned_at)

    def interval(self, effect: Expansion, alpha: float = 0.05) -> Estimate:
        """The 1 - alpha interval of an estimate, in its own unit."""
        return self.reference.of(effect.influence).interval(effect.value, effect.se, alpha)

    def rate(self, of: int) -> Expansion:
        """Share of an arm's transactions over the threshold."""
        return self.strata.mean(lambda units: units.exceeds(self.c), of, self.arm)

    def exceedances(self) -> int:
        """Transactions over the threshold, on average of the arm and the base."""
        units = [self.strata.later.units]
        if self.strata.uses_first(self.arm) and self.strata.first is not None:
            units.append(self.strata.first.units)
        both = (self.arm, 0)
        return sum(int((u.service_us > self.c)[np.isin(u.arm, both)].sum()) for u in units) // 2

    def live(self, name: str, arms: int, *, limits: bool) -> LiveArm:
        """The arm while its trial runs. arms: how many there are besides the base.

        limits: whether what limits are decided by is wanted, too: it takes the tail.
        """
        if limits:
            return self.compared().live(name, arms)
        reference = self.reference.of(self.body.influence)
        return LiveArm.of(name, self.body, self.base_us, reference)

    def compared(self) -> Comparison:
        """The arm against the base."""
        n, base_n = (max(len(self.strata.later.units.members(arm)), 1) for arm in (self.arm, 0))
        pooled = 1 - self.strata.quantile
        return Comparison(
            scale=Yardstick(self.base_us, self.reference, self.exceedances()),
            body=self.body,
            excess=self.excess,
            total=self.body + self.excess,
            rate=self.rate(self.arm),
            base_rate=self.rate(0),
            least_rate_se=math.sqrt(pooled * (1 / n + TAIL_TOLERANCE**2 / base_n)),
            slow=pooled,
        )


def effects_of(
    strata: Strata, reference: Sequence[int], arms: Sequence[int], *, peeked: bool = False
) -> tuple[float, float, dict[int, Effects]]:
    """The base's own threshold, its mean below that, and the estimators of each arm.

    reference: the arms that are the base: itself and its control.
    """
    own, _ = strata.values(reference, 0)
    base_c = threshold(own, strata.quantile)
    base_us = strata.mean(lambda units: units.body(base_c), 0, 0).value
    later = strata.later.units
    settled_us = later.mean(later.body(base_c), 0).value
    found = {}
    for arm in arms:
        c = weighted_threshold(
            strata.values(reference, arm), strata.values([arm], arm), strata.quantile
        )
        base = base_us if strata.uses_first(arm) else settled_us
        found[arm] = Effects(strata, arm, c, base, peeked)
    return base_c, base_us, found


def cpu_cost(
    strata: Strata, reference: Sequence[int], arms: Sequence[int], *, peeked: bool = False
) -> tuple[float, dict[int, Estimate]] | None:
    """The base's mean processor time a cycle, and the body of every arm's cost of it, in µs.

    None unless it was taken of every transaction.
    """
    times = strata.as_cpu()
    parts = [times.later.units, *([times.first.units] if times.first else [])]
    if not len(times.later.units.service_us):
        return None
    if not all(np.isfinite(units.service_us).all() for units in parts):
        return None
    _, _, found = effects_of(times, reference, arms, peeked=peeked)
    mean = times.mean(lambda units: units.service_us, 0, 0).value
    return mean, {arm: effects.interval(effects.body) for arm, effects in found.items()}
