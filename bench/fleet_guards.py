"""How often guards stop a harmless fleet, and after how many transactions they stop a harmful one.

A block has a run of the arm and a run of the base, of RUN transactions each, of which KEPT count;
a look is at every BLOCKS blocks of each server. Servers share no load.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Bools, Floats
from pgtare.estimate.fleet.guard import HARMS, HarmLimits
from pgtare.estimate.fleet.wealth import (
    body_wealth,
    log_combined,
    log_mean,
    odds_wealth,
    threshold,
)

TAKES = "some minutes"
ONE_THREAD = True

ALPHA = 0.05
LOOKS, BLOCKS = 100, 10
#: As runs of a trial are on average.
RUN, KEPT = 24, 16
#: The cap of the body, as a quantile of the base.
CAP = 0.99
#: Share of the base's runs with such a transaction.
SLOW, ABORTS = 0.15, 0.03
_CHUNK = 50
_SEED = 20_263

Times = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.lognormal(0, 1.5, shape)


def pareto(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return 1 + rng.pareto(1.5, shape)


def two_modes(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """A tenth takes ten times as long."""
    return rng.gamma(4.0, 0.25, shape) * np.where(rng.random(shape) < 0.1, 10.0, 1.0)


NOISES: dict[str, Times] = {"lognormal": lognormal, "Pareto 1.5": pareto, "two modes": two_modes}


@dataclass(frozen=True)
class Harmful:
    """What the arm does, relative to the base; on the first server only, if so."""

    name: str
    slower: float  # factor on every transaction
    slow: float  # odds of a run with a slow transaction
    aborts: float  # odds of a run with an aborted one
    one_server: bool = False


LIMITS = HarmLimits()
HARMLESS = [
    Harmful("nothing", 1.0, 1.0, 1.0),
    Harmful("all three at the limit", 1 + LIMITS.body, LIMITS.tail, LIMITS.aborts),
]
HARMFUL = [
    Harmful("× 1.5", 1.5, 1.0, 1.0),
    Harmful("× 2", 2.0, 1.0, 1.0),
    Harmful("× 2 on one server", 2.0, 1.0, 1.0, one_server=True),
    Harmful("slow ones × 6", 1.0, 6.0, 1.0),
    Harmful("aborts × 10", 1.0, 1.0, 10.0),
]


def stopped_at(
    times: Times, harm: Harmful, servers: int, trials: int, seed: int
) -> tuple[Bools, Floats]:
    """Whether each trial is stopped, and the transactions of each server until then."""
    rng = np.random.default_rng(seed)
    cap = float(np.quantile(times(rng, (200_000,)), CAP))
    looks = []
    for start in range(0, trials, _CHUNK):
        size = min(_CHUNK, trials - start)
        evidence = _evidence(times, harm, cap, rng, (size, LOOKS, servers))
        over = evidence >= threshold(ALPHA)
        looks.append(np.where(over.any(axis=1), over.argmax(axis=1) + 1, 0))
    at = np.concatenate(looks)
    return at > 0, at.astype(np.float64) * 2 * RUN * BLOCKS


def _evidence(
    times: Times, harm: Harmful, cap: float, rng: np.random.Generator, shape: tuple[int, ...]
) -> Floats:
    """Logarithm of the guard's e-value at each look (trials, looks)."""
    harmed = np.arange(shape[-1]) < (1 if harm.one_server else shape[-1])
    runs = (*shape, BLOCKS, KEPT)
    slower = np.where(harmed, harm.slower, 1.0)[:, np.newaxis, np.newaxis]
    arm_us = np.minimum(slower * times(rng, runs), (1 + LIMITS.body) * cap).mean(axis=-1)
    base_us = np.minimum(times(rng, runs), cap).mean(axis=-1)
    wealth = [body_wealth(arm_us, base_us, cap, LIMITS.body)]
    for rate, odds, limit in (
        (SLOW, harm.slow, LIMITS.tail),
        (ABORTS, harm.aborts, LIMITS.aborts),
    ):
        raised = np.where(harmed, odds, 1.0) * rate / (1 - rate)
        arm = rng.binomial(BLOCKS, raised / (1 + raised), shape)
        wealth.append(odds_wealth(arm, rng.binomial(BLOCKS, rate, shape), BLOCKS, BLOCKS, limit))
    each = [log_combined(log_mean(one.cumsum(axis=1))) for one in wealth]
    assert len(each) == len(HARMS)
    return log_mean(np.stack(each, axis=-1))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=2_000)


def main(args: argparse.Namespace) -> int:
    """Exit status 1 if harmless fleets are stopped more often than α allows."""
    trials = args.trials
    most = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)
    print("| times | what the arm does | servers | stopped | transactions of a server until then |")
    print("|---|---|---|---|---|")
    missed, number = 0, 0
    for name, times in NOISES.items():
        for harm in (*HARMLESS, *HARMFUL):
            for servers in (1, 6):
                if servers == 1 and harm.one_server:
                    continue
                number += 1
                harmless = harm in HARMLESS
                some = trials if harmless else max(trials // 10, 1)
                stopped, at = stopped_at(times, harm, servers, some, _SEED + number)
                share = float(stopped.mean())
                missed += harmless and share > most
                median = f"{np.median(at[stopped]):,.0f}" if share >= 0.5 else ""
                cells = (name, harm.name, str(servers), f"{share:.3f}", median)
                print(f"| {' | '.join(cells)} |", flush=True)
    return int(missed > 0)
