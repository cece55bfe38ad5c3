"""The smallest harm that a guard finds with 80 % power, given the number of transactions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.fleet.guard import HARMS, HarmLimits
from pgtare.estimate.fleet.wealth import (
    BODY_BETS,
    log_combined,
    log_mean,
    odds_wealth,
    threshold,
)

POWER = 0.8
#: Simulated trials: 80 % of them is known to within 2 %.
_TRIALS = 500
_SEED = 20_261


@dataclass(frozen=True)
class BaseFacts:
    """What is known of a server's base before the trial, from transactions without any arm."""

    mean_us: float  # of min(time, cap)
    block_sd_us: float  # SD over blocks of the difference of two arms that are both the base
    cap_us: float
    slow_rate: float  # share of runs with a transaction above the base's quantile
    abort_rate: float
    block: int  # transactions in a block, of all arms
    arm_slots: int = 1  # runs of it that are the arm's
    base_slots: int = 1


@dataclass(frozen=True)
class DetectableHarm:
    """What a guard finds with 80 % power, if it is so on all of its servers."""

    body: float  # share of the base's body by which the arm is slower; infinite if none is found
    slow_rate: float  # share of the arm's runs; NaN if not even all of them are found
    abort_rate: float  # likewise


def detectable_harm(
    facts: BaseFacts,
    transactions: int,
    *,
    groups: int = 1,
    limits: HarmLimits | None = None,
    alpha: float = 0.05,
) -> DetectableHarm:
    """The smallest harms for `groups` servers that share no load, each with `transactions`.

    It is simulated at the end of the trial, with sums of blocks taken to be normal. A guard that
    looks earlier finds a little more.
    """
    limits = HarmLimits() if limits is None else limits
    blocks = transactions // facts.block
    # Body, tail and aborts share the guard's e-value: one of them alone must make up for all.
    wanted = threshold(alpha) + math.log(len(HARMS))

    def found(logs: Floats) -> bool:
        return float((log_combined(log_mean(logs)) >= wanted).mean()) >= POWER

    def body(harm: float) -> bool:
        return found(_body_logs(facts, limits, blocks, groups, harm))

    arm_n, base_n = blocks * facts.arm_slots, blocks * facts.base_slots

    def events(base_rate: float, limit: float) -> Callable[[float], bool]:
        def at(rate: float) -> bool:
            rng = np.random.default_rng(_SEED)
            arm = rng.binomial(arm_n, rate, (_TRIALS, groups)).astype(np.float64)
            base = rng.binomial(base_n, base_rate, (_TRIALS, groups)).astype(np.float64)
            return found(odds_wealth(arm, base, arm_n, base_n, limit))

        return at

    return DetectableHarm(
        body=_smallest(body, limits.body, 100.0, math.inf),
        slow_rate=_smallest(events(facts.slow_rate, limits.tail), facts.slow_rate, 1.0, math.nan),
        abort_rate=_smallest(
            events(facts.abort_rate, limits.aborts), facts.abort_rate, 1.0, math.nan
        ),
    )


def _body_logs(
    facts: BaseFacts, limits: HarmLimits, blocks: int, groups: int, harm: float
) -> Floats:
    rng = np.random.default_rng(_SEED)
    z = rng.standard_normal((_TRIALS, groups))
    scale = (1 + limits.body) * facts.cap_us
    mean = (harm - limits.body) * facts.mean_us / scale
    sd = (1 + harm) * facts.block_sd_us / scale
    total = blocks * mean + math.sqrt(blocks) * sd * z
    squares = blocks * (sd**2 + mean**2)
    return np.asarray(total[..., np.newaxis] * BODY_BETS - BODY_BETS**2 * squares / 2)


def _smallest(works: Callable[[float], bool], low: float, high: float, nothing: float) -> float:
    """The smallest value above `low` that works, to a thousandth of its distance from there."""
    if not works(high):
        return nothing
    left, right = math.log(1e-9), math.log(high - low) if high > low else math.log(1e-9)
    while right - left > 1e-3:
        middle = (left + right) / 2
        left, right = (left, middle) if works(low + math.exp(middle)) else (middle, right)
    return low + math.exp(right)
