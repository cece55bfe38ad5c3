"""Student's quantiles without scipy.special: that takes 25 MB, and an agent runs for days."""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = 100


def student(degrees: int, probability: float) -> float:
    """Where Student's distribution reaches a probability above one half."""
    return _root(lambda t: _student_below(t, degrees) - probability)


def _student_below(t: float, degrees: int) -> float:
    # a finite sum, Abramowitz and Stegun 26.7.3 and 26.7.4
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine, odd = math.cos(angle), math.sin(angle), degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for number in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine * cosine * (number - 1) / number
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1.0 + inside) / 2


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    while rising(high) < 0:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
