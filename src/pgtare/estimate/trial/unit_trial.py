"""The one entry point: from the observations of a trial to effects and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pgtare.estimate.inference import NAN
from pgtare.estimate.trial import quantiles, randomisation
from pgtare.estimate.trial.analysis_request import Question
from pgtare.estimate.trial.blocks import select
from pgtare.estimate.trial.comparison import Comparisons
from pgtare.estimate.trial.contention import contention, live_contention
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.effects import cpu_cost, split
from pgtare.estimate.trial.long_carry_over import LongEffects
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.estimate.trial.outcomes import failures, unanswered_in_blocks, unfinished
from pgtare.estimate.trial.results import (
    ArmEstimate,
    Baseline,
    ByBackend,
    Effect,
    Live,
    LiveArm,
    TrialEstimate,
)
from pgtare.estimate.trial.run_pairs import select_pairs
from pgtare.estimate.trial.slice_trial import analyse_slices, live_slices
from pgtare.estimate.trial.timing import duration_s, switching
from pgtare.estimate.trial.verdict import CONFIDENCE, EQUIVALENCE_ALPHA


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
    error. Raises ValueError if margin is not above zero.
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
        obs,
        design,
        peeked=peeked,
        ended_early=bool(ended_early),
        proven=asked.proven.get(instrument.name, instrument.role != "instrument"),
    )
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
        self.p_randomisation = randomisation.p_values(
            self.blocks, self.effects.body, seed=asked.seed
        )
        self.unanswered = unanswered_in_blocks(obs, self.design, self.selection.used)
        self.compared = Comparisons(asked, {arm: self.of[arm].compared(arm) for arm in arms[1:]})

    def result(self) -> TrialEstimate:
        base = self.effects.base_body.value
        mde_us = self.compared.trial_mde_us
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
        p50, p99 = (float(q) for q in self.quantiles[0].value)
        return Baseline(
            n=int(self.selection.used[0]),
            mean_us=self.effects.mean(self.blocks.service_us, 0).value,
            body_mean_us=self.effects.base_body.value,
            p50_us=p50,
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
            p99_us=float(self.quantiles[index].value[1]),
            aborted=int(self.blocks.aborted[:, self.blocks.slots(index)].sum()),
            open=self.unanswered[index].n,
            longest_open_us=self.unanswered[index].longest_us,
        )
        return described if index == 0 else self._compared(index, described)

    def _compared(self, index: int, arm: ArmEstimate) -> ArmEstimate:
        """An arm with its effects, tests and verdict added."""
        effects, lasts = self.of[index], self.long_effects
        margin, family = self.compared.margin(index), self.compared.family(index)
        judged = self.compared.judged(
            index,
            arm,
            blocks=self.blocks.n,
            seconds=self.seconds,
            failures=failures(self.blocks, effects.body, index),
            unanswered=self.unanswered[index],
            lasting=lasts.evidence(index, margin, family),
        )
        assert judged.effect is not None
        found = replace(
            judged,
            threshold_us=effects.c,
            effect=self._effect(index, judged.effect),
            run_pairs=lasts.by_runs(index).n,
            outlasts=lasts.outlasts(index, margin.value, family),
            p_randomisation=float(self.p_randomisation[index]),
        )
        if not found.outlasts:
            return found
        # what lasts longer is in neither the body nor the total
        at_most_us = lasts.by_runs(index).interval(EQUIVALENCE_ALPHA).hi
        return replace(
            found,
            at_most_us=at_most_us,
            at_most_pct=effects.base_body.share_pct(at_most_us),
            tail_bounded=False,
        )

    def _effect(self, index: int, found: Effect) -> Effect:
        effects, blocks = self.of[index], self.blocks
        p50, p99 = quantiles.differences(self.quantiles[index], self.quantiles[0], effects.by_block)
        return replace(
            found,
            own_us=effects.interval(effects.own(index)),
            carry_over_us=effects.interval(effects.carry_over(index)),
            second_lag_us=effects.interval(effects.second_lag(index)),
            runs_us=self.long_effects.runs_us(index),
            long_carry_over_us=self.long_effects.long_carry_over_us(index),
            mean_us=effects.plain(blocks.service_us, index),
            p50_us=p50,
            p99_us=p99,
            cpu_us=self.cpu[1][index] if self.cpu else None,
        )

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
                for arm, effects in ((arm, self.of[arm].within(part)) for arm in self.asked.family)
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
        arms=tuple(arms),
    )
