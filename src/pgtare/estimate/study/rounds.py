"""Paired rounds: sign-flip tests of the mean, and the intervals that invert them.

Arrays in, numbers out. A round gives one difference d_r (of logarithms, as a rule). Under the
hypothesis that the true difference is θ, and with the order within each round drawn by lot, the
signs of d_r − θ are as good as coin flips. Flipping the set F of rounds changes the sum by
−2 Σ_F (d_r − θ), so that it is at least as large as observed exactly if mean_F(d) ≤ θ. One sorted
array, the means of all subsets of rounds, therefore answers every question: p-values at any θ,
and intervals as its order statistics (Hartigan 1969, "Using subsample values as typical values",
JASA 64).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import NAN
from pgtare.estimate.study.attainable import DRAWS, EXACT_ROUNDS, rank
from pgtare.estimate.study.stopped_early import Closed


@dataclass(frozen=True)
class Flips:
    """The sign-flip distribution of the mean of rounds' differences d (n,)."""

    d: Floats
    seed: int = 0

    @property
    def n(self) -> int:
        """Rounds."""
        return len(self.d)

    @property
    def exact(self) -> bool:
        """Whether every flip is counted rather than a sample of them."""
        return self.n <= EXACT_ROUNDS

    @property
    def mean(self) -> float:
        """The estimate."""
        return float(self.d.mean()) if self.n else NAN

    @property
    def vary(self) -> bool:
        """Whether the rounds differ by more than the last digits of their arithmetic.

        Rounds that are all alike were written down too coarsely: they say nothing of their spread,
        so there is no interval, and no p that anybody should act on.
        """
        return self.n > 1 and float(np.ptp(self.d)) > _tie(float(np.abs(self.d).max()))

    @property
    def se(self) -> float:
        """Standard error of the mean, for power only."""
        return float(self.d.std(ddof=1)) / math.sqrt(self.n) if self.vary else NAN

    @cached_property
    def subset_means(self) -> Floats:
        """Means of the non-empty subsets of rounds, sorted; all, or DRAWS drawn at random."""
        if self.exact:
            sums, counts = np.zeros(1), np.zeros(1)
            for value in self.d:
                sums = np.concatenate((sums, sums + value))
                counts = np.concatenate((counts, counts + 1))
            means = sums[1:] / counts[1:]
        else:
            rng = np.random.default_rng((self.seed, self.n))
            parts = []
            for start in range(0, DRAWS, 8_192):
                size = min(8_192, DRAWS - start)
                chosen = rng.integers(0, 2, size=(size, self.n), dtype=np.int8)
                # Beyond 20 rounds an empty subset turns up once in a million draws or less: it
                # is replaced by the whole, whose flip is the other one that leaves |sum| alone.
                chosen[chosen.sum(axis=1) == 0] = 1
                parts.append((chosen @ self.d) / chosen.sum(axis=1))
            means = np.concatenate(parts)
        means.sort()
        return means

    def _share(self, hits: int) -> float:
        """One-sided p: the observed signs count as one flip among all."""
        return min(1.0, (1 + hits) / (1 + len(self.subset_means)))

    def p_above(self, theta: float = 0.0) -> float:
        """p of "the true mean is at most θ" against "it is above"."""
        if self.n < 1:
            return NAN
        return self._share(int(np.searchsorted(self.subset_means, theta + _tie(theta), "right")))

    def p_below(self, theta: float = 0.0) -> float:
        """p of "the true mean is at least θ" against "it is below"."""
        if self.n < 1:
            return NAN
        at_least = len(self.subset_means) - int(
            np.searchsorted(self.subset_means, theta - _tie(theta), "left")
        )
        return self._share(at_least)

    def p(self, theta: float = 0.0) -> float:
        """Two-sided p of "the true mean is θ"; the distribution is symmetric, so twice the side."""
        return min(1.0, 2 * min(self.p_above(theta), self.p_below(theta)))

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """The 1 − α interval, every θ that `p` does not reject.

        Endless if n is too small, or if the rounds do not vary.
        """
        if self.n < 1:
            return NAN, NAN
        if not self.vary:
            return -math.inf, math.inf
        means = self.subset_means
        # θ is kept from the k-th smallest mean on, where (1 + k) / (1 + N) first exceeds α/2.
        k = rank(alpha, len(means))
        if k < 1:
            return -math.inf, math.inf
        return float(means[k - 1]), float(means[-k])

    def equivalence_p(self, margin_low: float, margin_high: float) -> float:
        """TOST: the larger p of "not below the upper margin" and "not above the lower one"."""
        if self.n < 1:
            return NAN
        return max(self.p_above(margin_low), self.p_below(margin_high))


@dataclass(frozen=True)
class Paired:
    """One comparison by rounds, in logarithms; times 100 it is nearly percent.

    lo, hi: the 1 − α interval; within: the 1 − 2α one, which lies inside the margin exactly if the
    two one-sided tests say so.
    """

    n: int
    mean: float
    lo: float
    hi: float
    within: tuple[float, float]
    p: float
    p_equivalence: float
    se: float


def paired(
    d: Floats,
    *,
    margin: float,
    alpha: float = 0.05,
    seed: int = 0,
    peeked: bool = False,
    planned: int = 0,
) -> Paired:
    """Compare by rounds: d (n,) are log-ratios, margin a share (0.005 is 0.5 %).

    peeked: the rounds were ended by someone who could see the figures, of how many planned ones. p
    and interval are then those of the confidence sequence, and nothing is called equivalent.
    """
    flips = Flips(np.asarray(d, dtype=np.float64), seed)
    lo, hi = flips.interval(alpha)
    within = flips.interval(2 * alpha)
    p, p_equivalence = NAN, NAN
    if flips.vary:
        p = flips.p()
        p_equivalence = flips.equivalence_p(-math.log1p(margin), math.log1p(margin))
    if peeked and flips.vary:
        closed = Closed(flips.n, planned or flips.n, alpha)
        width = closed.multiplier * flips.se
        lo, hi = flips.mean - width, flips.mean + width
        p = closed.p_value(flips.mean / flips.se)
        p_equivalence, within = NAN, (NAN, NAN)
    return Paired(
        n=flips.n,
        mean=flips.mean,
        lo=lo,
        hi=hi,
        within=within,
        p=p,
        p_equivalence=p_equivalence,
        se=flips.se,
    )


def _tie(theta: float) -> float:
    """Means of the same numbers added up in another order differ in the last digits."""
    return 1e-12 * max(abs(theta), 1e-3)
