"""Intervals of sums, from the intervals of what is added up.

For independent estimates by the method of variance estimates recovery (Zou and Donner, Statistics
in Medicine 2008): the distances from estimate to end are added as standard errors are, each side
for itself. With normal estimates this is the delta method; it needs no standard errors, and lets
intervals be lopsided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Bounds(NamedTuple):
    """An estimate between the ends of its interval; NaN if an end is not known."""

    estimate: float
    lo: float
    hi: float

    def times(self, factor: float) -> Bounds:
        """This times a constant of either sign."""
        ends = sorted((self.lo * factor, self.hi * factor))
        if math.isnan(self.lo) or math.isnan(self.hi):
            ends = [math.nan, math.nan]
        return Bounds(self.estimate * factor, ends[0], ends[1])


def independent_sum(parts: Iterable[Bounds]) -> Bounds:
    """The sum of estimates that have nothing in common."""
    listed = list(parts)
    total = math.fsum(one.estimate for one in listed)
    below = math.sqrt(math.fsum((one.estimate - one.lo) ** 2 for one in listed))
    above = math.sqrt(math.fsum((one.hi - one.estimate) ** 2 for one in listed))
    return Bounds(total, total - below, total + above)


def dependent_sum(parts: Iterable[Bounds]) -> Bounds:
    """The sum of estimates whose errors may be the same: the worst case, ends are added.

    Arms of one trial are compared with the same base, so their errors go together.
    """
    listed = list(parts)
    return Bounds(
        math.fsum(one.estimate for one in listed),
        math.fsum(one.lo for one in listed),
        math.fsum(one.hi for one in listed),
    )
