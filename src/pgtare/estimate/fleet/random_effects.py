"""One arm over a fleet: the mean effect, and the effect to expect on the next server.

Random effects: each server's true effect is drawn from a fleet's distribution, and its estimate
adds an error of its own. The headline is the prediction interval of the next server's true effect.
docs/fleet-statistics.md has the methods, and how often their intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pgtare.estimate.distributions import chi_square_above, student_quantile
from pgtare.estimate.fleet.heterogeneity import (
    tau2_interval,
    typical_variance,
    weighted_squares,
)
from pgtare.estimate.fleet.kinds import Kinds, find_kinds
from pgtare.estimate.fleet.outliers import Outlier, find_outliers
from pgtare.estimate.fleet.prediction import intervals
from pgtare.estimate.fleet.server_effect import ServerEffect, arrays_of
from pgtare.estimate.inference import MISSING, NAN, Estimate

FleetVerdict = Literal["cost", "gain", "equivalent", "inconclusive", "list", "kinds"]

#: Fewer servers are a list, not a sample: no verdict, and nothing of the next server.
FEWEST = 5


@dataclass(frozen=True)
class FleetEstimate:
    """One arm over all servers of a fleet whose effect is known; on the scale of the effects."""

    k: int  # servers that are in it
    mean: Estimate
    verdict: FleetVerdict
    reason: str
    prediction: Estimate | None = None  # the next server's; None if too few, or of two kinds
    tau2: Estimate = MISSING  # variance of true effects, with its Q-profile interval, without se
    i2: float = NAN  # τ²'s share of the variance of an estimate, 0 to 1
    q: float = NAN  # Cochran's
    q_p: float = NAN  # of "all servers have the same effect"
    outliers: tuple[Outlier, ...] = ()  # farthest first
    kinds: Kinds | None = None  # if the servers are shown to be of two kinds


def combine(
    effects: Sequence[ServerEffect], *, level: float = 0.95, margin: float | None = None
) -> FleetEstimate:
    """The fleet's estimate from its servers'; margin on the scale of the effects.

    Servers without an estimate, or without a known error, are left out; each other one counts the
    same. They are taken in the order of their names, so that the result does not depend on the
    order given, to the last bit.
    """
    used = sorted((effect for effect in effects if effect.usable), key=lambda e: e.server)
    k = len(used)
    if k < 2:
        return _of_one(used, level)
    estimates, variances = arrays_of(used)
    found = intervals(estimates, variances, level)
    tau2 = float(found.tau2)
    lower, upper = tau2_interval(estimates, variances, 1 - level)
    q, _ = weighted_squares(estimates, variances, np.zeros(()))
    mean = _around(float(found.mean), float(found.mean_se), float(found.mean_width))
    prediction = None
    kinds = find_kinds(used)
    if k >= FEWEST and kinds is None:
        spread = math.sqrt(tau2 + mean.se**2)
        prediction = Estimate(mean.estimate, spread, float(found.low), float(found.high))
    verdict, reason = judge_fleet(k, mean, prediction, margin, kinds)
    return FleetEstimate(
        k=k,
        mean=mean,
        prediction=prediction,
        tau2=Estimate(tau2, NAN, float(lower), float(upper)),
        i2=tau2 / (tau2 + float(typical_variance(variances))),
        q=float(q),
        q_p=chi_square_above(k - 1, float(q)),
        verdict=verdict,
        reason=reason,
        outliers=find_outliers(used, 1 - level),
        kinds=kinds,
    )


def judge_fleet(
    k: int,
    mean: Estimate,
    prediction: Estimate | None,
    margin: float | None,
    kinds: Kinds | None = None,
) -> tuple[FleetVerdict, str]:
    """The verdict on a fleet, and why. Equivalent only by the prediction interval."""
    if kinds is not None:
        how = "dearer" if kinds.dearer else "cheaper"
        return "kinds", f"these servers differ in kind; {how}: {', '.join(kinds.fewer)}"
    if k < FEWEST or prediction is None:
        servers = "1 server" if k == 1 else f"{k} servers"
        return "list", f"{servers}: a list, not a sample of a fleet"
    if margin is not None and -margin < prediction.lo and prediction.hi < margin:
        return "equivalent", "the prediction interval for the next server is inside the margin"
    if mean.lo > 0 or mean.hi < 0:
        whole = prediction.lo > 0 or prediction.hi < 0
        where = "the next server's, too" if whole else "but not the next server's"
        reason = f"the mean's interval excludes zero, {where}"
        return ("cost" if mean.lo > 0 else "gain"), reason
    return "inconclusive", "the mean is not distinguished from zero, nor is the fleet equivalent"


def _around(estimate: float, se: float, width: float) -> Estimate:
    return Estimate(estimate, se, estimate - width, estimate + width)


def _of_one(used: Sequence[ServerEffect], level: float) -> FleetEstimate:
    """The estimate of a fleet with no known server, or only one: that server's interval."""
    mean = MISSING
    for effect in used:
        df = max(effect.clusters - 1, 1.0)
        width = student_quantile(df, (1 + level) / 2) * effect.se
        mean = _around(effect.estimate, effect.se, width)
    verdict, reason = judge_fleet(len(used), mean, None, None)
    return FleetEstimate(len(used), mean, verdict, reason)
