"""Sessions of unlike lengths and speeds: what is claimed is covered, or no claim is made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from tests.unit import simulated_trial as simulated
from tests.unit.simulated_trial import Effect, Rng, Session, Simulated

from bench.scenarios.counting import (
    Sessions,
    answered,
    covers,
    instrument,
    played,
    truth_of,
    wrong,
)
from bench.scenarios.registry import Counts, Scenario
from pgtare.estimate.trial.answer import ReasonKind
from pgtare.estimate.trial.results import TrialEstimate

#: So much an instrument adds, in fast sessions and in slow ones.
_FAST_US, _SLOW_US = 3.0, 30.0
_COLD_US = (15.0,) * 4


def _costs(rng: Rng) -> Mapping[int, Effect]:
    """Ten times as much in slow sessions, and a cold start."""
    del rng
    return {1: Effect(lambda x: np.where(x > 400, x + _SLOW_US, x + _FAST_US), cold_us=_COLD_US)}


def _fast(n: int, rng: Rng) -> simulated.Floats:
    return simulated.lognormal(n, rng, 0.2)


def _slow(n: int, rng: Rng) -> simulated.Floats:
    return 10 * simulated.lognormal(n, rng, 0.2)


def _short_slow(rng: Rng) -> list[Session]:
    """Long fast sessions, and as many transactions in short slow ones that come and go."""
    older = simulated.old(_fast(4_000, rng) for _ in range(3))
    short = [_slow(int(n), rng) for n in rng.integers(10, 40, 480)]
    return [*older, *simulated.new(short, rng, stratum=1)]


def _all_short(length: int, rng: Rng) -> list[Session]:
    """New sessions of this length and nothing else."""
    number = max(200, 4_000 // length)
    return simulated.new([_fast(length, rng) for _ in range(number)], rng)


def _pool(rng: Rng) -> list[Session]:
    """A pool of older sessions that seldom send anything, beside three fast ones."""
    pool = [_slow(int(n), rng) for n in rng.integers(10, 41, 500)]
    return simulated.old([*(_fast(4_000, rng) for _ in range(3)), *pool])


def _said_of_all(found: TrialEstimate) -> bool:
    answer = answered(found)
    return answer.because(ReasonKind.SHORT_SESSIONS) is None


def claims_hold(sessions: Sessions, trials: int, seed: int) -> Counts:
    """How often what is said is true.

    The interval holds the cost of all transactions, or only of the sessions that it says it is of;
    without an interval nothing is said.
    """
    hits = 0
    for made, found in played(sessions, _costs, 1, trials, seed):
        interval = answered(found).us
        hits += np.isnan(interval.lo) or covers(interval, _claimed(made, found))
    return Counts(hits, trials)


def _claimed(made: Simulated, found: TrialEstimate) -> float:
    c = instrument(found).threshold_us
    assert c is not None
    return made.truth_of_all(c) if _said_of_all(found) else truth_of(made, found)


_POPULATIONS: dict[str, Sessions] = {
    "half of the transactions in short slow sessions": _short_slow,
    **{f"all sessions have {n} transactions": partial(_all_short, n) for n in (5, 20, 60)},
    "500 old sessions of 10-40 transactions, 3 fast ones": _pool,
}
SCENARIOS = tuple(
    row
    for name, make in _POPULATIONS.items()
    for row in (
        Scenario(
            f"{name}, A/A", "p < .05", 0.055, partial(wrong, make), at_least=False, trials=400
        ),
        Scenario(
            name,
            "what is claimed is covered",
            0.94,
            partial(claims_hold, make),
            trials=400,
        ),
    )
)
