"""Trials by transactions: false positives, and coverage of the body's effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from bench.scenarios import simulator
from bench.scenarios.registry import Counts, Scenario
from bench.scenarios.simulator import EffectOf, Floats, Rng
from pgtare.estimate.trial import analyse

#: Makes the sessions of one trial.
Sessions = Callable[[Rng], list[Floats]]
_UNITS = 6_000


def _two(noise: Callable[[int, Rng], Floats], rng: Rng) -> list[Floats]:
    return [noise(_UNITS, rng), noise(_UNITS, rng)]


def _come_and_go(rng: Rng) -> list[Floats]:
    """Some 200 sessions, of lengths and speeds of their own."""
    lengths = rng.integers(20, 150, 200)
    return [rng.lognormal(0, 0.7) * simulator.lognormal(int(n), rng) for n in lengths]


def _short(rng: Rng) -> list[Floats]:
    return [rng.lognormal(0, 0.5) * simulator.lognormal(35, rng) for _ in range(64)]


def _one_slow(rng: Rng) -> list[Floats]:
    """One session has 1 % of the transactions, and each takes a hundred times as long."""
    fast = [simulator.lognormal(3_000, rng) for _ in range(4)]
    return [*fast, 100 * simulator.lognormal(121, rng)]


def _nothing(x: Floats) -> Floats:
    return x


def _slower(x: Floats) -> Floats:
    return np.asarray(1.05 * x)


def _slow_mode(x: Floats) -> Floats:
    """Only what is slow gets slower, by a tenth."""
    return np.where(x > 500, 1.1 * x, x)


def wrong(sessions: Sessions, trials: int, seed: int) -> Counts:
    """A/A: how often p < .05."""
    hits = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design = simulator.design_of(2, int(rng.integers(1 << 40)))
        found = analyse(simulator.simulate(sessions(rng), design).observations, design, seed=1)
        p = found.arms[1].p
        hits += p is not None and p < 0.05
    return Counts(hits, trials)


def covered(sessions: Sessions, effect: EffectOf, percent: bool, trials: int, seed: int) -> Counts:
    """How often the body's interval holds the truth; trials without an interval do not count."""
    hits = judged = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, trial))
        design = simulator.design_of(2, int(rng.integers(1 << 40)))
        made = simulator.simulate(sessions(rng), design, effect)
        found = analyse(made.observations, design, seed=1)
        c, held = found.arms[1].threshold_us, found.arms[1].effect
        assert held is not None
        assert c is not None
        truth, interval = made.truth_of_body(c), held.body_us
        if percent:
            truth, interval = 100 * truth / made.base_body(c), held.body_pct
        judged += not np.isnan(interval.lo)
        hits += interval.lo <= truth <= interval.hi
    return Counts(hits, judged)


_NOISES: dict[str, Sessions] = {
    "lognormal": partial(_two, simulator.lognormal),
    "Pareto 1.5": partial(_two, simulator.pareto),
    "bimodal with drift": partial(_two, simulator.bimodal_with_drift),
    "AR .999": partial(_two, simulator.autoregressive),
    "mix in step with blocks (cycle of 6)": partial(_two, partial(simulator.cycle, period=6)),
    "cycle of 96": partial(_two, partial(simulator.cycle, period=96)),
}
_SESSIONS: dict[str, Sessions] = {
    "base doubles": partial(_two, simulator.doubling),
    "200 sessions come and go": _come_and_go,
    "64 sessions of 35 transactions": _short,
}
_COVERAGE = "95 % interval of body_us covers"


def _covers(name: str, sessions: Sessions, effect: EffectOf, percent: bool = False) -> Scenario:
    checks = _COVERAGE.replace("_us", "_pct") if percent else _COVERAGE
    return Scenario(name, checks, 0.94, partial(covered, sessions, effect, percent))


SCENARIOS = (
    *(
        Scenario(f"{name}, A/A", "p < .05", 0.055, partial(wrong, make), at_least=False)
        for name, make in (_NOISES | _SESSIONS).items()
    ),
    *(_covers(f"{name}, 5 %", make, _slower) for name, make in (_NOISES | _SESSIONS).items()),
    _covers(
        "burst of 100 × 20, effect on the slow mode only",
        partial(_two, simulator.bursts),
        _slow_mode,
    ),
    _covers("one slow session, A/A", _one_slow, _nothing),
    _covers("one slow session, A/A", _one_slow, _nothing, percent=True),
    _covers("one slow session, 5 %", _one_slow, _slower),
    _covers("one slow session, 5 %", _one_slow, _slower, percent=True),
)
