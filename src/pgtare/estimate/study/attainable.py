"""What a number of rounds can reach at best, by the number of their sign flips."""

from __future__ import annotations

import math

#: Up to this many rounds all 2^n sign flips are counted; beyond, DRAWS of them are drawn.
EXACT_ROUNDS = 20
DRAWS = 99_999


def attainable_p(rounds: int) -> float:
    """The smallest two-sided p that this many rounds can reach: 2 / 2^n, or what draws resolve."""
    if rounds < 1:
        return 1.0
    return 2.0 ** (1 - rounds) if rounds <= EXACT_ROUNDS else 2 / (DRAWS + 1)


def rounds_for_level(alpha: float, family: int) -> int:
    """The fewest rounds that can reach α at Holm's first step over a family of comparisons."""
    return max(1, math.ceil(1 + math.log2(max(family, 1) / alpha) - 1e-12))


def rank(alpha: float, flips: int) -> int:
    """Which of this many sorted subset means is the end of a two-sided 1 − α interval, from 1.

    `flips` of them next to the observed signs; 0 if these are too few for an end.
    """
    return math.floor(alpha / 2 * (1 + flips) + 1e-9)
