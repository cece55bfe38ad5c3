"""The scenarios that the tests simulate by themselves, with a control and with runs."""

from __future__ import annotations

from functools import partial

import numpy as np
from tests.unit import simulated_runs, simulated_trial

from bench.scenarios.registry import Counts, Scenario


def stalls(instruments: int, trials: int, seed: int) -> Counts:
    """Stalls of one instrument, with a control, called a cost."""
    return Counts(*simulated_trial.stalls_called_a_cost(trials, seed, instruments))


def failing(trials: int, seed: int) -> Counts:
    """A cost of 2 % in which 5 % fail early, called anything flat."""
    return Counts(*simulated_trial.verdicts_despite_failures(trials, seed))


def control_off(trials: int, seed: int) -> Counts:
    """Flat verdicts although the control is off by as much as the instrument."""
    return Counts(*simulated_trial.flat_verdicts_with_the_control_off(trials, seed))


def one_slow_session(trials: int, seed: int) -> Counts:
    """How often body_pct covers 0."""
    return Counts(*simulated_trial.one_slow_session(trials, seed)[1])


def failing_alike(spells: bool, trials: int, seed: int) -> Counts:
    """Rates of failures that are alike, and are found to differ."""
    return Counts(*simulated_trial.failures_told_apart_by_chance(trials, seed, spells))


def lasting(trials: int, seed: int) -> Counts:
    """A cost that lasts, called equivalent without a limit."""
    found = simulated_runs.lasting(trials, np.random.default_rng(seed))[1]
    return Counts(found.hits, found.n)


def long_carry_over(name: str, trials: int, seed: int) -> Counts:
    """How often its interval covers that of 1.2 % over six transactions."""
    found = simulated_runs.carry_over_coverage(
        trials, np.random.default_rng(seed), simulated_runs.SCENARIOS[name], simulated_runs.SIX
    )
    return Counts(found.hits, found.n)


SCENARIOS = (
    *(
        Scenario(
            f"stalls of 5 ms in 0.5 %, {company}, with a control",
            '"cost"',
            0.94,
            partial(stalls, instruments),
            trials=20,
            quick=1,
        )
        for instruments, company in ((1, "alone"), (5, "in company"))
    ),
    Scenario(
        "+2 %, 5 % abort early, with a control",
        "any flat verdict",
        0.05,
        failing,
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
    Scenario(
        "one slow session, A/A, with a control",
        "95 % interval of body_pct covers",
        0.94,
        one_slow_session,
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
    Scenario(
        "1.2 % spread over 6 transactions, with runs",
        '"equivalent" without a limit',
        0.05,
        lasting,
        at_least=False,
        trials=40,
        quick=2,
    ),
    Scenario(
        "1.2 % spread over 6 transactions, with runs",
        "95 % interval of the long carry-over covers",
        0.94,
        partial(long_carry_over, "lognormal"),
        trials=200,
        quick=16,
    ),
)
