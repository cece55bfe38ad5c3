"""Verdicts on hostile trials: cold starts, aborts, censoring, stalls, a control that is off."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from tests.unit import simulated_trial as simulated
from tests.unit.simulated_trial import Effect, Rng, Session

from bench.scenarios.counting import (
    Effects,
    Sessions,
    answered,
    called,
    covers,
    instrument,
    judged,
    nothing,
    played,
    trials,
    truth_of,
)
from bench.scenarios.registry import Counts, Scenario
from bench.scenarios.runs import cold, slower
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.timing import duration_s

_STALL_US = 5_000.0
_FLAT = ("cost", "gain", "equivalent")


def _some(sessions: int, units: int, sigma: float, rng: Rng) -> list[Session]:
    return simulated.old(simulated.lognormal(units, rng, sigma) for _ in range(sessions))


def _stalling(share: float, stall_us: float, rng: Rng) -> Mapping[int, Effect]:
    """A share of the instrument's transactions stall."""
    return {1: Effect(lambda x: x + stall_us * (rng.random(len(x)) < share))}


def aborting(verdicts: tuple[str, ...], control: bool, number: int, seed: int) -> Counts:
    """How often an arm that costs 2 %, of which 5 % fail early, has one of these verdicts."""
    hits = 0
    for rng, design_seed in trials(number, seed):
        design = simulated.design_of(1, design_seed, control=control)
        arm = len(design.arms) - 1
        made = simulated.simulate(
            _some(2, 15_000, 0.2, rng),
            design,
            {arm: Effect(lambda x: np.asarray(1.02 * x))},
            judged=arm,
        )
        failed = (made.observations["arm"] == arm) & (rng.random(len(made.on_us)) < 0.05)
        found = judged(simulated.fail(made, failed, 0.25), design)
        hits += answered(found).verdict in verdicts
    return Counts(hits, number)


def failing_alike(spells: bool, number: int, seed: int) -> Counts:
    """Rates of failures that are alike, and are found to differ."""
    hits = 0
    for rng, design_seed in trials(number, seed):
        design = simulated.design_of(1, design_seed, control=True)
        made = simulated.simulate(_some(4, 1_800, 0.2, rng), design)
        n = len(made.on_us)
        failed = simulated.in_spells(n, rng, 0.02) if spells else rng.random(n) < 0.02
        p = instrument(judged(simulated.fail(made, failed, 0.1), design)).p_aborted
        hits += p is not None and p < 0.05
    return Counts(hits, number)


def control_off(number: int, seed: int) -> Counts:
    """Flat verdicts although the control is off by as much as the instrument."""
    hits = 0
    for rng, design_seed in trials(number, seed):
        design = simulated.design_of(1, design_seed, control=True)
        more = Effect(lambda x: np.asarray(1.05 * x))
        made = simulated.simulate(_some(4, 3_000, 0.2, rng), design, {1: more, 2: more})
        hits += answered(judged(made.observations, design)).verdict in _FLAT
    return Counts(hits, number)


def withheld(number: int, seed: int) -> Counts:
    """A clear cost beside a sound control that is not called one."""
    hits = 0
    for rng, design_seed in trials(number, seed):
        design = simulated.design_of(1, design_seed, control=True)
        made = simulated.simulate(
            _some(2, 6_000, 0.2, rng), design, {2: Effect(lambda x: np.asarray(1.05 * x))}
        )
        hits += answered(judged(made.observations, design)).verdict != "cost"
    return Counts(hits, number)


def censored(share: float, number: int, seed: int) -> Counts:
    """Stalls that take a share of a session's life: how often the interval holds their mean.

    A stall that is under way when its session ends is reported as open, with its time so far.
    Stalls are so frequent here that all lie below c.
    """
    units, chance = 300, 0.01
    life_us = units * 120.0
    hits = 0
    for rng, design_seed in trials(number, seed):
        sessions = [
            Session(simulated.lognormal(units, rng, 0.1), life_us=life_us) for _ in range(120)
        ]
        design = simulated.design_of(1, design_seed)
        made = simulated.simulate(sessions, design, _stalling(chance, share * life_us, rng))
        found = judged(made.observations, design)
        hits += covers(answered(found).us, truth_of(made, found))
    return Counts(hits, number)


def stalls(instruments: int, control: bool, number: int, seed: int) -> Counts:
    """How often stalls of 5 ms in 0.5 % of one arm's transactions are called a cost."""
    hits = 0
    for rng, design_seed in trials(number, seed):
        design = simulated.design_of(instruments, design_seed, control=control)
        arm = 1 + control
        stalling = _stalling(0.005, _STALL_US, rng)[1]
        # so many transactions that the slow ones are enough to be judged
        each = 16_000 // design.block.count(0) * len(design.block)
        sessions = _some(2, each, 0.3, rng)
        made = simulated.simulate(sessions, design, {arm: stalling}, judged=arm)
        hits += answered(judged(made.observations, design)).verdict == "cost"
    return Counts(hits, number)


