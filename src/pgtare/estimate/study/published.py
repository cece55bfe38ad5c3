"""What a published effect, its p-value and its number of rounds allow to be said.

Nothing here sees the raw rounds. A standard error is recovered from effect and p as if the rounds
were normal, which is what can be had; exact counts need no such assumption. A p of sign flips has
few values if rounds are few, and each goes with many errors: a range of them is recovered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import NAN

#: Simulated studies of a number of rounds, up to this many rounds; with fewer alike none is a
#: range.
STUDIES = 20_000
_FLIPPED = 10
_FEWEST = 50
_SEED = 20_261


def recovered_se(effect: float, p: float, rounds: int) -> float:
    """The standard error that makes |effect| / SE a t with n − 1 df of this two-sided p."""
    if rounds < 2 or not 0 < p < 1 or not effect:
        return NAN
    return abs(effect) / float(scipy.special.stdtrit(rounds - 1, 1 - p / 2))


def recovered_range(effect: float, p: float, rounds: int) -> tuple[float, float]:
    """The standard errors that go with this p: a p of sign flips, if n rounds can give it.

    The middle 90 % of them among simulated studies of n normal rounds, the same ones every time,
    whose p of sign flips is this one as far as it was written; their true effects vary as much as
    their rounds do. A p that sign flips of so few rounds cannot give is taken as Student's, and so
    is that of many rounds, if the two hardly differ: the range is one value then.
    """
    by_t = recovered_se(effect, p, rounds)
    if rounds < 2 or rounds > _FLIPPED or not effect:
        return by_t, by_t
    t, flipped = _studies(rounds)
    decimals = max(2, len(f"{p:.10f}".rstrip("0").partition(".")[2]))
    alike = t[np.abs(flipped - p) <= 0.5 * 10.0**-decimals + 1e-12]
    if len(alike) < _FEWEST:
        return by_t, by_t
    high, low = (float(q) for q in np.quantile(alike, (0.05, 0.95)))
    return abs(effect) / low, abs(effect) / high


@lru_cache(maxsize=16)
def _studies(rounds: int) -> tuple[Floats, Floats]:
    """|t| and p of sign flips of simulated studies (STUDIES,)."""
    rng = np.random.default_rng((_SEED, rounds))
    d = rng.standard_normal((STUDIES, rounds)) + rng.standard_normal((STUDIES, 1))
    signs = 1.0 - 2.0 * ((np.arange(2 ** (rounds - 1))[:, None] >> np.arange(rounds)) & 1)
    sums = np.abs(d.sum(axis=1, keepdims=True)) * (1 - 1e-12)
    p = (np.abs(d @ signs.T) >= sums).mean(axis=1)
    t = np.abs(d.mean(axis=1)) / (d.std(axis=1, ddof=1) / math.sqrt(rounds))
    return t, p


def half_width(se: float, rounds: int, alpha: float = 0.05) -> float:
    """Half the two-sided 1 − α interval by t."""
    return float(scipy.special.stdtrit(rounds - 1, 1 - alpha / 2)) * se


def upper_bound(size: float, se: float, rounds: int, alpha: float = 0.05) -> float:
    """The one-sided 1 − α bound on a cost whose estimate is `size`."""
    return size + float(scipy.special.stdtrit(rounds - 1, 1 - alpha)) * se


def equivalence_p(effect: float, se: float, rounds: int, margin: float) -> float:
    """The larger of the two one-sided p-values by t: is the effect within ±margin?"""
    if not se > 0:
        return NAN
    return float(scipy.special.stdtr(rounds - 1, (abs(effect) - margin) / se))


def one_sign_p(arms_by_base: Sequence[int]) -> float:
    """Two-sided p of "every delta has the same sign", by dealing the rungs of each group anew.

    arms_by_base: for each group of runs that share one base, how many arms. All of a group's deltas
    are negative exactly if its base is the best of 1 + arms, which has the chance 1 / (1 + arms)
    when the rungs are alike. Counting deltas as independent coins would give 2 / 2^deltas.
    """
    if not arms_by_base:
        return NAN
    return min(1.0, 2 * math.prod(1 / (1 + arms) for arms in arms_by_base))


def sign_p(positive: int, rounds: int) -> float:
    """Two-sided sign test: p of k of n rounds, or more of them, on one side."""
    most = max(positive, rounds - positive)
    tail = sum(math.comb(rounds, k) for k in range(most, rounds + 1))
    return min(1.0, float(2 * tail / 2**rounds))


def spread_interval(sd: float, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """The 1 − α interval of a standard deviation (or a small CV) from n normal values."""
    df = n - 1
    low, high = (float(scipy.special.chdtri(df, q)) for q in (alpha / 2, 1 - alpha / 2))
    return sd * math.sqrt(df / low), sd * math.sqrt(df / high)
