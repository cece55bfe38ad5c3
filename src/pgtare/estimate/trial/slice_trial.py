"""The analysis of a trial in slices: one estimate an instrument, by blocks of slices."""

from __future__ import annotations

import math

import numpy as np

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.inference import (
    NAN,
    Estimate,
    Expansion,
    Reference,
    mean_of_blocks,
    varies,
)
from pgtare.estimate.trial.analysis_request import Question
from pgtare.estimate.trial.comparison import Comparison, Comparisons, Yardstick
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.outcomes import Failures, explained, unanswered
from pgtare.estimate.trial.results import (
    ArmEstimate,
    Baseline,
    Effect,
    Live,
    LiveArm,
    TrialEstimate,
)
from pgtare.estimate.trial.slices import SliceMeans, select_slices
from pgtare.estimate.trial.threshold import THRESHOLD_QUANTILE, alike, threshold, weighted_threshold
from pgtare.estimate.trial.timing import duration_s, switching
from pgtare.estimate.trial.verdict import TAIL_TOLERANCE


def analyse_slices(obs: Observations, asked: Question) -> TrialEstimate:
    """Effects, tests and verdicts of a trial in slices; see `analyse`.

    An effect is the difference between the means of the arm's slices and of the base's, over all
    sessions' transactions: what it costs when all have it, what sessions cost each other included.
    """
    return _SliceAnalysis(obs, asked).result()


def live_slices(obs: Observations, design: Design) -> Live:
    """Each arm's body so far; see `live`."""
    found = _SliceAnalysis(obs, Question(design, peeked=True))
    compared = found.compared.arms
    return Live(
        blocks=found.units.n_blocks,
        arms=tuple(
            LiveArm.of(arm.name, one.body, found.base.value, one.scale.reference(one.body))
            for arm, one in zip(design.arms[1:], compared.values(), strict=True)
        ),
    )


def _shared(values: Floats, kind: Ints, arm: int, design: Design) -> float:
    """The threshold that the slices of an arm share with the base's and its control's."""
    base, other = (alike(values[np.isin(kind, each)]) for each in (design.reference, [arm]))
    return weighted_threshold(base, other)


