"""The estimators written plainly, as a check on the fast ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import signal, stats

from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.observations import NO_BLOCK, Observations, UnitFlag
from tests.unit import simulated_trial
from tests.unit.simulated_trial import Effect

BAD = UnitFlag.SWITCH_FAILED | UnitFlag.APP_CHANGED | UnitFlag.RELOADED | UnitFlag.UNDRAWN
DROPPED = 8


def design_of(n_arms: int, *, block: Sequence[int] | None = None, seed: int = 1) -> Design:
    """A base, a control and instruments i2, i3, ..."""
    arms = [Arm("base", "base"), Arm("control", "control")]
    arms += [Arm(f"i{k}", "instrument") for k in range(2, n_arms)]
    return Design(tuple(arms[:n_arms]), tuple(block or range(n_arms)), seed)


def noise(n: int, rng: np.random.Generator, *, stalls: float = 0.0005) -> npt.NDArray[np.float64]:
    """Service times in microseconds: autocorrelated, lognormal, with rare long stalls."""
    drift = signal.lfilter([1.0], [1.0, -0.9], rng.normal(0, 0.02, n))
    stall = (rng.random(n) < stalls) * rng.pareto(1.5, n) * 2000
    return np.asarray(70 * np.exp(drift + rng.normal(0, 0.05, n)) + stall)


def simulate(
    design: Design,
    blocks: int,
    *,
    backends: int = 1,
    seed: int = 1,
    own: Sequence[float] = (),
    stalls: float = 0.0005,
) -> Observations:
    """A trial of sessions with so many blocks each, on average. own: effect of each arm in µs."""
    rng = np.random.default_rng(seed)
    units = round(blocks * len(design.block) * design.runs.mean)
    effects = {arm: Effect(lambda x, us=us: x + us) for arm, us in enumerate(own) if us}  # type: ignore[misc]
    sessions = simulated_trial.old(noise(units, rng, stalls=stalls) for _ in range(backends))
    return simulated_trial.simulate(sessions, design, effects).observations


@dataclass
class Unit:
    """A transaction of a later run that is compared."""

    block: tuple[int, int]
    arm: int
    service_us: float
    open: bool


def later_units(obs: Observations, design: Design) -> list[Unit]:
    """Those of sessions with a whole block, without the beginnings of runs and doubtful ones."""
    sessions: dict[int, dict[int, list[np.void]]] = {}
    for o in obs:
        blocks = sessions.setdefault(int(o["backend"]), {})
        if o["block"] != NO_BLOCK and not o["flags"] & UnitFlag.FIRST_RUN:
            blocks.setdefault(int(o["block"]), []).append(o)
    found = []
    for backend, blocks in sorted(sessions.items()):
        if not any(_is_whole(rows, design) for rows in blocks.values()):
            continue
        last = max(blocks)
        for block, rows in sorted(blocks.items()):
            # what is cut short is part of the block before it
            joined = block - (block == last and not _is_whole(rows, design))
            for o in sorted(rows, key=lambda o: int(o["unit"])):
                if o["position"] >= DROPPED and not o["flags"] & BAD:
                    still_open = bool(o["flags"] & UnitFlag.OPEN)
                    found.append(
                        Unit((backend, joined), int(o["arm"]), o["service_ns"] / 1000, still_open)
                    )
    return found


def _is_whole(rows: list[np.void], design: Design) -> bool:
    """Whether each run of the block has as many answered transactions as the longest."""
    answered = [o for o in rows if not o["flags"] & UnitFlag.OPEN]
    size = [sum(o["run"] == run for o in answered) for run in range(len(design.block))]
    return min(size) == max(size) > 0 and len(answered) == len(rows)


def regress(units: list[Unit], arm: int, outcome) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """The arm's coefficient in a regression with a dummy for each block, and its standard error.

    Of the arm's and the base's transactions alone; the sandwich is by blocks, with G / (G − 1) for
    the blocks that have both.
    """
    chosen = [u for u in units if u.arm in (0, arm)]
    names = sorted({u.block for u in chosen})
    x = np.zeros((len(chosen), 1 + len(names)))
    column = {name: 1 + k for k, name in enumerate(names)}
    for i, u in enumerate(chosen):
        x[i, 0] = u.arm == arm
        x[i, column[u.block]] = 1
    y = np.array([outcome(u.service_us) for u in chosen])
    coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
    residual = y - x @ coefficients
    bread = np.linalg.pinv(x.T @ x)
    meat = np.zeros_like(bread)
    both = 0
    for name in names:
        rows = [i for i, u in enumerate(chosen) if u.block == name]
        both += len({chosen[i].arm for i in rows}) == 2
        score = x[rows].T @ residual[rows]
        meat += np.outer(score, score)
    variance = both / (both - 1) * (bread @ meat @ bread)[0, 0]
    return float(coefficients[0]), math.sqrt(variance)


@dataclass
class FirstRun:
    """A session's first run."""

    arm: int
    group: int
    times: list[float]


