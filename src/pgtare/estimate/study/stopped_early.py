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
from pgtare.estimate.study.power import detectable_by_t


@dataclass(frozen=True)
class Closed:
    """What a studentised mean is held against after n of the planned rounds, at level α."""

    n: int
    planned: int
    alpha: float = 0.05

    @property
    def multiplier(self) -> float:
        """Half the interval, in standard errors."""
        return self._of_t(sequential.multiplier(self.n, self.alpha, self.planned))

    def p_value(self, t: float) -> float:
        """Always-valid two-sided p: below α exactly if the interval excludes zero."""
        if self.n < 2 or math.isnan(t):
            return NAN
        tail = student_below(self.n - 1, -abs(t))
        z = -normal_quantile(tail) if tail > 0 else math.inf
        return sequential.p_value(z, self.n, self.alpha, self.planned)

    def detectable(self, se: float, family: int) -> float:
        """The effect that is found with 80 % power at Holm's first step; unit of se."""
        if self.n < 2:
            return NAN
        level = self.alpha / max(family, 1)
        z = sequential.threshold(level, self.n, self.alpha, self.planned)
        return detectable_by_t(se, self.n - 1, self._of_t(z))

    def _of_t(self, z: float) -> float:
        """The multiple of Student's t with the tail that z has in the normal."""
        if self.n < 2:
            return NAN
        return -student_quantile(self.n - 1, normal_below(-z))