class _SliceAnalysis:
    """One trial's estimators and what its arms share."""

    def __init__(self, obs: Observations, asked: Question) -> None:
        self.obs, self.asked, self.design = obs, asked, asked.design
        self.selection = select_slices(obs, self.design)
        self.units = self.selection.units
        self.means = SliceMeans(self.units, asked.peeked)
        service_us, kind = self.units.service_us, self.units.kind
        base_c = threshold(service_us[np.isin(kind, self.design.reference)])
        self.base = self._mean(np.minimum(service_us, base_c), 0)
        arms = range(len(self.design.arms))
        self.c = [base_c, *(_shared(service_us, kind, arm, self.design) for arm in arms[1:])]
        self.compared = Comparisons(asked, {arm: self._comparison(arm) for arm in arms[1:]})
        assert self.design.slices is not None
        self.unanswered = unanswered(
            self.selection.open,
            self.selection.open_in_whole,
            self.design.slices.kinds,
            self.selection.used,
        )

    def _body(self, arm: int) -> Floats:
        """min(x, c) of all units, c the arm's."""
        return np.asarray(np.minimum(self.units.service_us, self.c[arm]), dtype=np.float64)

    def _members(self, arm: int) -> Bools:
        return np.asarray(self.units.kind == arm, dtype=np.bool_)

    def _mean(self, values: Floats, arm: int) -> Expansion:
        return self.means.mean(values, self._members(arm))

    def _cost(self, values: Floats, arm: int) -> Expansion:
        return self._mean(values, arm) - self._mean(values, 0)

    def _comparison(self, arm: int) -> Comparison:
        service_us = self.units.service_us
        exceeds = (service_us > self.c[arm]).astype(np.float64)
        slow = int(exceeds[self._members(arm) | self._members(0)].sum()) // 2
        n = max(int(np.count_nonzero(self.means.base)), 1)
        pooled = 1 - THRESHOLD_QUANTILE
        return Comparison(
            scale=Yardstick(self.base.value, self.means.reference(0, arm), slow),
            body=self._cost(self._body(arm), arm),
            excess=self._cost(np.maximum(service_us - self.c[arm], 0.0), arm),
            total=self._cost(service_us, arm),
            rate=self._mean(exceeds, arm),
            base_rate=self._mean(exceeds, 0),
            least_rate_se=math.sqrt(pooled * (1 + TAIL_TOLERANCE**2) / n),
        )

    def result(self) -> TrialEstimate:
        cpu_us = self._mean(self.units.cpu_us, 0).value if self._cpu_taken() else None
        return self.compared.estimated(
            Baseline(self.base.value, self.c[0], cpu_us),
            self._arm,
            switching=switching(self.obs),
            blocks=self.units.n_blocks,
            blocks_discarded=self.selection.blocks_discarded,
            sessions=self.units.n_sessions,
            straddled_pct=self.selection.straddled_pct,
        )

    def _quantiles(self, arm: int) -> list[float]:
        service = self.units.service_us[self._members(arm)]
        if not len(service):
            return [NAN] * 2
        return [float(q) for q in np.quantile(service, (0.5, 0.99))]

    def _cpu_taken(self) -> bool:
        return bool(len(self.units.cpu_us)) and bool(np.isfinite(self.units.cpu_us).all())

    def _arm(self, index: int) -> ArmEstimate:
        arm = self.design.arms[index]
        p50, p99 = self._quantiles(index)
        described = ArmEstimate(
            name=arm.name,
            role=arm.role,
            n=int(self.selection.used[index]),
            excluded=int(self.selection.excluded[index]),
            mean_us=self._mean(self.units.service_us, index).value,
            p50_us=p50,
            p99_us=p99,
            aborted=int(np.count_nonzero(self.units.aborted[self._members(index)])),
            open=self.unanswered[index].n,
            longest_open_us=self.unanswered[index].longest_us,
        )
        if index == 0:
            return described
        return self.compared.judged(
            index,
            described,
            self.c[index],
            self._effect(index),
            blocks=self.units.n_blocks,
            seconds=duration_s(self.obs),
            failures=self._failures(index),
            unanswered=self.unanswered[index],
        )

    def _effect(self, index: int) -> Effect:
        found, cpu_us = self.compared.arms[index], None
        if self._cpu_taken():
            c = _shared(self.units.cpu_us, self.units.kind, index, self.design)
            cpu_us = found.scale.interval(self._cost(np.minimum(self.units.cpu_us, c), index))
        p50, p99 = (
            Estimate(q - base, NAN, NAN, NAN)
            for q, base in zip(self._quantiles(index), self._quantiles(0), strict=True)
        )
        return Effect(found.total_us, found.excess_us, p50, p99, cpu_us)

    def _failures(self, arm: int) -> Failures:
        """Failed transactions of the arm's slices against the base's, by blocks of slices."""
        units, base = self.units, self._members(0)
        mine = self._members(arm)
        rate, base_rate = (
            float(units.aborted[members].mean()) if members.any() else NAN
            for members in (mine, base)
        )
        failed = units.aborted.astype(np.float64)
        return Failures(
            p=self._p(self.means.differences(failed, arm)),
            rate=rate,
            base_rate=base_rate,
            explained_us=explained(
                rate - base_rate, self._body(arm)[mine | base], units.aborted[mine | base]
            ),
        )

    def _p(self, differences: Floats) -> float:
        """Two-sided p-value of their mean over blocks (B,); 1 if nothing failed anywhere."""
        reference = Reference(self.units.n_blocks, self.units.n_blocks - 1)
        found = mean_of_blocks(differences, reference)
        if not varies(found.estimate, found.se):
            return 1.0 if self.units.n_blocks > 1 else NAN
        return reference.p_value(found.estimate / found.se)
