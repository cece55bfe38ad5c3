"""The one entry point: from the observations of a trial to effects and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pgtare.estimate.trial import quantiles
from pgtare.estimate.trial.analysis_request import Question
from pgtare.estimate.trial.answer import Basis
from pgtare.estimate.trial.bursts import analyse_bursts, live_bursts
from pgtare.estimate.trial.comparison import Comparisons
from pgtare.estimate.trial.contention import contention, live_contention
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.effects import Strata, cpu_cost, effects_of
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.outcomes import Failures, unanswered_in_runs
from pgtare.estimate.trial.results import (
    ArmEstimate,
    Baseline,
    Effect,
    Live,
    TrialEstimate,
)
from pgtare.estimate.trial.runs import select
from pgtare.estimate.trial.slice_trial import analyse_slices, live_slices
from pgtare.estimate.trial.timing import duration_s, switching
from pgtare.estimate.trial.verdict import Settling


def analyse(
    obs: Observations,
    design: Design,
    *,
    margin: float = 0.005,
    proven: Mapping[str, bool] | None = None,
    peeked: bool = False,
    ended_early: str = "",
    decides: bool = False,
) -> TrialEstimate:
    """Effects, tests and verdicts of a trial.

    In a trial in slices the effects are those of the slices; in a saturation design `contention`
    has what its mixed slices add.

    obs: observations of dtype OBSERVATION, in any order; of a driver's trial, of dtype RUN. margin:
    of equivalence, as a share of the base's body. proven: by arm name, whether the instrument was
    seen to run; an instrument that is not named is not verified, while the control and the injected
    arms need no proof but can be refuted. peeked: the trial was ended by someone who saw the
    effects, so all intervals and p-values are those of a confidence sequence. ended_early: why the
    trial ended by accident, in words; then no arm is verified. decides: limits are set: bounds
    are of slow transactions, too. Data that are missing or useless give NaN and "inconclusive",
    never an error. Raises ValueError if margin is not above zero.
    """
    if not margin > 0:
        raise ValueError("the margin of equivalence must be above zero")
    asked = Question(design, margin, proven or {}, peeked, ended_early, decides)
    if design.unit == "burst":
        return analyse_bursts(obs, asked)
    if design.unit == "run":
        return _Analysis(obs, asked).result()
    found = analyse_slices(obs, asked)
    if design.unit == "slice":
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
        self.strata = Strata.of(self.selection)
        arms = range(1, len(self.design.arms))
        reference = self.design.reference
        self.base_c, self.base_us, self.of = effects_of(
            self.strata, reference, arms, peeked=asked.peeked
        )
        self.seconds = duration_s(obs)
        self.cpu = cpu_cost(self.strata, reference, arms, peeked=asked.peeked)
        units = self.selection.later.units
        self.quantiles = [quantiles.of_arm(units, arm) for arm in range(len(self.design.arms))]
        self.unanswered = unanswered_in_runs(obs, self.design, self.selection.used)
        self.compared = Comparisons(asked, {arm: self.of[arm].compared() for arm in arms})

    @property
    def _first_used(self) -> bool:
        return any(self.strata.uses_first(arm) for arm in self.of)

    def result(self) -> TrialEstimate:
        found = self.selection
        return self.compared.estimated(
            Baseline(self.base_us, self.base_c, self.cpu[0] if self.cpu else None),
            self._arm,
            switching=switching(self.obs),
            blocks=found.later.units.n_clusters,
            sessions=found.sessions,
            first_share=found.first_share if self._first_used else 0.0,
            covered=found.covered(self._first_used),
            shortest=found.shortest,
        )

    def _arm(self, index: int) -> ArmEstimate:
        arm, p = self.design.arms[index], self.quantiles[index].value
        described = ArmEstimate(
            name=arm.name,
            role=arm.role,
            n=int(self.selection.used[index]),
            excluded=int(self.selection.excluded[index]),
            mean_us=self.strata.mean(lambda units: units.service_us, index, index).value,
            p50_us=float(p[0]),
            p99_us=float(p[1]),
            aborted=int(self.selection.aborted[index]),
            open=self.unanswered[index].n,
            longest_open_us=self.unanswered[index].longest_us,
        )
        if index == 0:
            return described
        c = self.of[index].c
        return self.compared.judged(
            index,
            described,
            c,
            self._effect(index),
            blocks=self.strata.clusters(index),
            seconds=self.seconds,
            failures=self._failures(index, c),
            unanswered=self.unanswered[index],
            settling=self._settling(index),
            basis=self._basis(index),
            covered=self.selection.covered(self._first_used),
            shortest=self.selection.shortest,
        )

    def _failures(self, index: int, c: float) -> Failures:
        """Failures in whole blocks, and in first runs if these are in the answer."""
        found = self.selection.failed.failures(index, c)
        if not self.strata.uses_first(index):
            return found
        first = self.selection.failed_first.failures(index, c)
        return found.mixed(first, self.strata.share)

    def _basis(self, index: int) -> Basis:
        if not self.strata.uses_first(index):
            return Basis.SETTLED
        return Basis.FIRST if self.strata.share == 1 else Basis.FIRST_AND_SETTLED

    def _settling(self, index: int) -> Settling:
        """Whether the cost changes within the part of the runs that counts."""
        effects, found = self.of[index], self.selection
        late, early = (
            part.cost(part.units.body(effects.c), index) for part in (found.late, found.early)
        )
        change = late - early
        p = effects.reference.of(change.influence).p_of(change)
        return Settling(change.value, p, max(len(self.asked.family), 1))

    def _effect(self, index: int) -> Effect:
        effects, found = self.of[index], self.compared.arms[index]
        p50, p99 = quantiles.differences(
            self.quantiles[index], self.quantiles[0], effects.reference
        )
        beginnings = self.selection.beginnings
        return Effect(
            total_us=found.total_us,
            excess_us=found.excess_us,
            p50_us=p50,
            p99_us=p99,
            cpu_us=self.cpu[1][index] if self.cpu else None,
            switched_on_us=effects.interval(
                beginnings.cost(beginnings.units.body(effects.c), index)
            ),
        )


def live(obs: Observations, design: Design, *, limits: bool = True) -> Live:
    """Each arm's body so far, for a display while the trial runs.

    obs: all observations so far. limits: whether what limits are decided by is wanted, too; else,
    of the estimators, only the body's is computed. Intervals are always valid, however often one
    looks.
    """
    if design.unit == "burst":
        return live_bursts(obs, design, limits=limits)
    if design.unit == "slice":
        return live_slices(obs, design)
    if design.unit == "both":
        return live_contention(obs, design)
    strata = Strata.of(select(obs, design))
    arms = range(1, len(design.arms))
    _, _, found = effects_of(strata, design.reference, arms, peeked=True)
    return Live(
        blocks=strata.later.units.n_clusters,
        arms=tuple(
            found[arm].live(design.arms[arm].name, len(arms), limits=limits) for arm in arms
        ),
    )
