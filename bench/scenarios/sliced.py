"""Slices: an instrument that costs half as much again in slow phases, and nothing in fast ones."""

from __future__ import annotations

import itertools

import numpy as np
from tests.assignment import mixed_arm

from bench.scenarios.counting import answered, covers
from bench.scenarios.registry import Counts, Scenario
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.design import MIXED, Arm, Design, Slices, slice_ends, slice_order
from pgtare.estimate.trial.observations import NO_BLOCK, OBSERVATION, Observations, UnitFlag

#: Service times in fast and in slow phases, microseconds; phases last as long as each other.
_FAST_US, _SLOW_US, _TIMES = 200.0, 1_000.0, 1.5
_PHASE_NS = 300_000_000
_BLOCKS = 250


def _design(seed: int, *, mixed: bool) -> Design:
    arms = (Arm("base", "base"), Arm("i1", "instrument"))
    return Design(arms, (0, 1), seed, Slices((0, 1, MIXED) if mixed else (0, 1)))


def _observed(design: Design, rng: np.random.Generator, sessions: int = 2) -> Observations:
    """Closed loops: a session that is slowed sends fewer transactions."""
    kinds = [kind for block in range(_BLOCKS) for kind in slice_order(design, block)]
    ends = list(itertools.islice(slice_ends(design), len(kinds)))
    shift = int(rng.integers(0, 2 * _PHASE_NS))
    rows = []
    for session in range(sessions):
        now, number, unit, position = 0, 0, 0, 0
        noise = itertools.cycle(rng.lognormal(0, 0.1, 4_999).tolist())
        while True:
            while number < len(ends) and now >= ends[number]:
                number, position = number + 1, 0
            if number == len(ends):
                break
            arm, flags = kinds[number], 0
            if arm == MIXED:
                arm, flags = mixed_arm(design, session, number), int(UnitFlag.MIXED)
            slow = (now + shift) // _PHASE_NS % 2 == 1
            service = (_SLOW_US if slow else _FAST_US) * next(noise)
            if slow and arm == 1:
                service *= _TIMES
            took = int(1_000 * service)
            if now + took > ends[number]:
                flags |= int(UnitFlag.STRADDLED)
            place = (session, unit, NO_BLOCK, min(position, 255), arm)
            rows.append((now, took, 0, -1, *place, 1, flags, 0, session, number, 0, 0))
            now += took + 20_000
            unit, position = unit + 1, position + 1
    return np.array(rows, OBSERVATION)


def _mean(slow_us: float) -> float:
    """Mean of the transactions of a closed loop that is slow half of the time."""
    rates = [1 / (_FAST_US + 20), 1 / (slow_us + 20)]
    return (rates[0] * _FAST_US + rates[1] * slow_us) / sum(rates)


#: What a transaction takes with the instrument on all the time, less what it takes without it.
AS_THEY_COME_US = _mean(_TIMES * _SLOW_US) - _mean(_SLOW_US)
#: What the instrument would add to the base's own transactions.
AT_BASE_MIX_US = (
    (_TIMES - 1) * _SLOW_US * (1 / (_SLOW_US + 20)) / (1 / (_SLOW_US + 20) + 1 / (_FAST_US + 20))
)


def _covers(truth: float, trials: int, seed: int) -> Counts:
    hits = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design = _design(int(rng.integers(1 << 40)), mixed=False)
        # above c lies next to nothing here, so that body and total are the same
        hits += covers(answered(analyse(_observed(design, rng), design)).us, truth)
    return Counts(hits, trials)


def as_they_come(trials: int, seed: int) -> Counts:
    """Coverage of the estimand that docs/method.md states."""
    return _covers(AS_THEY_COME_US, trials, seed)


def at_the_base_mix(trials: int, seed: int) -> Counts:
    """Coverage of the cost of the transactions that the base had, which slices do not estimate."""
    return _covers(AT_BASE_MIX_US, trials, seed)


def warned(trials: int, seed: int) -> Counts:
    """How often --unit both says that its total is below the own effect."""
    hits = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design = _design(int(rng.integers(1 << 40)), mixed=True)
        found = analyse(_observed(design, rng), design, proven={"i1": True}).contention
        assert found is not None
        hits += found.total_less_own_us.hi < 0
    return Counts(hits, trials)


SCENARIOS = (
    Scenario(
        "slices, × 1.5 in slow phases only",
        "95 % interval covers the mean of transactions as they come",
        0.94,
        as_they_come,
        trials=300,
        quick=4,
    ),
    Scenario(
        "slices, × 1.5 in slow phases only",
        "95 % interval covers the cost at the base's mix of transactions",
        0.94,
        at_the_base_mix,
        trials=100,
        quick=4,
        stated="slices estimate another quantity, see Slices above.",
    ),
    Scenario(
        "slices, × 1.5 in slow phases only, --unit both",
        "warned that the total is below the own effect",
        0.94,
        warned,
        trials=100,
        quick=4,
        stated="in a mixed slice sessions are compared with each other, and two are few for that.",
    ),
)
