"""How rows of the table count: trials played with dice of their own, and judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from tests.unit import simulated_trial
from tests.unit.simulated_trial import Effect, Rng, Session, Simulated

from bench.scenarios.registry import Counts
from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.answer import Answer, ReasonKind
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.results import ArmEstimate, TrialEstimate

#: Makes the sessions of one trial.
Sessions = Callable[[Rng], list[Session]]
#: Makes the effects of one trial, by the number of the arm.
Effects = Callable[[Rng], Mapping[int, Effect]]


def nothing(rng: Rng) -> Mapping[int, Effect]:
    """A/A."""
    del rng
    return {}


def trials(number: int, seed: int) -> Iterator[tuple[Rng, int]]:
    """A random stream, and the seed of a design, for each trial."""
    for trial in range(number):
        rng = np.random.default_rng((seed, trial))
        yield rng, int(rng.integers(1 << 40))


def played(
    sessions: Sessions, effects: Effects, instruments: int, number: int, seed: int
) -> Iterator[tuple[Simulated, TrialEstimate]]:
    """Judged trials of some instruments without a control; the first has the effect."""
    for rng, design_seed in trials(number, seed):
        design = simulated_trial.design_of(instruments, design_seed)
        made = simulated_trial.simulate(sessions(rng), design, effects(rng))
        yield made, judged(made.observations, design)


def judged(observations: Observations, design: Design) -> TrialEstimate:
    """The trial's estimate, every instrument proven."""
    return analyse(observations, design, proven={arm.name: True for arm in design.arms})


def instrument(found: TrialEstimate) -> ArmEstimate:
    """The first instrument, which has the effect where there is one."""
    return next(arm for arm in found.arms if arm.role == "instrument")


def answered(found: TrialEstimate) -> Answer:
    """Its answer."""
    answer = instrument(found).answer
    assert answer is not None
    return answer


def covers(interval: Estimate, truth: float) -> bool:
    """Whether an interval holds the truth."""
    return interval.lo <= truth <= interval.hi


def truth_of(made: Simulated, found: TrialEstimate) -> float:
    """Of what the first instrument's answer is of, below its threshold."""
    c = instrument(found).threshold_us
    assert c is not None
    first = found.first_share > 0
    if first and answered(found).because(ReasonKind.SHORT_SESSIONS) is None:
        return made.truth_of_all(c)
    return made.truth(c, first=first)


def wrong(sessions: Sessions, number: int, seed: int) -> Counts:
    """A/A: how often p < .05."""
    hits = 0
    for _, found in played(sessions, nothing, 1, number, seed):
        p = instrument(found).p
        hits += p is not None and p < 0.05
    return Counts(hits, number)


def covered(
    sessions: Sessions, effects: Effects, number: int, seed: int, *, percent: bool = False
) -> Counts:
    """How often the answer's interval holds the truth; trials without an interval do not count."""
    hits = known = 0
    for made, found in played(sessions, effects, 1, number, seed):
        answer, truth = answered(found), truth_of(made, found)
        interval = answer.pct if percent else answer.us
        if percent:
            c = instrument(found).threshold_us
            assert c is not None
            truth *= 100 / made.base_body(c, first=found.first_share > 0)
        known += not math.isnan(interval.lo)
        hits += covers(interval, truth)
    return Counts(hits, known)


def called(
    sessions: Sessions, effects: Effects, verdicts: tuple[str, ...], number: int, seed: int
) -> Counts:
    """How often the first instrument has one of these verdicts."""
    hits = 0
    for _, found in played(sessions, effects, 1, number, seed):
        hits += answered(found).verdict in verdicts
    return Counts(hits, number)
