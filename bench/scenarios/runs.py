"""Trials by runs: false positives, and coverage of what an instrument costs when left on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from tests.unit import simulated_trial as simulated
from tests.unit.simulated_trial import Effect, Floats, Rng, Session

from bench.scenarios.counting import Effects, Sessions, covered, nothing, wrong
from bench.scenarios.registry import Scenario

_UNITS = 6_000


def two(noise: Callable[[int, Rng], Floats], rng: Rng) -> list[Session]:
    """Two sessions that are older than the trial."""
    return simulated.old(noise(_UNITS, rng) for _ in range(2))


def _come_and_go(number: int, rng: Rng) -> list[Session]:
    """Sessions that begin in the trial, of lengths and speeds of their own, beside a few others."""
    lengths = rng.integers(20, 150, number)
    passing = [rng.lognormal(0, 0.7) * simulated.lognormal(int(n), rng) for n in lengths]
    older = simulated.old(simulated.lognormal(600, rng) for _ in range(4))
    return [*older, *simulated.new(passing, rng)]


def _short(rng: Rng) -> list[Session]:
    return simulated.old(rng.lognormal(0, 0.5) * simulated.lognormal(35, rng) for _ in range(64))


def _one_slow(rng: Rng) -> list[Session]:
    """One session has 1 % of the transactions, and each takes a hundred times as long."""
    fast = [simulated.lognormal(3_000, rng) for _ in range(4)]
    return simulated.old([*fast, 100 * simulated.lognormal(121, rng)])


def slower(share: float, rng: Rng) -> Mapping[int, Effect]:
    """The instrument takes this share longer."""
    del rng
    return {1: Effect(lambda x: np.asarray((1 + share) * x))}


def _slow_mode(rng: Rng) -> Mapping[int, Effect]:
    """Only what is slow gets slower, by a tenth."""
    del rng
    return {1: Effect(lambda x: np.where(x > 500, 1.1 * x, x))}


def cold(settled: float, first: float, over: int, rng: Rng) -> Mapping[int, Effect]:
    """Of a base of 100 µs: settled, and more for the first transactions after it is on."""
    del rng
    return {1: Effect(lambda x: np.asarray((1 + settled) * x), cold_us=(100 * first,) * over)}


def carried(settled: float, after: Sequence[float], rng: Rng) -> Mapping[int, Effect]:
    """What it does lasts for a while after it was switched off."""
    del rng
    return {1: Effect(lambda x: np.asarray((1 + settled) * x), after_us=after)}


NOISES: dict[str, Sessions] = {
    "lognormal": partial(two, simulated.lognormal),
    "Pareto 1.5": partial(two, simulated.pareto),
    "bimodal with drift": partial(two, simulated.bimodal_with_drift),
    "AR .999": partial(two, simulated.autoregressive),
    **{
        f"cycle of {period}": partial(two, partial(simulated.cycle, period=period))
        for period in (6, 32, 96)
    },
    "base doubles": partial(two, simulated.doubling),
    "64 sessions come and go": partial(_come_and_go, 64),
    "200 sessions come and go": partial(_come_and_go, 200),
    "64 sessions of 35 transactions": _short,
}
_CLEAN = partial(two, partial(simulated.lognormal, sigma=0.2))
_COVERS = "95 % interval covers"


def _row(
    name: str, sessions: Sessions, effects: Effects, *, percent: bool = False, trials: int = 600
) -> Scenario:
    return Scenario(
        name,
        f"{_COVERS}, in percent" if percent else _COVERS,
        0.94,
        partial(covered, sessions, effects, percent=percent),
        trials=trials,
    )


SCENARIOS = (
    *(
        Scenario(f"{name}, A/A", "p < .05", 0.055, partial(wrong, make), at_least=False)
        for name, make in NOISES.items()
    ),
    *(_row(f"{name}, 5 %", make, partial(slower, 0.05)) for name, make in NOISES.items()),
    _row(
        "burst of 100 × 20, effect on the slow mode only",
        partial(two, simulated.bursts),
        _slow_mode,
    ),
    *(
        _row(f"one slow session, {what}", _one_slow, effects, percent=percent)
        for what, effects in (("A/A", nothing), ("5 %", partial(slower, 0.05)))
        for percent in (False, True)
    ),
    *(
        _row(f"settled +2 %, cold +20 % over {over}", _CLEAN, partial(cold, 0.02, 0.20, over))
        for over in (1, 4, 8)
    ),
    _row(
        "+2 %, of which half lasts for 6 transactions more",
        _CLEAN,
        partial(carried, 0.02, (1.0,) * 6),
    ),
)
