"""From the effects of each arm and their errors to intervals, tests and verdicts.

Trials by runs and trials in slices estimate effects in their own ways (`effects`, `slices`). From
there on both are the same, and it happens here: intervals, percentages, Holm over all arms, what
the verdict rests on, and the fields of the result that follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pgtare.estimate.effective_clusters import effective_clusters
from pgtare.estimate.inference import (
    NAN,
    Estimate,
    Expansion,
    Reference,
    detectable,
    effect_factor,
    ratio_interval,
    tail_factor,
)
from pgtare.estimate.trial.analysis_request import Question
from pgtare.estimate.trial.answer import COVERS_ALL, Answer, Basis, Reason, ReasonKind
from pgtare.estimate.trial.outcomes import Failures, Unanswered
from pgtare.estimate.trial.results import ArmEstimate, Baseline, Effect, LiveArm, TrialEstimate
from pgtare.estimate.trial.threshold import MIN_EXCEEDANCES, THRESHOLD_QUANTILE
from pgtare.estimate.trial.verdict import (
    ONE_SIDED,
    TAIL_TOLERANCE,
    Evidence,
    Settling,
    judge,
)


@dataclass(frozen=True)
class Yardstick:
    """What the effects of one arm are measured by.

    base_us: the base's body, of which percentages are. by: Student's t over clusters or blocks.
    exceedances: units over the threshold, on average of the arm and the base.
    """

    base_us: float
    by: Reference
    exceedances: int

    @property
    def judges_tail(self) -> bool:
        """Whether enough units lie over the threshold for their mean to have an interval."""
        return self.exceedances >= MIN_EXCEEDANCES

    def reference(self, effect: Expansion) -> Reference:
        """With fewer degrees of freedom if a few clusters dominate this estimate."""
        return self.by.of(effect.influence)

    def tail_reference(self, effect: Expansion) -> Reference:
        """The same for an estimate that holds the tail: no more than the slow units allow."""
        reference = self.reference(effect)
        return replace(reference, df=min(reference.df, self.exceedances - 1))

    def interval(self, effect: Expansion, alpha: float = 0.05) -> Estimate:
        """The 1 - alpha interval of an estimate, in its own unit."""
        return self.reference(effect).interval(effect.value, effect.se, alpha)

    def tail_interval(self, effect: Expansion) -> Estimate:
        """Of an estimate that holds the tail; no interval if too few units are slow."""
        if not self.judges_tail:
            return Estimate(effect.value, NAN, NAN, NAN)
        return self.tail_reference(effect).interval(effect.value, effect.se)

    def percent(self, interval: Estimate) -> Estimate:
        """An interval in µs in percent of the base's body in this trial."""
        return interval.times(100 / self.base_us if self.base_us > 0 else NAN)


@dataclass(frozen=True)
class Comparison:
    """One arm against the base, in µs; total = body + excess.

    rate, base_rate: shares of units over the threshold. least_rate_se: the standard error of the
    difference in rates if rare events come one by one; NaN without data.
    """

    scale: Yardstick
    body: Expansion
    excess: Expansion
    total: Expansion
    rate: Expansion
    base_rate: Expansion
    least_rate_se: float
    slow: float = 1 - THRESHOLD_QUANTILE  # share of both that lies over the threshold

    @cached_property
    def p_body(self) -> float:
        """Two-sided p-value of the body."""
        return self.scale.reference(self.body).p_of(self.body)

    @cached_property
    def p_total(self) -> float:
        """Two-sided p-value of the total, NaN if the tail is not judged."""
        if not self.scale.judges_tail:
            return NAN
        return self.scale.tail_reference(self.total).p_of(self.total)

    @cached_property
    def body_us(self) -> Estimate:
        """The body with its interval."""
        return self.scale.interval(self.body)

    @cached_property
    def total_us(self) -> Estimate:
        """The total with its interval, if the tail is judged."""
        return self.scale.tail_interval(self.total)

    @cached_property
    def excess_us(self) -> Estimate:
        """The same of what lies over the threshold."""
        return self.scale.tail_interval(self.excess)

    @cached_property
    def tail_bound(self) -> float:
        """One-sided 95 % upper bound of the share of slow units, relative to the base's."""
        return self.rate_ratio(ONE_SIDED).hi

    def most_pct(self, *, always: bool) -> float:
        """What it costs at most, in percent: the upper end of the interval, or of the total's.

        The total's if slow transactions are shown to add something, or always: by windows, as what
        a watcher of the whole server does to others is that it holds them up now and then, and with
        limits, which are of that.
        """
        if always or self.excess_us.lo > 0:
            return self._most_pct
        return self.scale.percent(self.body_us).hi

    def live(self, name: str, arms: int) -> LiveArm:
        """The arm while a trial with limits runs. arms: how many there are besides the base."""
        reference = self.scale.reference(self.body)
        found = LiveArm.of(name, self.body, self.scale.base_us, reference)
        shared = self.scale.percent(self.scale.interval(self.body, 0.05 / max(arms, 1)))
        return replace(
            found,
            half_width_pct=found.body_pct.half_width,
            least_pct=shared.lo,
            most_pct=self._most_pct,
        )

    @property
    def _most_pct(self) -> float:
        """The upper end of the cost, slow ones included; infinite if too little is known of these.

        Either their mean has an interval, or they are shown to be about as frequent as the base's.
        """
        total, body = (self.scale.percent(each) for each in (self.total_us, self.body_us))
        if math.isfinite(total.hi):
            return max(total.hi, body.hi)
        return body.hi if self.tail_bound <= TAIL_TOLERANCE else math.inf

    def rate_ratio(self, alpha: float) -> Estimate:
        """The share of slow units relative to the base's, with its 1 - alpha interval."""
        difference = self.scale.reference(self.rate - self.base_rate)
        return ratio_interval(self.rate, self.base_rate, difference, alpha)

    @property
    def tail_factor(self) -> float:
        """How much longer until the tail is cleared.

        Rates that are not shown to differ are taken as equal, and the error as no less than that of
        rare events that come one by one: a dozen of them say little about either.
        """
        excess = self.rate - self.base_rate.scaled(TAIL_TOLERANCE)
        ratio = self.rate_ratio(0.05)
        differs = ratio.lo > 1 or ratio.hi < 1
        return tail_factor(
            excess.value if differs else (1 - TAIL_TOLERANCE) * self.slow,
            float(np.fmax(excess.se, self.least_rate_se)),
            self.scale.by,
        )


