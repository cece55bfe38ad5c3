"""The analysis of a trial in slices: one estimate an instrument, by blocks of slices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pgtare.design import Design
from pgtare.estimate import randomisation
from pgtare.estimate.blocks import Bools, Floats
from pgtare.estimate.effective_clusters import effective_clusters
from pgtare.estimate.effects import MIN_EXCEEDANCES, threshold, trimmed_mean
from pgtare.estimate.inference import (
    MISSING,
    NAN,
    Estimate,
    Expansion,
    detectable,
    effect_factor,
    ratio_interval,
    tail_factor,
    varies,
)
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
    body = np.minimum(units.service_us, threshold(units.service_us))
    base = means.mean(body, means.base)
    arms = []
    for index, arm in enumerate(design.arms[1:], start=1):
        cost = means.mean(body, np.asarray(units.kind == index)) - base
        percent = means.interval(cost.over(base).scaled(100))
        arms.append(LiveArm.of(arm.name, means.interval(cost), percent, means.reference))
    return Live(
        blocks=units.n_blocks,
        duration_s=duration_s(obs),
        base_body_us=base.value,
        arms=tuple(arms),
    )


class _SliceAnalysis:
    """One trial's estimators and what its arms share."""

    def __init__(self, obs: Observations, asked: Question) -> None:
        self.obs, self.asked, self.design = obs, asked, asked.design
        self.selection = select_slices(obs, self.design)
        self.units = self.selection.units
        self.means = SliceMeans(self.units, asked.peeked)
        self.c = threshold(self.units.service_us)
        self.body = np.minimum(self.units.service_us, self.c)
        self.excess = np.maximum(self.units.service_us - self.c, 0.0)
        self.exceeds = (self.units.service_us > self.c).astype(np.float64)
        self.base = self._mean(self.body, 0)
        self.costs = [self._cost(self.body, arm) for arm in range(len(self.design.arms))]
        self.p_values = [self._p_value(cost) for cost in self.costs]
        self.family, self.p_adjusted = asked.family, asked.adjusted(self.p_values)

    def _members(self, arm: int) -> Bools:
        return np.asarray(self.units.kind == arm, dtype=np.bool_)

    def _mean(self, values: Floats, arm: int) -> Expansion:
        return self.means.mean(values, self._members(arm))

    def _cost(self, values: Floats, arm: int) -> Expansion:
        return self._mean(values, arm) - self._mean(values, 0)

    def _p_value(self, cost: Expansion) -> float:
        if not varies(cost.value, cost.se):
            return NAN
        return self.means.reference.of(cost.influence).p_value(cost.value / cost.se)

    def result(self) -> TrialEstimate:
        found = [
            detectable(self.costs[arm].se, len(self.family), self.means.reference)
            for arm in self.family or range(1, len(self.design.arms))
        ]
        mde_us = max(found, default=NAN)
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
            threshold_us=self.c,
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
        )
        return described if index == 0 else self._compared(index, described)

    def _compared(self, index: int, arm: ArmEstimate) -> ArmEstimate:
        """An arm with its effects, tests and verdict added."""
        means, reference = self.means, self.means.reference
        body, total = self.costs[index], self._cost(self.units.service_us, index)
        excess = self._cost(self.excess, index)
        rate, base_rate = self._mean(self.exceeds, index), self._mean(self.exceeds, 0)
        ratio = ratio_interval(rate, base_rate, reference)
        bound = ratio_interval(rate, base_rate, reference, EQUIVALENCE_ALPHA).hi
        in_family = index in self.p_adjusted
        family = len(self.family) if in_family else 1
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
                p=self.p_adjusted[index] if in_family else self.p_values[index],
                family=family,
                seconds=duration_s(self.obs),
                factor=effect_factor(means.interval(body), margin.value, family, reference),
                tail_factor=self._tail_factor(rate, base_rate, ratio),
                ended_early=self.asked.ended_early,
            )
        )
        differences = means.differences(self.body, index)
        return replace(
            arm,
            effect=self._effect(index, body, excess, total),
            plain_body_us=means.plain(self.body, index),
            excess_pct=self._tail_interval(index, self._percent(excess)),
            tail_rate_ratio=ratio,
            tail_bound=bound,
            p_value=self.p_values[index],
            p_randomisation=randomisation.sign_flips(differences, seed=self.asked.seed),
            p_adjusted=self.p_adjusted.get(index),
            equivalence_us=means.interval(body, EQUIVALENCE_ALPHA),
            mde_us=detectable(body.se, family, reference),
            effective_clusters=effective_clusters(body.influence),
            verdict=finding.verdict,
            verdict_reason=finding.reason,
            seconds_needed=finding.seconds_needed,
        )

    def _effect(self, index: int, body: Expansion, excess: Expansion, total: Expansion) -> Effect:
        means = self.means
        cpu_us = None
        if self._cpu_taken():
            cpu = np.minimum(self.units.cpu_us, threshold(self.units.cpu_us))
            cpu_us = means.interval(self._cost(cpu, index))
        raw = means.differences(self.units.service_us, index)
        p50, p95, p99 = (
            Estimate(q - base, NAN, NAN, NAN)
            for q, base in zip(self._quantiles(index), self._quantiles(0), strict=True)
        )
        return Effect(
            total_us=self._tail_interval(index, total),
            total_pct=self._tail_interval(index, self._percent(total)),
            body_us=means.interval(body),
            body_pct=means.interval(self._percent(body)),
            excess_us=self._tail_interval(index, excess),
            own_us=MISSING,
            carry_over_us=MISSING,
            second_lag_us=MISSING,
            mean_us=means.plain(self.units.service_us, index),
            typical_us=trimmed_mean(
                raw, replace(means.reference, blocks=len(raw), df=len(raw) - 1)
            ),
            p50_us=p50,
            p95_us=p95,
            p99_us=p99,
            cpu_us=cpu_us,
        )

    def _percent(self, expansion: Expansion) -> Expansion:
        return expansion.over(self.base).scaled(100.0)

    def _exceedances(self, arm: int) -> int:
        return min(int(self.exceeds[self._members(k)].sum()) for k in (arm, 0))

    def _tail_interval(self, arm: int, expansion: Expansion) -> Estimate:
        """As `Effects.tail_interval`: none where too few units lie over the threshold."""
        slow = self._exceedances(arm)
        if slow < MIN_EXCEEDANCES:
            return Estimate(expansion.value, NAN, NAN, NAN)
        reference = self.means.reference.of(expansion.influence)
        return replace(reference, df=min(reference.df, slow - 1)).interval(
            expansion.value, expansion.se
        )

    def _tail_factor(self, rate: Expansion, base: Expansion, ratio: Estimate) -> float:
        """How much longer until the tail is cleared; rates not told apart are taken as equal."""
        excess = rate - base.scaled(TAIL_TOLERANCE)
        told = ratio.lo > 1 or ratio.hi < 1
        pooled = float(self.exceeds.mean()) if len(self.exceeds) else NAN
        n = max(int(np.count_nonzero(self.means.base)), 1)
        least = math.sqrt(pooled * (1 + TAIL_TOLERANCE**2) / n)
        return tail_factor(
            excess.value if told else (1 - TAIL_TOLERANCE) * pooled,
            float(np.fmax(excess.se, least)),
            self.means.reference,
        )
