"""Servers unlike the rest of their fleet, and the labels that only they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.distributions import student_below
from pgtare.estimate.fleet.heterogeneity import equal_mean, tau2_at
from pgtare.estimate.fleet.server_effect import ServerEffect, arrays_of
from pgtare.estimate.inference import holm

#: With fewer servers nobody can say which one is unlike the others.
FEWEST = 4


@dataclass(frozen=True)
class Outlier:
    """A server unlike the rest.

    residual: studentised and deleted, so against a mean and a spread that are from the others; p by
    Holm over all servers. labels: that all outliers on this side have, and no other server has.
    """

    server: str
    residual: float
    p: float
    labels: Mapping[str, str]


def deleted_residuals(estimates: Floats, variances: Floats) -> Floats:
    """Each server's distance from what the others predict for it, studentised (k,)."""
    k = len(estimates)
    others = ~np.eye(k, dtype=bool)
    rest = np.broadcast_to(estimates, (k, k))[others].reshape(k, k - 1)
    rest_variances = np.broadcast_to(variances, (k, k))[others].reshape(k, k - 1)
    tau2 = tau2_at(rest, rest_variances, k - 2)
    means, errors = equal_mean(rest, rest_variances)
    spread = np.sqrt(variances + tau2 + errors**2)
    return np.asarray((estimates - means) / spread, dtype=np.float64)


def find_outliers(effects: Sequence[ServerEffect], alpha: float = 0.05) -> tuple[Outlier, ...]:
    """The servers whose residual is significant by Holm, farthest first.

    Student's t with k − 2 degrees of freedom, as the others are k − 1; with the server's own if
    these are fewer, as its error is known no better.
    """
    k = len(effects)
    if k < FEWEST:
        return ()
    residuals = deleted_residuals(*arrays_of(effects))
    df = np.clip([effect.clusters - 1 for effect in effects], 1.0, k - 2)
    far = (-np.abs(residuals)).tolist()
    p_values = holm([2 * student_below(*own) for own in zip(df.tolist(), far, strict=True)])
    chosen = [i for i in range(k) if p_values[i] < alpha]
    found = []
    for i in sorted(chosen, key=lambda i: (-abs(residuals[i]), effects[i].server)):
        same_side = [effects[j].labels for j in chosen if residuals[j] * residuals[i] > 0]
        others = [effects[j].labels for j in range(k) if j not in chosen]
        labels = _only_theirs(same_side, others)
        found.append(Outlier(effects[i].server, float(residuals[i]), p_values[i], labels))
    return tuple(found)


def _only_theirs(
    theirs: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """Labels that all of them share and none of the others has."""
    return {
        label: value
        for label, value in sorted(theirs[0].items())
        if all(labels.get(label) == value for labels in theirs)
        and all(labels.get(label) != value for labels in others)
    }