class Comparisons:
    """All arms of a trial against its base, by their numbers from 1: tests and verdicts."""

    def __init__(self, asked: Question, arms: Mapping[int, Comparison]) -> None:
        self.asked, self.arms = asked, arms
        self.tests = asked.tests(
            [NAN, *(arms[index].p_body for index in sorted(arms))],
            [NAN, *(arms[index].p_total for index in sorted(arms))],
        )
        self.control = asked.control(
            self.tests, lambda index: (arms[index].body.value, arms[index].total.value)
        )

    def estimated(
        self, baseline: Baseline, arm: Callable[[int], ArmEstimate], **others: Any
    ) -> TrialEstimate:
        """What the observations say. arm: makes each arm; others: fields of this kind of trial."""
        # the smallest effect that is found of the family's least precisely measured instrument
        mde_us = max(
            (detectable(self.arms[index].body_us) for index in self.asked.family or self.arms),
            default=NAN,
        )
        base_us = baseline.body_mean_us
        return TrialEstimate(
            baseline=baseline,
            arms=tuple(arm(index) for index in range(len(self.asked.design.arms))),
            margin_pct=100 * self.asked.margin,
            mde_us=mde_us,
            mde_pct=100 * mde_us / base_us if base_us > 0 else NAN,
            peeked=self.asked.peeked,
            **others,
        )

    def judged(
        self,
        index: int,
        arm: ArmEstimate,
        c: float,
        effect: Effect,
        *,
        blocks: int,
        seconds: float,
        failures: Failures | None = None,
        unanswered: Unanswered | None = None,
        settling: Settling | None = None,
        basis: Basis = Basis.SLICES,
        covered: float = 1.0,
        shortest: int = 0,
    ) -> ArmEstimate:
        """The arm with its effects, tests and verdict.

        c: where its times are cut; the other arguments are as in `Evidence`.
        """
        found, tests = self.arms[index], self.tests[index]
        scale, body, body_us = found.scale, found.body, found.body_us
        margin_us = self.asked.margin * scale.base_us
        in_family = index in self.asked.family
        family = len(self.asked.family) if in_family else 1
        finding = judge(
            Evidence(
                proven=self.asked.proven.get(arm.name, not in_family),
                blocks=blocks,
                least_blocks=self.asked.design.least_blocks,
                body=body_us,
                margin_us=margin_us,
                excess=found.excess_us,
                total=found.total_us,
                tail_bound=found.tail_bound,
                p=tests.body,
                family=family,
                seconds=seconds,
                factor=effect_factor(
                    body_us, margin_us, family / tests.share, scale.reference(body)
                ),
                tail_factor=found.tail_factor,
                ended_early=self.asked.ended_early,
                settling=settling,
                p_total=tests.total,
                control=None if arm.role == "control" else self.control,
                failures=failures,
                unanswered=unanswered,
            )
        )
        reasons = finding.reasons
        if covered < COVERS_ALL:
            reasons = (*reasons, Reason(ReasonKind.SHORT_SESSIONS, n=shortest))
        kinds = {reason.kind for reason in reasons}
        adjusted = in_family or arm.role == "control"
        return replace(
            arm,
            threshold_us=c,
            effect=effect,
            p=found.p_body,
            p_adjusted=tests.body if adjusted else None,
            p_total=found.p_total,
            p_total_adjusted=tests.total if adjusted else None,
            p_aborted=failures.p if failures else None,
            effective_clusters=effective_clusters(body.influence),
            answer=Answer(
                us=body_us,
                pct=scale.percent(body_us),
                basis=basis,
                verdict=finding.verdict,
                reasons=reasons,
                at_least=bool(kinds & {ReasonKind.OPEN_ADD, ReasonKind.GROWS}),
                at_most=ReasonKind.SHRINKS in kinds,
                detectable_us=detectable(body_us),
                share_covered=covered,
                needed_s=finding.needed_s,
                most_pct=found.most_pct(
                    always=self.asked.decides or self.asked.design.grouping == "windows"
                ),
            ),
        )
