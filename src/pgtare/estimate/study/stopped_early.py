"""Rounds of a study that was ended by hand: what holds whenever somebody chose to stop.

The confidence sequence of Waudby-Smith et al. (`sequential`), tuned to the planned rounds, as it is
tightest there, and taken to Student's t: at each look the multiple of t that has the tail which the
sequence's multiple has in the normal, since the variance is of a few rounds only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pgtare.estimate import sequential
from pgtare.estimate.distributions import (
    normal_below,
    normal_quantile,
    student_below,
    student_quantile,
)
from pgtare.estimate.inference import NAN


@dataclass(frozen=True)
class Closed:
    """What a studentised mean is held against after n of the planned rounds, at level α."""

    n: int
    planned: int
    alpha: float = 0.05

    @property
    def multiplier(self) -> float:
        """Half the interval, in standard errors."""
        if self.n < 2:
            return NAN
        z = sequential.multiplier(self.n, self.alpha, self.planned)
        return -student_quantile(self.n - 1, normal_below(-z))

    def p_value(self, t: float) -> float:
        """Always-valid two-sided p: below α exactly if the interval excludes zero."""
        if self.n < 2 or math.isnan(t):
            return NAN
        tail = student_below(self.n - 1, -abs(t))
        z = -normal_quantile(tail) if tail > 0 else math.inf
        return sequential.p_value(z, self.n, self.alpha, self.planned)
