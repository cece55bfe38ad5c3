"""What a fleet's estimate is made of: one effect of each server, and how far its error is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy

from pgtare.estimate.arrays import Floats


@dataclass(frozen=True)
class ServerEffect:
    """The effect of one arm on one server, as a log-ratio or in µs.

    c, which splits body and tail, is each server's own, frozen from its base and control: effects
    of the same arm on two servers are of two bodies.
    """

    server: str
    estimate: float
    se: float
    clusters: float  # effective clusters that the standard error rests on
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether a fleet's estimate can use it: an estimate, and an error that is known."""
        known = math.isfinite(self.estimate) and math.isfinite(self.se) and self.se > 0
        return known and self.clusters > 1


def working_variances(se: Floats, clusters: Floats) -> Floats:
    """Variances to weigh servers by: of a normal estimate with Student's 95 % interval.

    se, clusters: (..., k). A standard error from two effective clusters may be a tenth of what it
    should be, and its server would get a hundred times its weight. Its own interval allows for
    that by Student's t with clusters - 1 degrees of freedom; so does this variance.
    """
    df = np.maximum(clusters - 1, 1.0)
    wider = scipy.special.stdtrit(df, 0.975) / scipy.special.ndtri(0.975)
    return np.asarray((se * wider) ** 2, dtype=np.float64)


def arrays_of(effects: Sequence[ServerEffect]) -> tuple[Floats, Floats]:
    """Estimates and working variances (k,)."""
    estimates = np.array([effect.estimate for effect in effects], dtype=np.float64)
    se = np.array([effect.se for effect in effects], dtype=np.float64)
    clusters = np.array([effect.clusters for effect in effects], dtype=np.float64)
    return estimates, working_variances(se, clusters)
