"""Whether a label, such as the version or the data centre, explains how effects differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pgtare.estimate.distributions import student_below, student_quantile
from pgtare.estimate.fleet.heterogeneity import equal_mean
from pgtare.estimate.fleet.server_effect import ServerEffect, arrays_of
from pgtare.estimate.inference import MISSING, NAN, Estimate, holm

#: Servers that a subgroup, and the rest, must have for a test.
FEWEST = 2


@dataclass(frozen=True)
class Subgroup:
    """The servers with one value of a label, against all others."""

    label: str
    value: str
    servers: tuple[str, ...]
    mean: Estimate  # of these servers; MISSING without a test
    difference: Estimate  # from the mean of all others
    p: float  # NaN if either side has fewer than two servers
    p_adjusted: float  # Holm over all tests of all labels given


def subgroups(
    effects: Sequence[ServerEffect], *labels: str, level: float = 0.95
) -> tuple[Subgroup, ...]:
    """Every value of these labels against the other servers that have the label.

    Plain means, each with the spread of its own side, and Welch's degrees of freedom: servers with
    one value may differ more from each other than the others do. Two values that split the fleet in
    the same way are one test of Holm's.
    """
    found: list[Subgroup] = []
    splits: dict[frozenset[frozenset[str]], float] = {}
    of: list[frozenset[frozenset[str]]] = []
    for label in labels:
        known = sorted(
            (e for e in effects if e.usable and label in e.labels), key=lambda e: e.server
        )
        for value in sorted({e.labels[label] for e in known}):
            inside = frozenset(e.server for e in known if e.labels[label] == value)
            outside = frozenset(e.server for e in known) - inside
            group = _against_others(known, label, value, level)
            found.append(group)
            of.append(frozenset((inside, outside)))
            if group.p == group.p:
                splits[of[-1]] = group.p
    adjusted = dict(zip(splits, holm(list(splits.values())), strict=True))
    return tuple(
        replace(group, p_adjusted=adjusted.get(split, NAN))
        for group, split in zip(found, of, strict=True)
    )


def welch_df(se: float, rest_se: float, servers: Sequence[int]) -> float:
    """Welch and Satterthwaite's, of the difference between two means of so many servers."""
    errors = (se, rest_se)
    whole = sum(error**2 for error in errors) ** 2
    return whole / sum(error**4 / (k - 1) for error, k in zip(errors, servers, strict=True))


def _against_others(
    known: Sequence[ServerEffect], label: str, value: str, level: float
) -> Subgroup:
    has = np.array([effect.labels[label] == value for effect in known])
    names = tuple(effect.server for effect in known if effect.labels[label] == value)
    k = len(known)
    if min(has.sum(), k - has.sum()) < FEWEST:
        return Subgroup(label, value, names, MISSING, MISSING, NAN, NAN)
    estimates, variances = arrays_of(known)
    sides = [(estimates[part], variances[part]) for part in (has, ~has)]
    (mean, se), (rest, rest_se) = ([float(x) for x in equal_mean(*side)] for side in sides)
    gap, gap_se = mean - rest, math.hypot(se, rest_se)
    df = welch_df(se, rest_se, [len(side[0]) for side in sides])
    own = student_quantile(int(has.sum()) - 1, (1 + level) / 2)
    t = student_quantile(df, (1 + level) / 2)
    return Subgroup(
        label,
        value,
        names,
        mean=Estimate(mean, se, mean - own * se, mean + own * se),
        difference=Estimate(gap, gap_se, gap - t * gap_se, gap + t * gap_se),
        p=2 * student_below(df, -abs(gap) / gap_se),
        p_adjusted=NAN,
    )
