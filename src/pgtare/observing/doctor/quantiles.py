"""Two quantiles without scipy.special: that takes 25 MB, and an agent runs for days."""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = 100
_PRECISION = 1e-17


def student(degrees: int, probability: float) -> float:
    """Where Student's distribution reaches a probability above one half."""
    return _root(lambda t: _student_below(t, degrees) - probability)


def fewest_expected(count: float, probability: float) -> float:
    """The mean at which a Poisson count reaches this one or more with a probability.

    A count that is no whole number lies between, as in a gamma distribution of that shape.
    """
    return _root(lambda mean: _gamma_below(mean, count) - probability)


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


def _gamma_below(x: float, shape: float) -> float:
    # a series, Abramowitz and Stegun 6.5.29
    if x <= 0:
        return 0.0
    term = math.exp(shape * math.log(x) - x - math.lgamma(shape + 1))
    total, number = term, shape
    while term > total * _PRECISION:
        number += 1
        term *= x / number
        total += term
    return total


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    while rising(high) < 0:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
