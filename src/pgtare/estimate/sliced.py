"""The analysis of a trial in slices: one estimate an instrument, by blocks of slices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pgtare.design import Design
from pgtare.estimate import randomisation
from pgtare.estimate.blocks import Bools, Floats, Ints
from pgtare.estimate.effective_clusters import effective_clusters
from pgtare.estimate.effects import MIN_EXCEEDANCES, THRESHOLD_QUANTILE, shared_threshold, threshold
from pgtare.estimate.inference import (
    MISSING,
    NAN,
    Estimate,
    Expansion,
    Reference,
    detectable,
    effect_factor,
    percent,
    ratio_interval,
    settled_margin,
    tail_factor,
    varies,
)
from pgtare.estimate.outcomes import Failures, explained, unanswered
from pgtare.estimate.question import Question
from pgtare.estimate.results import ArmEstimate, Baseline, Effect, Live, LiveArm, TrialEstimate
from pgtare.estimate.slices import SliceMeans, select_slices
from pgtare.estimate.timing import duration_s, switching
from pgtare.estimate.verdict import (
    CONFIDENCE,
    EQUIVALENCE_ALPHA,
    TAIL_TOLERANCE,
    Evidence,
    judge,
)
from pgtare.observations import Observations


def analyse_slices(obs: Observations, asked: Question) -> TrialEstimate:
    """Effects, tests and verdicts of a trial in slices; see `analyse`.

    An effect is the difference between the means of the arm's slices and of the base's, over all
    sessions' transactions: what it costs when all have it, carry-over and spillover included, which
    slices cannot tell apart.
    """
    return _SliceAnalysis(obs, asked).result()


def live_slices(obs: Observations, design: Design) -> Live:
    """Each arm's body so far; see `live`."""
    units = select_slices(obs, design).units
    means = SliceMeans(units, peeked=True)
    service_us = units.service_us
    c = threshold(service_us[np.isin(units.kind, design.reference)])
    base = means.mean(np.minimum(service_us, c), means.base)
    arms = []
    for index, arm in enumerate(design.arms[1:], start=1):
        body = np.minimum(service_us, _shared(service_us, units.kind, index, design))
        members = np.asarray(units.kind == index, dtype=np.bool_)
        cost = means.mean(body, members) - means.mean(body, means.base)
        arms.append(LiveArm.of(arm.name, cost, base, means.reference.of(cost.influence)))
    return Live(
        blocks=units.n_blocks,
        duration_s=duration_s(obs),
        base_body_us=base.value,
        arms=tuple(arms),
    )