def first_runs(obs: Observations) -> list[FirstRun]:
    """Those of all sessions that began during the trial."""
    found: dict[int, FirstRun] = {}
    for o in obs:
        if o["flags"] & UnitFlag.FIRST_RUN:
            run = FirstRun(int(o["arm"]), int(o["stratum"]), [])
            found.setdefault(int(o["backend"]), run).times.append(o["service_ns"] / 1000)
    return list(found.values())


def post_stratified(runs: list[FirstRun], arm: int) -> tuple[float, float]:
    """Arm less base, within groups that are weighed by their transactions, and its error.

    The error of each group's mean is that of a ratio of sums over its sessions.
    """
    every = sum(len(run.times) for run in runs)
    value = variance = 0.0
    for group in {run.group for run in runs}:
        share = sum(len(run.times) for run in runs if run.group == group) / every
        for side, sign in ((arm, 1), (0, -1)):
            mine = [run for run in runs if run.group == group and run.arm == side]
            n = sum(len(run.times) for run in mine)
            mean = sum(sum(run.times) for run in mine) / n
            squares = sum((sum(run.times) - mean * len(run.times)) ** 2 for run in mine)
            value += sign * share * mean
            variance += share**2 * len(mine) / (len(mine) - 1) * squares / n**2
    return value, math.sqrt(variance)


def weighted_threshold(sides: Sequence[tuple[npt.NDArray[np.float64], ...]]) -> float:
    """The least value with at most a thousandth of the mean of two distributions above it."""
    found = math.inf
    for c in sorted({value for values, _ in sides for value in values}, reverse=True):
        above = sum(float(weights[values > c].sum()) for values, weights in sides) / 2
        if above > 0.001 * (1 + 1e-9):
            return found
        found = c
    return found


def sign_flip_p(d: Sequence[float], theta: float = 0.0) -> float:
    """Two-sided sign-flip p of the mean, flip by flip."""
    shifted = [x - theta for x in d]
    observed = abs(sum(shifted))
    flips = list(itertools.product((1, -1), repeat=len(d)))
    sums = [abs(sum(s * x for s, x in zip(signs, shifted, strict=True))) for signs in flips]
    return sum(total >= observed * (1 - 1e-12) - 1e-15 for total in sums) / len(flips)


def one_sided_flip_p(d: Sequence[float], theta: float, *, above: bool) -> float:
    """p of "the mean is θ" against a larger (or smaller) one, flip by flip."""
    shifted = [x - theta if above else theta - x for x in d]
    observed = sum(shifted)
    flips = list(itertools.product((1, -1), repeat=len(d)))
    sums = [sum(s * x for s, x in zip(signs, shifted, strict=True)) for signs in flips]
    return sum(total >= observed - 1e-12 for total in sums) / len(flips)


def sign_flip_interval(d: Sequence[float], alpha: float) -> tuple[float, float]:
    """The interval that inverts `sign_flip_p`, each end by halving."""
    mean = sum(d) / len(d)
    ends = []
    for direction in (-1, 1):
        inside, outside = mean, mean + direction * 10 * (max(d) - min(d) + 1)
        if sign_flip_p(d, outside) > alpha:
            ends.append(direction * math.inf)
            continue
        for _ in range(60):
            middle = (inside + outside) / 2
            if sign_flip_p(d, middle) > alpha:
                inside = middle
            else:
                outside = middle
        ends.append(inside)
    return ends[0], ends[1]


def clopper_pearson(hits: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial rate."""
    found = stats.binomtest(hits, trials).proportion_ci(level)
    return float(found.low), float(found.high)
