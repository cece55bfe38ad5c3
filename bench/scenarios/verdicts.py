"""Verdicts on hostile trials: effects that last, aborts, censoring, stalls in company."""

from __future__ import annotations

from functools import partial

import numpy as np

from bench.scenarios import simulator
from bench.scenarios.registry import Counts, Scenario
from pgtare.estimate.trial import TrialEstimate, analyse
from pgtare.estimate.trial.observations import Observations, UnitFlag

_STALL_US = 5_000.0


def _judged(observations: Observations, n_arms: int, seed: int) -> TrialEstimate:
    design = simulator.design_of(n_arms, seed)
    proven = {arm.name: True for arm in design.arms}
    return analyse(observations, design, proven=proven, seed=1)


def lasting(lags: int, trials: int, seed: int) -> Counts:
    """How often a cost of 1.2 %, spread evenly over `lags` transactions, is "equivalent".

    These trials have no runs. So the answer may say "for effects that last up to 2 transactions":
    of 1.2 % over five or six that part is inside the margin.
    """
    hits = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design_seed = int(rng.integers(1 << 40))
        sessions = [simulator.lognormal(30_000, rng, 0.05) for _ in range(2)]
        made = simulator.simulate(
            sessions,
            simulator.design_of(2, design_seed),
            lambda x: x + 1.2 / lags,
            after=[1.2 / lags] * (lags - 1),
        )
        arm = _judged(made.observations, 2, design_seed).arms[1]
        hits += arm.verdict == "equivalent" and "that last up to" not in arm.verdict_reason
    return Counts(hits, trials)


def aborting(trials: int, seed: int) -> Counts:
    """How often an arm that costs 2 %, of which 5 % fail early, is called a gain."""
    hits = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design_seed = int(rng.integers(1 << 40))
        sessions = [simulator.lognormal(15_000, rng, 0.2) for _ in range(2)]
        made = simulator.simulate(
            sessions, simulator.design_of(2, design_seed), lambda x: 1.02 * x
        ).observations
        failed = (made["arm"] == 1) & (rng.random(len(made)) < 0.05)
        made["service_ns"][failed] //= 4
        made["flags"][failed] |= int(UnitFlag.ABORTED)
        hits += _judged(made, 2, design_seed).arms[1].verdict == "gain"
    return Counts(hits, trials)


def censored(share: float, trials: int, seed: int) -> Counts:
    """Stalls that take a share of a session's life: how often body_us holds their mean.

    A stall that is under way when its session ends is reported as open, with its time so far.
    Stalls are so frequent here that all lie below c.
    """
    units, chance = 300, 0.01
    life_us = units * 120.0
    hits = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design_seed = int(rng.integers(1 << 40))
        sessions = [simulator.lognormal(units, rng, 0.1) for _ in range(120)]
        made = simulator.simulate(
            sessions,
            simulator.design_of(2, design_seed),
            lambda x, rng=rng: x + share * life_us * (rng.random(len(x)) < chance),  # type: ignore[misc]
            life_us=life_us,
        )
        found = _judged(made.observations, 2, design_seed)
        effect, c = found.arms[1].effect, found.arms[1].threshold_us
        assert effect is not None
        assert c is not None
        truth = made.truth_of_body(c)
        hits += effect.body_us.lo <= truth <= effect.body_us.hi
    return Counts(hits, trials)


def stalls(instruments: int, trials: int, seed: int) -> Counts:
    """How often stalls of 5 ms in 0.5 % of one arm's transactions are called a cost."""
    hits = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design_seed = int(rng.integers(1 << 40))
        design = simulator.design_of(instruments + 1, design_seed)
        each = 2_000 * len(design.block)
        made = simulator.simulate(
            [simulator.lognormal(each, rng, 0.3) for _ in range(2)],
            design,
            lambda x, rng=rng: x + _STALL_US * (rng.random(len(x)) < 0.005),  # type: ignore[misc]
        )
        found = _judged(made.observations, instruments + 1, design_seed)
        hits += found.arms[1].verdict == "cost"
    return Counts(hits, trials)


def two_base_slots(trials: int, seed: int) -> Counts:
    """Ten arms alike, the base twice or more in a block: how often body_us covers 0."""
    hits = judged = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design_seed = int(rng.integers(1 << 40))
        sessions = [simulator.lognormal(6_000, rng) for _ in range(2)]
        made = simulator.simulate(sessions, simulator.design_of(10, design_seed))
        for arm in _judged(made.observations, 10, design_seed).arms[1:]:
            assert arm.effect is not None
            judged += 1
            hits += arm.effect.body_us.lo <= 0 <= arm.effect.body_us.hi
    return Counts(hits, judged)


SCENARIOS = (
    *(
        Scenario(
            f"1.2 % spread over {lags} transactions",
            '"equivalent" without a limit',
            0.05,
            partial(lasting, lags),
            at_least=False,
            trials=60,
            quick=4,
        )
        for lags in (2, 3, 5, 6)
    ),
    Scenario("+2 %, 5 % abort early", '"gain"', 0.05, aborting, at_least=False, trials=60, quick=5),
    *(
        Scenario(
            f"stalls of {share:.0%} of a session's life".replace("%", " %"),
            "95 % interval of body_us covers",
            0.94,
            partial(censored, share),
            trials=100,
            quick=5,
        )
        for share in (0.05, 0.30)
    ),
    *(
        Scenario(
            f"stalls of 5 ms in 0.5 %, {instruments} instrument{'s' * (instruments > 1)}",
            '"cost"',
            0.94,
            partial(stalls, instruments),
            trials=trials,
            quick=2,
        )
        for instruments, trials in ((1, 60), (7, 40), (30, 20))
    ),
    Scenario(
        "two base slots, A/A",
        "95 % interval of body_us covers",
        0.94,
        two_base_slots,
        trials=40,
        quick=3,
    ),
)
