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
from pgtare.estimate.effects import Effects, cpu_cost, threshold, trimmed_mean
from pgtare.estimate.inference import (
    NAN,
    Estimate,
    detectable,
    effect_factor,
    ratio_interval,
    tail_factor,
)
from pgtare.estimate.question import Question
from pgtare.estimate.regression import fit
from pgtare.estimate.results import (
    ArmEstimate,
    Baseline,
    ByBackend,
    Effect,
    Live,
    LiveArm,
    TrialEstimate,
)
from pgtare.estimate.sliced import analyse_slices, live_slices
from pgtare.estimate.timing import duration_s, switching
from pgtare.estimate.verdict import (
    CONFIDENCE,
    EQUIVALENCE_ALPHA,
    TAIL_TOLERANCE,
    Evidence,
    judge,
)
from pgtare.observations import Observations


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
        self.effects = Effects(self.blocks, threshold(self.blocks.service_us), asked.peeked)
        self.seconds = duration_s(obs)
        self.cpu = cpu_cost(self.blocks, peeked=asked.peeked)
        arms = range(len(self.design.arms))
        self.quantiles = [quantiles.of_arm(self.blocks, arm) for arm in arms]
        self.p_values = [self._p_value(arm) for arm in arms]
        self.p_randomisation = randomisation.p_values(
            self.blocks, self.effects.body, seed=asked.seed
        )
        self.family, self.p_adjusted = asked.family, asked.adjusted(self.p_values)

    def _p_value(self, arm: int) -> float:
        return self.effects.p_value(self.effects.body_cost(arm))

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
        arm, effects = self.design.arms[index], self.effects
        described = ArmEstimate(
            name=arm.name,
            role=arm.role,
            n=int(self.selection.used[index]),
            excluded=int(self.selection.excluded[index]),
            mean_us=effects.mean(self.blocks.service_us, index).value,
            p50_us=float(self.quantiles[index].value[0]),
            p99_us=float(self.quantiles[index].value[2]),
        )
        return described if index == 0 else self._compared(index, described)

    def _compared(self, index: int, arm: ArmEstimate) -> ArmEstimate:
        """An arm with its effects, tests and verdict added."""
        effects = self.effects
        body, total = effects.body_cost(index), effects.total_cost(index)
        base_rate = effects.mean(effects.exceeds, 0)
        rate = effects.mean(effects.exceeds, index)
        rate_ratio = ratio_interval(rate, base_rate, effects.by_cluster)
        tail_bound = ratio_interval(rate, base_rate, effects.by_cluster, EQUIVALENCE_ALPHA).hi
        in_family = index in self.p_adjusted
        family = len(self.family) if in_family else 1
        body_us = effects.interval(body)
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
                p=self.p_adjusted[index] if in_family else self.p_values[index],
                family=family,
                seconds=self.seconds,
                factor=effect_factor(body_us, margin.value, family, effects.reference(body)),
                tail_factor=self._tail_factor(index, rate_ratio),
                ended_early=self.asked.ended_early,
            )
        )
        return replace(
            arm,
            effect=self._effect(index),
            plain_body_us=effects.plain(effects.body, index),
            excess_pct=effects.tail_interval(index, effects.percent(effects.excess_cost(index))),
            tail_rate_ratio=rate_ratio,
            tail_rate_difference=effects.plain(effects.exceeds, index),
            tail_bound=tail_bound,
            p_value=self.p_values[index],
            p_randomisation=float(self.p_randomisation[index]),
            p_adjusted=self.p_adjusted.get(index),
            equivalence_us=effects.interval(body, EQUIVALENCE_ALPHA),
            mde_us=detectable(body.se, family, effects.reference(body)),
            effective_clusters=effective_clusters(body.influence),
            verdict=finding.verdict,
            verdict_reason=finding.reason,
            seconds_needed=finding.seconds_needed,
        )

    def _tail_factor(self, index: int, ratio: Estimate) -> float:
        """How much longer until the tail is cleared.

        Rates that are not told apart are taken as equal, and the error as no less than that of
        rare events that come one by one: a dozen of them say little about either.
        """
        effects, blocks = self.effects, self.blocks
        if not blocks.n:
            return NAN
        rate, base = effects.mean(effects.exceeds, index), effects.mean(effects.exceeds, 0)
        excess = rate + base.scaled(-TAIL_TOLERANCE)
        pooled = float(effects.exceeds.mean())
        slots, base_slots = len(blocks.slots(index)), len(blocks.slots(0))
        least = pooled * (1 / slots + TAIL_TOLERANCE**2 / base_slots) / blocks.n
        told = ratio.lo > 1 or ratio.hi < 1
        return tail_factor(
            excess.value if told else (1 - TAIL_TOLERANCE) * pooled,
            float(np.fmax(excess.se, math.sqrt(least))),
            effects.by_cluster,
        )

    def _effect(self, index: int) -> Effect:
        effects, blocks = self.effects, self.blocks
        body, total = effects.body_cost(index), effects.total_cost(index)
        p50, p95, p99 = quantiles.differences(
            self.quantiles[index], self.quantiles[0], effects.by_block
        )
        differences = blocks.difference(blocks.service_us, index)
        return Effect(
            total_us=effects.tail_interval(index, total),
            total_pct=effects.tail_interval(index, effects.percent(total)),
            body_us=effects.interval(body),
            body_pct=effects.interval(effects.percent(body)),
            excess_us=effects.tail_interval(index, effects.excess_cost(index)),
            own_us=effects.interval(effects.own(index)),
            carry_over_us=effects.interval(effects.carry_over(index)),
            second_lag_us=effects.interval(effects.second_lag(index)),
            mean_us=effects.plain(blocks.service_us, index),
            typical_us=trimmed_mean(differences, effects.by_block),
            p50_us=p50,
            p95_us=p95,
            p99_us=p99,
            cpu_us=self.cpu[1][index] if self.cpu else None,
        )

    def _trial_mde(self) -> float:
        """The MDE over the family, from the instrument that is least precisely measured."""
        arms = self.family or range(1, len(self.design.arms))
        found = [
            detectable(self.effects.body_cost(arm).se, len(self.family), self.effects.by_cluster)
            for arm in arms
        ]
        return max(found, default=NAN)

    def _by_backend(self) -> tuple[ByBackend, ...]:
        backends, first = np.unique(self.obs["backend"], return_index=True)
        pids = dict(zip(backends.tolist(), self.obs["pid"][first].tolist(), strict=True))
        return tuple(
            self._in_backend(int(backend), pids[int(backend)])
            for backend in np.unique(self.blocks.backend)
        )

    def _in_backend(self, backend: int, pid: int) -> ByBackend:
        part = self.blocks.where(self.blocks.backend == backend)
        effects = Effects(part, self.effects.c, self.asked.peeked)
        return ByBackend(
            backend=backend,
            pid=pid,
            n=part.service_us.size,
            body_us={
                self.design.arms[arm].name: effects.interval(effects.body_cost(arm))
                for arm in self.family
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
    effects = Effects(blocks, threshold(blocks.service_us), peeked=True)
    (body,) = fit(blocks, [effects.body])
    arms = []
    for index, arm in enumerate(design.arms[1:], start=1):
        cost = body.effect(index, 0) + body.effect(index, 1)
        share = effects.percent(cost)
        percent, reference = effects.interval(share), effects.reference(share)
        arms.append(LiveArm.of(arm.name, effects.interval(cost), percent, reference))
    return Live(
        blocks=blocks.n,
        duration_s=duration_s(obs),
        base_body_us=effects.base_body.value,
        arms=tuple(arms),
    )
