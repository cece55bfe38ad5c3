"""E-processes of one arm on one server: evidence of harm that may be looked at any time.

An e-process is a bettor's wealth in a game that is fair or worse as long as the arm does no more
harm than the limit. By Ville's inequality it reaches 1 / α at any time, ever, with probability α at
most. Each process here mixes bets of several sizes with equal stakes, as the size that pays best
depends on a harm that nobody knows. Arrays have the bets in the last axis, so that a simulation has
many trials at once.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pgtare.estimate.arrays import Floats

#: Bets on the body, as shares of the largest one that cannot go bankrupt.
BODY_BETS = 0.5 ** np.arange(1.0, 13.0)
#: Bets on events: that the arm's odds are this many times the limit.
ODDS_BETS = np.array([1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0, 30.0])


def body_wealth(arm_us: Floats, base_us: Floats, cap_us: float, limit: float) -> Floats:
    """Logarithm of what each bet on these blocks multiplies wealth by: (..., bets).

    arm_us, base_us: (..., blocks) means in whole blocks, of the base's times cut at cap_us, which
    was frozen before, and the arm's cut at (1 + limit) × cap_us. limit: share by which the arm may
    be slower. The difference arm - (1 + limit) × base is not above zero on average if the arm keeps
    to it, and it is bounded, whatever the tail (Waudby-Smith and Ramdas, Journal of the Royal
    Statistical Society B 2024).
    """
    arm, base = np.minimum(arm_us, (1 + limit) * cap_us), np.minimum(base_us, cap_us)
    gain = (arm - (1 + limit) * base) / ((1 + limit) * cap_us)
    total = [np.log1p(bet * gain).sum(axis=-1) for bet in BODY_BETS]
    return np.stack(total, axis=-1)


def odds_wealth(
    arm_events: npt.ArrayLike,
    base_events: npt.ArrayLike,
    arm_n: npt.ArrayLike,
    base_n: npt.ArrayLike,
    limit: float,
) -> Floats:
    """Logarithm of what each bet on these events multiplies wealth by: (..., bets).

    limit: odds of an event in the arm, relative to the base's, that are tolerated. Of m events
    among n transactions that were assigned at random, the arm's number is a sum of independent
    indicators (Vatutin and Mikhailov 1982) whose mean is at most m times θ, the arm's weighted
    share of transactions. So the binomial with θ bounds what a bet can win on average.
    """
    arm, base = (
        np.asarray(n, dtype=np.float64)[..., np.newaxis] for n in (arm_events, base_events)
    )
    weighted = limit * np.asarray(arm_n, dtype=np.float64)[..., np.newaxis]
    others = np.asarray(base_n, dtype=np.float64)[..., np.newaxis]
    share = weighted / np.maximum(weighted + others, 1e-300)
    fair = np.log1p(share * (ODDS_BETS - 1))
    return np.asarray(arm * np.log(ODDS_BETS) - (arm + base) * fair, dtype=np.float64)


def log_mean(logs: Floats) -> Floats:
    """Logarithm of the mean of numbers given by their logarithms, over the last axis."""
    top = np.max(logs, axis=-1, keepdims=True)
    mean = np.exp(logs - top).mean(axis=-1)
    return np.asarray(np.log(mean) + np.squeeze(top, axis=-1), dtype=np.float64)


def log_combined(groups: Floats) -> Floats:
    """Of groups that share no load (..., groups): half on their product, half on their mean.

    A small harm everywhere shows in the product. A harm on one server shows in the mean, while the
    product is spoilt by the servers that are not harmed, whose wealth falls.
    """
    both = np.stack((groups.sum(axis=-1), log_mean(groups)), axis=-1)
    return log_mean(both)


def threshold(alpha: float) -> float:
    """Logarithm of the wealth that is a breach."""
    return -math.log(alpha)
