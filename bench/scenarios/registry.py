"""What a scenario is: a name, a bound, and a function that counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import special

#: A program that is exactly at its bound misses it once in this number of runs.
_ONCE_IN = 10_000


@dataclass(frozen=True)
class Counts:
    """In how many of the simulated trials something happened."""

    hits: int
    trials: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.hits + other.hits, self.trials + other.trials)

    @property
    def rate(self) -> float:
        """Hits a trial; NaN without trials."""
        return self.hits / self.trials if self.trials else math.nan

    @property
    def error(self) -> float:
        """The Monte Carlo error: one standard error of the rate, by Wilson's centre.

        So that 0 of 100 and 100 of 100 have one as well.
        """
        if not self.trials:
            return math.nan
        centre = (self.hits + 2) / (self.trials + 4)
        return math.sqrt(centre * (1 - centre) / (self.trials + 4))


@dataclass(frozen=True)
class Scenario:
    """One row of the table.

    function: (number of trials, seed) -> counts; it must not keep state, as it runs in other
    processes. at_least: whether the bound is a least or a greatest rate. stated: in docs/method.md,
    why the bound may be missed; such a row fails no test.
    """

    name: str
    checks: str
    bound: float
    function: Callable[[int, int], Counts]
    at_least: bool = True
    trials: int = 600
    quick: int = 40
    stated: str = ""

    def holds(self, counts: Counts) -> bool:
        """False only if a program that is just at the bound gives such counts once in 10,000."""
        k, n = counts.hits, counts.trials
        if self.at_least:
            return k == n or float(special.bdtr(k, n, self.bound)) >= 1 / _ONCE_IN
        return k == 0 or float(special.bdtrc(k - 1, n, self.bound)) >= 1 / _ONCE_IN
