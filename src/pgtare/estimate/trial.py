"""The one entry point: from the observations of a trial to effects and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pgtare.design import Design
from pgtare.estimate import quantiles, randomisation
from pgtare.estimate.blocks import select
from pgtare.estimate.contention import contention, live_contention
from pgtare.estimate.effective_clusters import effective_clusters
from pgtare.estimate.effects import THRESHOLD_QUANTILE, cpu_cost, split
from pgtare.estimate.inference import (
    NAN,
    Estimate,
    detectable,
    effect_factor,
    ratio_interval,
    settled_margin,
    tail_factor,
)
from pgtare.estimate.long_effects import LongEffects
from pgtare.estimate.outcomes import failures, unanswered_in_blocks, unfinished
from pgtare.estimate.question import Question
from pgtare.estimate.results import (
    ArmEstimate,
    Baseline,
    ByBackend,
    Effect,
    Live,
    LiveArm,
    TrialEstimate,
)
from pgtare.estimate.run_pairs import select_pairs
from pgtare.estimate.sliced import analyse_slices, live_slices
from pgtare.estimate.timing import duration_s, switching
from pgtare.estimate.verdict import (
    CONFIDENCE,
    EQUIVALENCE_ALPHA,
    TAIL_TOLERANCE,
    Evidence,
    judge,
)
from pgtare.observations import Observations, UnitFlag


def analyse(
    obs: Observations,
    design: Design,
    *,
    margin: float = 0.005,
    proven: Mapping[str, bool] | None = None,
    peeked: bool = False,
    ended_early: str = "",
    seed: int,
) -> TrialEstimate:
    """Effects, tests and verdicts of a trial.

    In a trial in slices the effects are those of the slices; in a saturation design they are those
    of its mixed slices, and `contention` has what its other slices add.

    obs: observations of dtype OBSERVATION, in any order. margin: of equivalence, as a share of
    the base's body. proven: by arm name, whether the instrument was seen to run; an instrument
    that is not named is not verified, while the control and the injected arms need no proof but
    can be refuted. peeked: the trial was ended by someone who saw the effects, so all intervals
    and p-values are those of a confidence sequence (which the randomisation p-value cannot be).
    ended_early: why the trial ended by accident, in words; then no arm is verified. seed: of the
    randomisation test. Data that are missing or useless give NaN and "inconclusive", never an
    error. Raises ValueError where margin is not above zero.
    """
    if not margin > 0:
        raise ValueError("the margin of equivalence must be above zero")
    asked = Question(design, margin, proven or {}, peeked, ended_early, seed)
    if design.unit == "slice":
        return analyse_slices(obs, asked)
    found = _Analysis(obs, asked).result()
    if design.unit == "transaction":
        return found
    instrument = design.arms[1]
    side = contention(
        obs, design, peeked=peeked, ended_early=bool(ended_early),
        proven=asked.proven.get(instrument.name, instrument.role != "instrument"),
    )  # fmt: skip
    return replace(found, contention=side, straddled_pct=side.straddled_pct)


class _Analysis:
    """One trial's estimators and what its arms share."""

    def __init__(self, obs: Observations, asked: Question) -> None:
        self.obs, self.asked, self.design = obs, asked, asked.design
        self.selection = select(obs, self.design)
        self.blocks = self.selection.blocks
        reference = self.design.reference
        self.effects = replace(
            split(self.blocks, reference, peeked=asked.peeked),
            unfinished=unfinished(obs, self.design),
        )
        self.seconds = duration_s(obs)
        self.cpu = cpu_cost(self.blocks, reference, peeked=asked.peeked)
        arms = range(len(self.design.arms))
        #: Of every arm, split at its own threshold; of the base at its own.
        self.of = [self.effects, *(self.effects.of(arm, reference) for arm in arms[1:])]
        self.long_effects = LongEffects(select_pairs(obs, len(self.design.arms)), self.of)
        self.quantiles = [quantiles.of_arm(self.blocks, arm) for arm in arms]
        self.p_values = [NAN, *(self.of[arm].p_body(arm) for arm in arms[1:])]
        self.p_totals = [NAN, *(self.of[arm].p_total(arm) for arm in arms[1:])]
        self.p_randomisation = randomisation.p_values(
            self.blocks, self.effects.body, seed=asked.seed
        )
        self.family, self.tests = asked.family, asked.tests(self.p_values, self.p_totals)
        self.unanswered = unanswered_in_blocks(obs, self.design, self.selection.used)
        self.control = asked.control(
            self.tests,
            lambda arm: (
                self.of[arm].body_cost(arm).value,
                self.of[arm].total_cost(arm).value,
            ),
        )

    def result(self) -> TrialEstimate:
        base = self.effects.base_body.value
        mde_us = self._trial_mde()
        return TrialEstimate(
            baseline=self._baseline(),
            arms=tuple(self._arm(index) for index in range(len(self.design.arms))),
            by_backend=self._by_backend(),
            carry_over=switching(self.obs, lags=1),
            blocks=self.blocks.n,
            clusters=self.blocks.n_clusters,
            blocks_discarded=self.selection.blocks_discarded,
            discarded=self.selection.discarded,
            foreign=self.selection.foreign,
            sessions=len(np.unique(self.blocks.backend)),
            duration_s=self.seconds,
            margin_pct=100 * self.asked.margin,
            confidence=CONFIDENCE,
            mde_us=mde_us,
            mde_pct=100 * mde_us / base if base > 0 else NAN,
            peeked=self.asked.peeked,
            in_runs=int(np.count_nonzero(self.obs["flags"] & UnitFlag.RUN)),
        )

    def _baseline(self) -> Baseline:
        p50, p95, p99 = (float(q) for q in self.quantiles[0].value)
        return Baseline(
            n=int(self.selection.used[0]),
            mean_us=self.effects.mean(self.blocks.service_us, 0).value,
            body_mean_us=self.effects.base_body.value,
            p50_us=p50,
            p95_us=p95,
            p99_us=p99,
            threshold_us=self.effects.c,
            cpu_us=self.cpu[0] if self.cpu else None,
        )

    def _arm(self, index: int) -> ArmEstimate:
        arm, effects = self.design.arms[index], self.of[index]
        described = ArmEstimate(
            name=arm.name,
            role=arm.role,
            n=int(self.selection.used[index]),
            excluded=int(self.selection.excluded[index]),
            mean_us=effects.mean(self.blocks.service_us, index).value,
            p50_us=float(self.quantiles[index].value[0]),
            p99_us=float(self.quantiles[index].value[2]),
            aborted=int(self.blocks.aborted[:, self.blocks.slots(index)].sum()),
            open=self.unanswered[index].n,
            longest_open_us=self.unanswered[index].longest_us,
        )
        return described if index == 0 else self._compared(index, described)

    def _compared(self, index: int, arm: ArmEstimate) -> ArmEstimate:
        """An arm with its effects, tests and verdict added."""
        effects = self.of[index]
        body, total = effects.body_cost(index), effects.total_cost(index)
        base_rate = effects.mean(effects.exceeds, 0)
        rate = effects.mean(effects.exceeds, index)
        by_rates = effects.reference(rate - base_rate)
        rate_ratio = ratio_interval(rate, base_rate, by_rates)
        tail_bound = ratio_interval(rate, base_rate, by_rates, EQUIVALENCE_ALPHA).hi
        tests, failed = self.tests[index], failures(self.blocks, effects.body, index)
        in_family = index in self.family
        family = len(self.family) if in_family else 1
        weighted = family / tests.share
        body_us, reference = effects.interval(body), effects.reference(body)
        margin = effects.base_body.scaled(self.asked.margin)
        less_margin = margin.scaled(-1)
        finding = judge(
            Evidence(
                proven=self.asked.proven.get(arm.name, not in_family),
                blocks=self.blocks.n,
                body=body_us,
                under=effects.interval(body + margin, EQUIVALENCE_ALPHA),
                over=effects.interval(body + less_margin, EQUIVALENCE_ALPHA),
                excess=effects.tail_interval(index, effects.excess_cost(index)),
                total=effects.tail_interval(index, total),
                total_over=effects.tail_interval(index, total + less_margin),
                tail_bound=tail_bound,
                p=tests.body,
                family=family,
                seconds=self.seconds,
                factor=effect_factor(body_us, margin.value, weighted, reference),
                tail_factor=self._tail_factor(index, rate_ratio),
                ended_early=self.asked.ended_early,
                lasting=self.long_effects.evidence(index, margin, family),
                p_total=tests.total,
                control=None if arm.role == "control" else self.control,
                failures=failed,
                unanswered=self.unanswered[index],
            )
        )
        outlasts = self.long_effects.outlasts(index, margin.value, family)
        at_most_us, at_most_pct = effects.at_most(index, EQUIVALENCE_ALPHA)
        if outlasts:  # what lasts longer is in neither the body nor the total
            at_most_us = self.long_effects.by_runs(index).interval(EQUIVALENCE_ALPHA).hi
            at_most_pct = effects.base_body.share_pct(at_most_us)
        return replace(
            arm,
            threshold_us=effects.c,
            effect=self._effect(index),
            run_pairs=self.long_effects.by_runs(index).n,
            outlasts=outlasts,
            plain_body_us=effects.plain(effects.body, index),
            excess_pct=effects.tail_percent(index, effects.excess_cost(index)),
            tail_rate_ratio=rate_ratio,
            tail_rate_difference=effects.plain(effects.exceeds, index),
            tail_bound=tail_bound,
            p_value=self.p_values[index],
            p_randomisation=float(self.p_randomisation[index]),
            p_adjusted=tests.body if in_family or arm.role == "control" else None,
            p_total=self.p_totals[index],
            p_total_adjusted=tests.total if in_family or arm.role == "control" else None,
            p_aborted=failed.p,
            equivalence_us=effects.interval(body, EQUIVALENCE_ALPHA),
            at_most_us=at_most_us,
            at_most_pct=at_most_pct,
            tail_bounded=effects.tail_judged(index) and not outlasts,
            settles_pct=effects.base_body.share_pct(
                settled_margin(body.se, effects.reference(body))
            ),
            mde_us=self._mde(index),
            effective_clusters=effective_clusters(body.influence),
            verdict=finding.verdict,
            verdict_reason=finding.reason,
            seconds_needed=finding.seconds_needed,
        )

    def _tail_factor(self, index: int, ratio: Estimate) -> float:
        """How much longer until the tail is cleared.

        Rates that are not shown to differ are taken as equal, and the error as no less than that of
        rare events that come one by one: a dozen of them say little about either.
        """
        effects, blocks = self.of[index], self.blocks
        if not blocks.n:
            return NAN
        rate, base = effects.mean(effects.exceeds, index), effects.mean(effects.exceeds, 0)
        excess = rate + base.scaled(-TAIL_TOLERANCE)
        pooled = 1 - THRESHOLD_QUANTILE
        slots, base_slots = len(blocks.slots(index)), len(blocks.slots(0))
        least = pooled * (1 / slots + TAIL_TOLERANCE**2 / base_slots) / blocks.n
        told = ratio.lo > 1 or ratio.hi < 1
        return tail_factor(
            excess.value if told else (1 - TAIL_TOLERANCE) * pooled,
            float(np.fmax(excess.se, math.sqrt(least))),
            effects.by_cluster,
        )

    def _effect(self, index: int) -> Effect:
        effects, blocks = self.of[index], self.blocks
        body, total = effects.body_cost(index), effects.total_cost(index)
        p50, p95, p99 = quantiles.differences(
            self.quantiles[index], self.quantiles[0], effects.by_block
        )
        return Effect(
            total_us=effects.tail_interval(index, total),
            total_pct=effects.tail_percent(index, total),
            body_us=effects.interval(body),
            body_pct=effects.percent(body),
            excess_us=effects.tail_interval(index, effects.excess_cost(index)),
            own_us=effects.interval(effects.own(index)),
            carry_over_us=effects.interval(effects.carry_over(index)),
            second_lag_us=effects.interval(effects.second_lag(index)),
            runs_us=self.long_effects.runs_us(index),
            long_carry_over_us=self.long_effects.long_carry_over_us(index),
            mean_us=effects.plain(blocks.service_us, index),
            p50_us=p50,
            p95_us=p95,
            p99_us=p99,
            cpu_us=self.cpu[1][index] if self.cpu else None,
        )

    def _trial_mde(self) -> float:
        """The MDE over the family, from the instrument that is least precisely measured."""
        arms = self.family or range(1, len(self.design.arms))
        return max((self._mde(arm) for arm in arms), default=NAN)

    def _mde(self, arm: int) -> float:
        family = len(self.family) if arm in self.family else 1
        body = self.of[arm].body_cost(arm)
        return detectable(body.se, family / self.tests[arm].share, self.of[arm].reference(body))

    def _by_backend(self) -> tuple[ByBackend, ...]:
        backends, first = np.unique(self.obs["backend"], return_index=True)
        pids = dict(zip(backends.tolist(), self.obs["pid"][first].tolist(), strict=True))
        return tuple(
            self._in_backend(int(backend), pids[int(backend)])
            for backend in np.unique(self.blocks.backend)
        )

    def _in_backend(self, backend: int, pid: int) -> ByBackend:
        part = self.blocks.where(self.blocks.backend == backend)
        return ByBackend(
            backend=backend,
            pid=pid,
            n=part.service_us.size,
            body_us={
                self.design.arms[arm].name: effects.interval(effects.body_cost(arm))
                for arm, effects in ((arm, self.of[arm].within(part)) for arm in self.family)
            },
        )


def live(obs: Observations, design: Design) -> Live:
    """Each arm's body so far, for a display while the trial runs.

    obs: all observations so far. Of the headline's estimators, only the body's is computed; its
    intervals are always valid, however often one looks.
    """
    if design.unit == "slice":
        return live_slices(obs, design)
    if design.unit == "both":
        return live_contention(obs, design)
    blocks = select(obs, design).blocks
    effects = split(blocks, design.reference, peeked=True)
    arms = []
    for index, arm in enumerate(design.arms[1:], start=1):
        own = effects.of(index, design.reference)
        cost = own.body_cost(index)
        arms.append(LiveArm.of(arm.name, cost, effects.base_body, own.reference(cost)))
    return Live(
        blocks=blocks.n,
        duration_s=duration_s(obs),
        base_body_us=effects.base_body.value,
        arms=tuple(arms),
    )