def _shared(values: Floats, kind: Ints, arm: int, design: Design) -> float:
    """The threshold that the slices of an arm share with the base's and its control's."""
    return shared_threshold(values[np.isin(kind, design.reference)], values[kind == arm])


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
        self.costs = [self._cost(self._body(arm), arm) for arm in arms]
        self.totals = [self._cost(service_us, arm) for arm in arms]
        self.p_values = [_p_value(cost, self._by_blocks(cost)) for cost in self.costs]
        self.p_totals = [
            _p_value(cost, self._by_tail(arm, cost)) if self._tail_judged(arm) else NAN
            for arm, cost in enumerate(self.totals)
        ]
        self.family, self.tests = asked.family, asked.tests(self.p_values, self.p_totals)
        assert self.design.slices is not None
        self.unanswered = unanswered(
            self.selection.open,
            self.selection.open_in_whole,
            self.design.slices.kinds,
            self.selection.used,
        )
        self.control = asked.control(
            self.tests, lambda arm: (self.costs[arm].value, self.totals[arm].value)
        )

    def _body(self, arm: int) -> Floats:
        """min(x, c) of all units, c the arm's."""
        return np.asarray(np.minimum(self.units.service_us, self.c[arm]), dtype=np.float64)

    def _exceeds(self, arm: int) -> Floats:
        """1 where x > c, c the arm's."""
        return (self.units.service_us > self.c[arm]).astype(np.float64)

    def _members(self, arm: int) -> Bools:
        return np.asarray(self.units.kind == arm, dtype=np.bool_)

    def _mean(self, values: Floats, arm: int) -> Expansion:
        return self.means.mean(values, self._members(arm))

    def _cost(self, values: Floats, arm: int) -> Expansion:
        return self._mean(values, arm) - self._mean(values, 0)

    def result(self) -> TrialEstimate:
        arms = self.family or range(1, len(self.design.arms))
        mde_us = max((self._mde(arm) for arm in arms), default=NAN)
        selection = self.selection
        return TrialEstimate(
            baseline=self._baseline(),
            arms=tuple(self._arm(index) for index in range(len(self.design.arms))),
            by_backend=(),
            carry_over=switching(self.obs, lags=0),
            blocks=self.units.n_blocks,
            clusters=self.units.n_blocks,
            blocks_discarded=selection.blocks_discarded,
            discarded={},
            foreign=selection.foreign,
            sessions=self.units.n_sessions,
            duration_s=duration_s(self.obs),
            margin_pct=100 * self.asked.margin,
            confidence=CONFIDENCE,
            mde_us=mde_us,
            mde_pct=100 * mde_us / self.base.value if self.base.value > 0 else NAN,
            peeked=self.means.peeked,
            straddled_pct=selection.straddled_pct,
        )

    def _quantiles(self, arm: int) -> list[float]:
        service = self.units.service_us[self._members(arm)]
        if not len(service):
            return [NAN] * 3
        return [float(q) for q in np.quantile(service, (0.5, 0.95, 0.99))]

    def _baseline(self) -> Baseline:
        p50, p95, p99 = self._quantiles(0)
        return Baseline(
            n=int(self.selection.used[0]),
            mean_us=self._mean(self.units.service_us, 0).value,
            body_mean_us=self.base.value,
            p50_us=p50,
            p95_us=p95,
            p99_us=p99,
            threshold_us=self.c[0],
            cpu_us=self._mean(self.units.cpu_us, 0).value if self._cpu_taken() else None,
        )

    def _cpu_taken(self) -> bool:
        return bool(len(self.units.cpu_us)) and bool(np.isfinite(self.units.cpu_us).all())

    def _arm(self, index: int) -> ArmEstimate:
        arm = self.design.arms[index]
        p50, _, p99 = self._quantiles(index)
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
        return described if index == 0 else self._compared(index, described)

    def _compared(self, index: int, arm: ArmEstimate) -> ArmEstimate:
        """An arm with its effects, tests and verdict added."""
        means = self.means
        body, total = self.costs[index], self.totals[index]
        reference = self._by_blocks(body)
        excess = self._cost(np.maximum(self.units.service_us - self.c[index], 0.0), index)
        exceeds = self._exceeds(index)
        rate, base_rate = self._mean(exceeds, index), self._mean(exceeds, 0)
        by_rates = self._by_blocks(rate - base_rate)
        ratio = ratio_interval(rate, base_rate, by_rates)
        bound = ratio_interval(rate, base_rate, by_rates, EQUIVALENCE_ALPHA).hi
        tests, failed = self.tests[index], self._failures(index)
        in_family = index in self.family
        family = len(self.family) if in_family else 1
        weighted = family / tests.share
        margin = self.base.scaled(self.asked.margin)
        finding = judge(
            Evidence(
                proven=self.asked.proven.get(arm.name, not in_family),
                blocks=self.units.n_blocks,
                body=means.interval(body),
                under=means.interval(body + margin, EQUIVALENCE_ALPHA),
                over=means.interval(body - margin, EQUIVALENCE_ALPHA),
                excess=self._tail_interval(index, excess),
                total=self._tail_interval(index, total),
                total_over=self._tail_interval(index, total - margin),
                tail_bound=bound,
                p=tests.body,
                family=family,
                seconds=duration_s(self.obs),
                factor=effect_factor(means.interval(body), margin.value, weighted, reference),
                tail_factor=self._tail_factor(rate, base_rate, ratio),
                ended_early=self.asked.ended_early,
                p_total=tests.total,
                control=None if arm.role == "control" else self.control,
                failures=failed,
                unanswered=self.unanswered[index],
            )
        )
        judged = self._tail_judged(index)
        bounded, by = (total, self._by_tail(index, total)) if judged else (body, reference)
        differences = means.differences(self._body(index), index)
        return replace(
            arm,
            threshold_us=self.c[index],
            effect=self._effect(index, body, excess, total),
            plain_body_us=means.plain(self._body(index), index),
            excess_pct=self._tail_percent(index, excess),
            tail_rate_ratio=ratio,
            tail_bound=bound,
            p_value=self.p_values[index],
            p_randomisation=randomisation.sign_flips(differences, seed=self.asked.seed),
            p_adjusted=tests.body if in_family or arm.role == "control" else None,
            p_total=self.p_totals[index],
            p_total_adjusted=tests.total if in_family or arm.role == "control" else None,
            p_aborted=failed.p,
            equivalence_us=means.interval(body, EQUIVALENCE_ALPHA),
            at_most_us=by.interval(bounded.value, bounded.se, EQUIVALENCE_ALPHA).hi,
            at_most_pct=percent(bounded, self.base, by, EQUIVALENCE_ALPHA).hi,
            tail_bounded=judged,
            settles_pct=self.base.share_pct(settled_margin(body.se, reference)),
            mde_us=self._mde(index),
            effective_clusters=effective_clusters(body.influence),
            verdict=finding.verdict,
            verdict_reason=finding.reason,
            seconds_needed=finding.seconds_needed,
        )

    def _mde(self, arm: int) -> float:
        family, cost = len(self.family) if arm in self.family else 1, self.costs[arm]
        return detectable(cost.se, family / self.tests[arm].share, self._by_blocks(cost))

    def _effect(self, index: int, body: Expansion, excess: Expansion, total: Expansion) -> Effect:
        means = self.means
        cpu_us = None
        if self._cpu_taken():
            c = _shared(self.units.cpu_us, self.units.kind, index, self.design)
            cpu_us = means.interval(self._cost(np.minimum(self.units.cpu_us, c), index))
        p50, p95, p99 = (
            Estimate(q - base, NAN, NAN, NAN)
            for q, base in zip(self._quantiles(index), self._quantiles(0), strict=True)
        )
        return Effect(
            total_us=self._tail_interval(index, total),
            total_pct=self._tail_percent(index, total),
            body_us=means.interval(body),
            body_pct=percent(body, self.base, self._by_blocks(body)),
            excess_us=self._tail_interval(index, excess),
            own_us=MISSING,
            carry_over_us=MISSING,
            second_lag_us=MISSING,
            mean_us=means.plain(self.units.service_us, index),
            p50_us=p50,
            p95_us=p95,
            p99_us=p99,
            cpu_us=cpu_us,
        )

    def _failures(self, arm: int) -> Failures:
        """Failed transactions of the arm's slices against the base's, tested by sign flips."""
        units, base = self.units, self._members(0)
        mine = self._members(arm)
        rate, base_rate = (
            float(units.aborted[members].mean()) if members.any() else NAN
            for members in (mine, base)
        )
        failed = units.aborted.astype(np.float64)
        return Failures(
            n=int(np.count_nonzero(units.aborted[mine])),
            p=randomisation.sign_flips(self.means.differences(failed, arm), seed=self.asked.seed),
            rate=rate,
            base_rate=base_rate,
            explained_us=explained(
                rate - base_rate, self._body(arm)[mine | base], units.aborted[mine | base]
            ),
        )

    def _exceedances(self, arm: int) -> int:
        return int(self._exceeds(arm)[self._members(arm) | self._members(0)].sum()) // 2

    def _tail_interval(self, arm: int, expansion: Expansion) -> Estimate:
        """As `Effects.tail_interval`: none where too few units lie over the threshold."""
        if not self._tail_judged(arm):
            return Estimate(expansion.value, NAN, NAN, NAN)
        return self._by_tail(arm, expansion).interval(expansion.value, expansion.se)

    def _tail_percent(self, arm: int, expansion: Expansion) -> Estimate:
        if not self._tail_judged(arm):
            return Estimate(100 * expansion.over(self.base).value, NAN, NAN, NAN)
        return percent(expansion, self.base, self._by_tail(arm, expansion))

    def _tail_judged(self, arm: int) -> bool:
        return self._exceedances(arm) >= MIN_EXCEEDANCES

    def _by_blocks(self, expansion: Expansion) -> Reference:
        """Fewer degrees of freedom if a few blocks dominate this estimate."""
        return self.means.reference.of(expansion.influence)

    def _by_tail(self, arm: int, expansion: Expansion) -> Reference:
        reference = self._by_blocks(expansion)
        return replace(reference, df=min(reference.df, self._exceedances(arm) - 1))

    def _tail_factor(self, rate: Expansion, base: Expansion, ratio: Estimate) -> float:
        """How much longer until the tail is cleared; rates that may be equal are taken as such."""
        excess = rate - base.scaled(TAIL_TOLERANCE)
        told = ratio.lo > 1 or ratio.hi < 1
        pooled = 1 - THRESHOLD_QUANTILE
        n = max(int(np.count_nonzero(self.means.base)), 1)
        least = math.sqrt(pooled * (1 + TAIL_TOLERANCE**2) / n)
        return tail_factor(
            excess.value if told else (1 - TAIL_TOLERANCE) * pooled,
            float(np.fmax(excess.se, least)),
            self.means.reference,
        )


def _p_value(cost: Expansion, reference: Reference) -> float:
    return reference.p_value(cost.value / cost.se) if varies(cost.value, cost.se) else NAN