def many_arms(number: int, seed: int) -> Counts:
    """Nine instruments alike, the base twice in a block: how often an interval covers 0."""
    hits = known = 0
    for rng, design_seed in trials(number, seed):
        design = simulated.design_of(9, design_seed)
        made = simulated.simulate(_some(2, 12_000, 0.5, rng), design)
        for arm in judged(made.observations, design).arms[1:]:
            assert arm.answer is not None
            known += 1
            hits += covers(arm.answer.us, 0)
    return Counts(hits, known)


def family(instruments: int, noise: Sessions, number: int, seed: int) -> Counts:
    """A/A trials in which any instrument is called a cost or a gain."""
    hits = 0
    for _, found in played(noise, nothing, instruments, number, seed):
        verdicts = {arm.answer.verdict for arm in found.arms[1:] if arm.answer is not None}
        hits += bool(verdicts & {"cost", "gain"})
    return Counts(hits, number)


def none_over(number: int, seed: int) -> Counts:
    """How often A/A is called none over x, in four times the time that a first trial asks for.

    x is as wide as half of the first trial's interval: then it is the tail that takes longest.
    """
    hits = 0
    for rng, design_seed in trials(number, seed):
        design = simulated.design_of(1, design_seed)
        first = simulated.simulate(_some(2, 6_000, 0.2, rng), design)
        looked = judged(first.observations, design)
        margin = answered(looked).us.half_width / looked.baseline.body_mean_us
        asked = analyse(first.observations, design, margin=margin, proven={"i1": True})
        needed_s = answered(asked).needed_s or 0.0
        times = 4 * (1 + needed_s / duration_s(first.observations)) if needed_s else 4
        again = simulated.design_of(1, design_seed + 1)
        made = simulated.simulate(_some(2, round(6_000 * times), 0.2, rng), again)
        found = analyse(made.observations, again, margin=margin, proven={"i1": True})
        hits += answered(found).verdict == "equivalent"
    return Counts(hits, number)


_CLEAN: Sessions = partial(_some, 2, 6_000, 0.2)


def _verdict(
    name: str,
    effects: Effects,
    verdicts: tuple[str, ...],
    bound: float,
    *,
    at_least: bool,
    trials: int,
) -> Scenario:
    checks = " or ".join(f'"{verdict}"' for verdict in verdicts)
    count = partial(called, _CLEAN, effects, verdicts)
    return Scenario(name, checks, bound, count, at_least, trials)


SCENARIOS = (
    _verdict(
        "clean, 5 %",
        partial(slower, 0.05),
        ("cost",),
        0.95,
        at_least=True,
        trials=400,
    ),
    Scenario(
        "clean, A/A",
        '"none over" in four times the needed time',
        0.80,
        none_over,
        trials=24,
        quick=2,
    ),
    Scenario("clean, 5 %, with a control", "no cost", 0.05, withheld, at_least=False, trials=400),
    _verdict(
        "settled 0, cold +3 % over 4",
        partial(cold, 0.0, 0.03, 4),
        ("cost",),
        0.055,
        at_least=False,
        trials=1_000,
    ),
    *(
        Scenario(
            f"{name}, {instruments} instruments, A/A",
            'any "cost" or "gain"',
            0.055,
            partial(family, instruments, sessions),
            at_least=False,
            trials=200,
            quick=16,
        )
        for name, instruments, sessions in (
            ("lognormal", 3, _CLEAN),
            ("lognormal", 30, partial(_some, 2, 30_000, 0.2)),
        )
    ),
    Scenario(
        "nine instruments, two runs of the base, A/A",
        "95 % interval covers",
        0.94,
        many_arms,
        trials=60,
        quick=5,
    ),
    Scenario(
        "+2 %, 5 % abort early",
        '"gain"',
        0.05,
        partial(aborting, ("gain",), False),
        at_least=False,
        trials=60,
        quick=5,
    ),
    Scenario(
        "+2 %, 5 % abort early, with a control",
        "any flat verdict",
        0.05,
        partial(aborting, _FLAT, True),
        at_least=False,
        trials=60,
        quick=4,
    ),
    Scenario(
        "control and instrument off by 5 %",
        "any flat verdict",
        0.05,
        control_off,
        at_least=False,
        trials=60,
        quick=4,
    ),
    *(
        Scenario(
            f"all arms fail alike, {how}",
            "rates found to differ at 5 %",
            0.05,
            partial(failing_alike, spells),
            at_least=False,
            trials=400,
            quick=16,
        )
        for spells, how in ((False, "one by one"), (True, "in spells"))
    ),
    *(
        Scenario(
            f"stalls of {share:.0%} of a session's life".replace("%", " %"),
            "95 % interval covers",
            0.94,
            partial(censored, share),
            trials=200,
            quick=5,
        )
        for share in (0.05, 0.30)
    ),
    *(
        Scenario(
            f"stalls of 5 ms in 0.5 %, {instruments} instrument{'s' * (instruments > 1)}"
            f"{', with a control' * control}",
            '"cost"',
            0.94,
            partial(stalls, instruments, control),
            trials=number,
            quick=2,
        )
        for instruments, control, number in (
            (1, False, 60),
            (1, True, 40),
            (7, False, 40),
            (30, False, 20),
        )
    ),
)
