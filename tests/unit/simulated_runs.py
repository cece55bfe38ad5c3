"""Simulated trials with blocks and runs, of kinds that are hard on estimators, and their counts.

Each function from `lasting` on plays n trials and counts, for a table of scenarios.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import signal

from pgtare.estimate.trial.blocks import select
from pgtare.estimate.trial.design import Arm, Design, block_layout, runs_of
from pgtare.estimate.trial.effects import Effects
from pgtare.estimate.trial.long_carry_over import REACH, LongEffects
from pgtare.estimate.trial.observations import NO_SLICE, OBSERVATION, Observations, UnitFlag
from pgtare.estimate.trial.run_pairs import select_pairs
from pgtare.estimate.trial.threshold import threshold
from tests.assignment import RUNS_AFTER

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator
#: Draws the service times (n,) of one session in µs, without any arm's effect.
Noise = Callable[[int, Rng], Floats]

_OUTSIDE = 0xFFFFFFFF
BASE_US = 100.0


def weighing(n_arms: int, *, runs: bool = True) -> Design:
    """The design of `pgtare weigh`: a base, instruments, and the control last."""
    instruments = [Arm(f"i{k}", "instrument") for k in range(1, n_arms - 1)]
    arms = (Arm("base", "base"), *instruments, Arm("control", "control"))
    block = block_layout(n_arms)
    return Design(arms, block, 1, None, runs_of("transaction", arms, block) if runs else None)


def session(design: Design, n: int, rng: Rng) -> Observations:
    """The n units of a session: the law of design.py's assignment, drawn faster."""
    parts = [_outside(int(rng.choice(design.block)))]
    left, run, block = n - 1, 0, 0
    before = -(-RUNS_AFTER // len(design.block))
    while left > 0:
        gap = before + int(rng.geometric(1 / design.runs.every)) - 1 if design.runs else n
        before = 1
        parts.append(_blocks(design, min(gap, left // len(design.block) + 1), block, rng))
        block += gap
        left -= len(parts[-1])
        if left > 0 and design.runs:
            parts.append(_pair(design, run, rng))
            left -= len(parts[-1])
            run += 2
    found = np.concatenate(parts)[:n]
    found["unit"] = np.arange(n)
    return found


def _outside(arm: int) -> Observations:
    found = np.zeros(1, OBSERVATION)
    found["arm"], found["block"], found["flags"] = arm, _OUTSIDE, UnitFlag.UNBLOCKED
    return found


def _blocks(design: Design, count: int, number: int, rng: Rng) -> Observations:
    size = len(design.block)
    found = np.zeros(count * size, OBSERVATION)
    found["arm"] = rng.permuted(np.tile(design.block, (count, 1)), axis=1).ravel()
    found["block"] = number + np.repeat(np.arange(count), size)
    found["position"] = np.tile(np.arange(size), count)
    at = size * np.flatnonzero(rng.random(count) < 0.1)
    filler = np.zeros(len(at), OBSERVATION)
    filler["arm"], filler["block"] = rng.choice(design.block, len(at)), _OUTSIDE
    filler["flags"] = UnitFlag.UNBLOCKED
    return np.insert(found, at, filler)


def _pair(design: Design, run: int, rng: Rng) -> Observations:
    """The turns are drawn with replacement, which is near enough for what is simulated here."""
    assert design.runs is not None
    length = int(rng.integers(design.runs.shortest, design.runs.longest + 1))
    arms = rng.permutation([0, int(rng.choice(design.runs.turns))])
    found = np.zeros(2 * length, OBSERVATION)
    found["arm"] = np.repeat(arms, length)
    found["block"] = run + np.repeat([0, 1], length)
    found["position"] = np.tile(np.arange(length), 2)
    found["flags"] = UnitFlag.UNBLOCKED | UnitFlag.RUN
    return found


def trial(
    design: Design,
    sessions: Sequence[int],
    noise: Noise,
    rng: Rng,
    *,
    lags: Sequence[float] = (),
    slower: float = 0.0,
) -> Observations:
    """A trial: units of each session. Arm 1 costs lags[i] µs i transactions later, and is slower
    by a share."""
    parts = []
    for backend, n in enumerate(sessions):
        part = session(design, n, rng)
        treated = part["arm"] == 1
        x = noise(n, rng) * (1 + slower * treated)
        for lag, us in enumerate(lags):
            x[lag:] += us * treated[: n - lag]
        part["backend"], part["pid"], part["slice"] = backend, 100 + backend, NO_SLICE
        part["service_ns"] = np.rint(1000 * x)
        part["cpu_ns"] = -1
        part["start_ns"] = np.cumsum(part["service_ns"] + 2000) - part["service_ns"]
        parts.append(part)
    return np.concatenate(parts)


def _ar(n: int, phi: float, sd: float, rng: Rng) -> Floats:
    """An autoregressive level with this standard deviation, in its steady state."""
    steps = rng.normal(0, sd * math.sqrt(1 - phi * phi), n)
    steps[0] = rng.normal(0, sd)
    return np.asarray(signal.lfilter([1.0], [1.0, -phi], steps))


def lognormal(n: int, rng: Rng) -> Floats:
    """Short-lived correlation, a spread of a tenth."""
    return BASE_US * np.exp(_ar(n, 0.9, 0.05, rng) + rng.normal(0, 0.1, n))


def persistent(n: int, rng: Rng) -> Floats:
    """AR(1) with .999: a level that wanders for thousands of transactions."""
    return BASE_US * np.exp(_ar(n, 0.999, 0.1, rng) + rng.normal(0, 0.05, n))


def pareto(n: int, rng: Rng) -> Floats:
    """A tail without a variance."""
    return BASE_US * (0.7 + 0.1 * rng.pareto(1.5, n))


def bimodal(n: int, rng: Rng) -> Floats:
    """Two kinds of transactions, the share of which drifts, and a level that trends."""
    share = 0.3 + 0.25 * np.sin(np.linspace(0, 7, n) + rng.uniform(0, 6))
    kind = rng.random(n) < share
    return BASE_US * np.where(kind, 3.0, 1.0) * np.exp(rng.normal(0, 0.1, n)) * np.linspace(1, 2, n)


def doubling(n: int, rng: Rng) -> Floats:
    """The level doubles in the middle."""
    return lognormal(n, rng) * np.where(np.arange(n) < n // 2, 1.0, 2.0)


def slow_if_few(n: int, rng: Rng) -> Floats:
    """A session of few transactions takes a hundred times as long."""
    return lognormal(n, rng) * (100.0 if n < 1_500 else 1.0)


NOISES: dict[str, Noise] = {
    "lognormal": lognormal,
    "AR .999": persistent,
    "Pareto 1.5": pareto,
    "bimodal, drift": bimodal,
}


@dataclass(frozen=True)
class Scenario:
    """What a trial meets: noise, transactions of each session, arms."""

    noise: Noise
    sessions: Sequence[int] = (25_000,) * 4
    n_arms: int = 3


SCENARIOS: dict[str, Scenario] = {
    **{name: Scenario(noise) for name, noise in NOISES.items()},
    "base doubles": Scenario(doubling),
    "200 sessions of 500": Scenario(lognormal, (500,) * 200),
    "one slow session": Scenario(slow_if_few, (33_000, 33_000, 33_000, 1_000)),
    "nine arms": Scenario(lognormal, n_arms=9),
}


@dataclass(frozen=True)
class Counted:
    """How often something happened in n trials."""

    hits: int
    n: int

    @property
    def rate(self) -> float:
        """Hits a trial."""
        return self.hits / self.n

    @property
    def error(self) -> float:
        """The rate's standard error by simulation."""
        return math.sqrt(self.rate * (1 - self.rate) / self.n)

    def __str__(self) -> str:
        return f"{self.rate:.3f} ± {self.error:.3f}"


def long_effects(obs: Observations, design: Design) -> tuple[LongEffects, Effects]:
    """The estimators alone, without what else `analyse` computes."""
    blocks = select(obs, design).blocks
    effects = Effects(blocks, threshold(blocks.service_us))
    return LongEffects(select_pairs(obs, len(design.arms)), [effects] * len(design.arms)), effects


#: Four sessions, of a trial of some seconds and of one of half a minute.
SHORT, LONG = (25_000,) * 4, (175_000,) * 4
#: 1.2 % of the mean, spread over six transactions.
SIX = (0.2,) * 6
_MARGIN = 0.005


def lasting(n: int, rng: Rng, noise: Noise = lognormal) -> tuple[Counted, Counted]:
    """A cost of 1.2 % spread over six transactions, and a margin of 0.5 %.

    How often the body lies inside the margin, which alone would make it "equivalent"; and how often
    it is so without a limit, as the cost by runs lies inside, too.
    """
    design = weighing(3)
    by_body = without_limit = 0
    for _ in range(n):
        found, effects = long_effects(trial(design, LONG, noise, rng, lags=SIX), design)
        body, margin = effects.body_cost(1), effects.base_body.scaled(_MARGIN)
        inside = effects.interval(body + margin, 0.1).lo > 0
        inside &= effects.interval(body - margin, 0.1).hi < 0
        evidence = found.evidence(1, margin, 1)
        by_body += inside
        without_limit += inside and evidence.under.lo > 0 and evidence.over.hi < 0
    return Counted(by_body, n), Counted(without_limit, n)


def shown_to_last(
    n: int, rng: Rng, lags: Sequence[float] = SIX, noise: Noise = lognormal
) -> Counted:
    """How often an effect is shown to outlast the next transaction."""
    design = weighing(3)
    hits = 0
    for _ in range(n):
        found, effects = long_effects(trial(design, LONG, noise, rng, lags=lags), design)
        hits += found.outlasts(1, _MARGIN * effects.base_body.value, 1)
    return Counted(hits, n)


def false_costs(n: int, rng: Rng, noise: Noise = lognormal) -> tuple[Counted, Counted]:
    """Trials of nothing: how often p is below 0.05, and how often only runs show a cost or gain."""
    design = weighing(3)
    by_body = by_runs = 0
    for _ in range(n):
        found, effects = long_effects(trial(design, SHORT, noise, rng), design)
        cost, margin = effects.body_cost(1), effects.base_body.scaled(_MARGIN)
        evidence = found.evidence(1, margin, 1)
        shown = effects.by_cluster.p_value(cost.value / cost.se) < 0.05
        by_body += shown
        runs = evidence.runs
        sure = evidence.outlasts and evidence.surely and (runs.lo > 0 or runs.hi < 0)
        by_runs += not shown and sure
    return Counted(by_body, n), Counted(by_runs, n)


def carry_over_coverage(
    n: int, rng: Rng, scenario: Scenario, lags: Sequence[float] = ()
) -> Counted:
    """How often the interval of the long carry-over covers it.

    The truth is the whole cost less what the headline estimates on average: 0 where the effect
    ends with the next transaction. Trials with too few pairs for an interval do not count.
    """
    design = weighing(scenario.n_arms)
    found, headlines = [], []
    for _ in range(n):
        obs = trial(design, scenario.sessions, scenario.noise, rng, lags=lags)
        lasts, effects = long_effects(obs, design)
        interval = lasts.long_carry_over_us(1)
        headlines.append(effects.body_cost(1).value)
        if interval is not None and math.isfinite(interval.lo):
            found.append(interval)
    truth = sum(lags) - (float(np.mean(headlines)) if len(lags) > REACH else sum(lags))
    return Counted(sum(e.lo <= truth <= e.hi for e in found), len(found))


def runs_coverage(n: int, rng: Rng, scenario: Scenario, lags: Sequence[float] = ()) -> Counted:
    """How often the interval of the cost by runs covers the whole cost."""
    design = weighing(scenario.n_arms)
    hits = judged = 0
    for _ in range(n):
        obs = trial(design, scenario.sessions, scenario.noise, rng, lags=lags)
        interval = long_effects(obs, design)[0].runs_us(1)
        if interval is not None and math.isfinite(interval.lo):
            judged += 1
            hits += interval.lo <= sum(lags) <= interval.hi
    return Counted(hits, judged)


def headline_coverage(n: int, rng: Rng, scenario: Scenario, slower: float = 0.0) -> Counted:
    """How often the headline's interval covers the truth, of nothing or of a slow-down."""
    design, sessions, noise = weighing(scenario.n_arms), scenario.sessions, scenario.noise
    hits = 0
    for _ in range(n):
        seen = rng.bit_generator.state
        _, effects = long_effects(trial(design, sessions, noise, rng, slower=slower), design)
        after, rng.bit_generator.state = rng.bit_generator.state, seen
        plain = trial(design, sessions, noise, rng)["service_ns"] / 1000.0
        rng.bit_generator.state = after
        slowed = np.minimum(plain * (1 + slower), effects.c) - np.minimum(plain, effects.c)
        interval = effects.interval(effects.body_cost(1))
        hits += interval.lo <= float(slowed.mean()) <= interval.hi
    return Counted(hits, n)


def precision_lost(n: int, rng: Rng, noise: Noise) -> float:
    """The headline's standard error with runs, relative to that without, in as many units."""
    mean_se = []
    for design in (weighing(3), weighing(3, runs=False)):
        drawn = [trial(design, SHORT, noise, rng) for _ in range(n)]
        mean_se.append(np.mean([long_effects(o, design)[1].body_cost(1).se for o in drawn]))
    return float(mean_se[0] / mean_se[1])


def main(n: int) -> None:
    """Print the rates that docs/method.md quotes; n: trials of each, fewer of long ones."""
    rng = np.random.default_rng(1)
    print("scenario: long carry-over covered (nothing), (six transactions), cost by runs covered")
    for name, scenario in SCENARIOS.items():
        nothing = carry_over_coverage(n, rng, scenario)
        six = carry_over_coverage(n, rng, scenario, SIX)
        print(f"{name}: {nothing}, {six}, {runs_coverage(n, rng, scenario, SIX)}", flush=True)
    print("noise: headline covered (nothing), (slower by 5 %), its error relative to no runs")
    for name, noise in NOISES.items():
        nothing = headline_coverage(n, rng, Scenario(noise))
        slower = headline_coverage(n, rng, Scenario(noise), 0.05)
        print(f"{name}: {nothing}, {slower}, {precision_lost(n // 10, rng, noise):.2f}", flush=True)
    body, without_limit = lasting(n // 4, rng)
    print(f"1.2 % over six transactions: body inside {body}, equivalent {without_limit}")
    print(f"shown to last: {shown_to_last(n // 4, rng)}; of nothing: {shown_to_last(n, rng, ())}")
    body, by_runs = false_costs(n, rng)
    print(f"nothing: p below 0.05 {body}, a cost or gain by runs alone {by_runs}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
