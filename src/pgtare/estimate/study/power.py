"""What rounds would find: the power of the very tests that are made, by simulated studies.

Sign flips of few rounds are far coarser than Student's t, and at Holm's first step over a large
family most of the difference is power. So the tests themselves are simulated: STUDIES studies of n
normal rounds with SD 1 and no effect, the same ones every time. The ends of their intervals answer
every question, as an effect only shifts them: one of size δ is distinguished from zero exactly if
the interval's lower end lies above −δ. Rounds are taken to be normal, and the SD to be the
estimated one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.distributions import student_quantile
from pgtare.estimate.study.attainable import DRAWS, rank

POWER = 0.8
#: More rounds than anybody will run: what is still unsettled there counts as never settled.
MOST_ROUNDS = 100_000
#: Simulated studies of each number of rounds: 80 % of them is known to within 2.5 %.
STUDIES = 1_000
#: Up to this many rounds every flip of a simulated study is counted; beyond, SUBSETS are drawn.
_COUNTED = 14
SUBSETS = 16_384
#: Beyond this many rounds the flips' interval is Student's.
_STUDENT = 28
#: Rounds of which the power is looked at if flips are drawn: each takes a while.
_STEPS = (16, 20, 24, _STUDENT)
_SEED = 20_260
_CHUNK = 250


class Ends(NamedTuple):
    """Ends of the intervals of STUDIES studies without effect, SD 1: (STUDIES,) each, sorted not.

    By the level of a test of zero, and by that of two one-sided tests.
    """

    low: Floats
    high: Floats
    low_one_sided: Floats
    high_one_sided: Floats


def settled(
    mean: float, sd: float, margin: float, rounds: int, family: int, alpha: float = 0.05
) -> float:
    """The chance that this many rounds settle a comparison whose true effect and SD are these.

    Settled is as in a verdict: different from zero at Holm's first step, or equivalent.
    margin: a share; mean and sd: of log-ratios.
    """
    ends = _ends(rounds, alpha, max(family, 1))
    differs = (mean + sd * ends.low > 0) | (mean + sd * ends.high < 0)
    edge = math.log1p(margin)
    inside = (mean + sd * ends.low_one_sided > -edge) & (mean + sd * ends.high_one_sided < edge)
    return float((differs | inside).mean())


def rounds_to_settle(
    mean: float, sd: float, margin: float, family: int, alpha: float = 0.05, *, done: int
) -> int | None:
    """Rounds that would settle a comparison with 80 % power, more than `done`; None if never.

    This assumes that the estimate is exact and that later rounds vary as much. Rounded up to one of
    a few numbers between 14 and 28.
    """
    if not (math.isfinite(mean) and math.isfinite(sd) and sd > 0):
        return None

    def enough(rounds: int) -> bool:
        return settled(mean, sd, margin, rounds, family, alpha) >= POWER

    few = [n for n in (*range(2, _COUNTED + 1), *_STEPS) if n > done]
    if few and enough(few[-1]):
        return int(few[bisect_left(few, True, key=enough)])
    low = high = max(done, _STUDENT)
    while not enough(high := 2 * low):
        if high > MOST_ROUNDS:
            return None
        low = high
    return low + 1 + int(bisect_left(range(low + 1, high), True, key=enough))


@lru_cache(maxsize=512)
def _ends(rounds: int, alpha: float, family: int) -> Ends:
    rng = np.random.default_rng((_SEED, rounds))
    levels = (alpha / family, 2 * alpha)
    if rounds > _STUDENT:
        return _by_student(rounds, levels, rng)
    drawn = rng.standard_normal((STUDIES, rounds))
    chosen = _subsets(rounds, levels[0], rng)
    counts = chosen.sum(axis=1)
    ranks = [rank(level, len(chosen)) for level in levels]
    kth = sorted({k for r in ranks if r for k in (r - 1, len(chosen) - r)})
    ends = np.full((4, STUDIES), np.repeat([[-np.inf], [np.inf]] * 2, STUDIES, axis=1))
    for start in range(0, STUDIES if kth else 0, _CHUNK):
        part = slice(start, start + _CHUNK)
        means = np.partition((drawn[part] @ chosen.T) / counts, kth, axis=1)
        for i, r in enumerate(ranks):
            if r:
                ends[2 * i, part], ends[2 * i + 1, part] = means[:, r - 1], means[:, -r]
    return Ends(*ends)


def _subsets(rounds: int, level: float, rng: np.random.Generator) -> Floats:
    """Non-empty subsets of rounds as rows of 0 and 1: all of them, or drawn ones."""
    if rounds <= _COUNTED:
        numbers = np.arange(1, 2**rounds)
        return ((numbers[:, None] >> np.arange(rounds)) & 1).astype(np.float64)
    # the tail that is looked at is to hold some of them
    size = min(DRAWS, max(SUBSETS, math.ceil(20 / level)))
    chosen = rng.integers(0, 2, size=(size, rounds), dtype=np.int8).astype(np.float64)
    chosen[chosen.sum(axis=1) == 0] = 1
    return chosen


def _by_student(rounds: int, levels: tuple[float, float], rng: np.random.Generator) -> Ends:
    mean = rng.standard_normal(STUDIES) / math.sqrt(rounds)
    se = np.sqrt(rng.chisquare(rounds - 1, STUDIES) / (rounds - 1) / rounds)
    found = []
    for level in levels:
        width = student_quantile(rounds - 1, 1 - level / 2) * se
        found += [mean - width, mean + width]
    return Ends(*found)
