"""Code layout as a random effect: a build linked in K orders, each measured in several rounds.

Two builds differ in what was changed and, by accident, in where the linker put things. Rounds tell
the two builds' binaries apart, however many there are; they say nothing of another linking. So the
unit of inference is the layout: the mean over layouts of the layouts' means, with the spread of
those means as its error (one-way random effects; Searle, Casella and McCulloch, Variance
Components, 1992, ch. 3). Unequal numbers of rounds are met by unweighted means (Thomas and
Hultquist, Ann. Statist. 6, 1978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import MISSING, NAN, Estimate, varies
from pgtare.estimate.study.power import detectable_by_t
from pgtare.estimate.study.rounds import Flips, Paired
from pgtare.estimate.study.stopped_early import Closed

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Layouts:
    """What rounds on several layouts say. sd_*: standard deviations, in the unit of the values.

    mean: with its t interval over layouts. sd_layout: between layouts, beyond what rounds explain,
    0 if they explain all; its interval by Williams (1962), which is conservative. sd_round:
    within a layout. p_layout: of "all layouts are alike", by F.
    """

    layouts: int
    rounds: int
    mean: Estimate
    df: int
    p: float
    sd_layout: float
    sd_layout_lo: float
    sd_layout_hi: float
    sd_round: float
    p_layout: float


def by_layout(values: Floats, layout: Ints) -> list[Floats]:
    """The values (n,) of each layout, in the order of the layouts' numbers."""
    return [values[layout == number] for number in np.unique(layout)]


def one_way(groups: Sequence[Floats], alpha: float = 0.05) -> Layouts:
    """The mean over layouts with an interval that another linking would fall under.

    groups: for each layout its rounds' values, as log-ratios of arm to base. If arm and base
    are two builds, a group is a pair of layouts, one of each, drawn anew for every group.
    """
    groups = [group for group in groups if len(group)]
    k, n = len(groups), sum(len(group) for group in groups)
    means = np.array([group.mean() for group in groups])
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    ms_within = within / (n - k) if n > k else NAN
    if k < 2:
        return Layouts(k, n, MISSING, k - 1, NAN, NAN, NAN, NAN, _root(ms_within), NAN)
    # per layout as if each had the harmonic mean of rounds
    size = k / sum(1 / len(group) for group in groups)
    between = float(means.var(ddof=1))
    se = math.sqrt(between / k)
    estimate = _interval(float(means.mean()), se, k - 1, alpha)
    spread, lo, hi, p_layout = _components(between, ms_within, size, k, n - k, alpha)
    return Layouts(
        layouts=k,
        rounds=n,
        mean=estimate,
        df=k - 1,
        p=_p_value(estimate.estimate, se, k - 1),
        sd_layout=spread,
        sd_layout_lo=lo,
        sd_layout_hi=hi,
        sd_round=_root(ms_within),
        p_layout=p_layout,
    )


def two_way(values: Floats, alpha: float = 0.05) -> Layouts:
    """Linkings that all played in every set of rounds: values (S, K), by set and linking.

    What a set does to all linkings alike is taken out, which costs a degree of freedom a set; the
    mean of all is the sets' own and stays without an interval.
    """
    sets, k = values.shape
    means = values.mean(axis=0)
    left = values - values.mean(axis=1, keepdims=True) - (means - means.mean())
    df = (sets - 1) * (k - 1)
    ms_within = float((left**2).sum()) / df if df > 0 else NAN
    between = float(means.var(ddof=1))
    spread, lo, hi, p_layout = _components(between, ms_within, sets, k, df, alpha)
    return Layouts(
        layouts=k,
        rounds=values.size,
        mean=MISSING,
        df=df,
        p=NAN,
        sd_layout=spread,
        sd_layout_lo=lo,
        sd_layout_hi=hi,
        sd_round=_root(ms_within),
        p_layout=p_layout,
    )


def range_half_width(found: Layouts, sets: int, alpha: float = 0.05) -> float:
    """Half the interval of the largest of all differences between linkings, of `two_way`.

    Tukey's: the pair that is farthest apart was chosen by looking, as the largest of K (K − 1) / 2.
    """
    q = float(scipy.stats.studentized_range.ppf(1 - alpha, found.layouts, found.df))
    return q * found.sd_round / math.sqrt(sets)


def paired(
    d: Floats,
    layout: Ints,
    *,
    margin: float,
    family: int = 1,
    alpha: float = 0.05,
    peeked: bool = False,
    planned: int = 0,
) -> tuple[Paired, Layouts]:
    """Compare two builds by rounds: d (n,) are log-ratios, layout (n,) what each round used.

    As `rounds.paired`, but the interval is t over layouts, and holds for other linkings of the two
    builds. Equivalence by TOST over layouts; margin is a share. peeked: as there, of how many
    planned layouts; p, interval and MDE are then those of the confidence sequence.
    """
    found = one_way(by_layout(d, layout), alpha)
    mean, p, p_equivalence = found.mean, found.p, equivalence_p(found, margin)
    inner = _interval(mean.estimate, mean.se, max(found.df, 1), 2 * alpha)
    threshold = float(scipy.special.stdtrit(found.df, 1 - alpha / 2 / max(family, 1)))
    mde = detectable_by_t(mean.se, found.df, threshold)
    if peeked and mean.se > 0:
        closed = Closed(found.layouts, planned or found.layouts, alpha)
        width = closed.multiplier * mean.se
        mde = closed.detectable(mean.se, family)
        mean = Estimate(mean.estimate, mean.se, mean.estimate - width, mean.estimate + width)
        p, p_equivalence = closed.p_value(mean.estimate / mean.se), NAN
        inner = MISSING
    compared = Paired(
        n=found.rounds,
        mean=mean.estimate if found.layouts > 1 else float(np.mean(d)),
        lo=mean.lo,
        hi=mean.hi,
        within=(inner.lo, inner.hi),
        p=p,
        p_equivalence=p_equivalence,
        se=mean.se,
        mde=mde,
        hodges_lehmann=Flips(d).hodges_lehmann(),
        positive=int((d > 0).sum()),
        exact=False,
    )
    return compared, found


def two_builds(arm: Sequence[Floats], base: Sequence[Floats], alpha: float = 0.05) -> Estimate:
    """Mean of the arm's layout means less that of the base's, if rounds share nothing.

    arm, base: rounds' logarithms by layout. Degrees of freedom by Welch and Satterthwaite. If
    arm and base ran in the same rounds, `one_way` of their log-ratios is tighter, as what a round
    does to both cancels there.
    """
    sides = [np.array([group.mean() for group in side if len(group)]) for side in (arm, base)]
    if min(len(side) for side in sides) < 2:
        return MISSING
    parts = [float(side.var(ddof=1)) / len(side) for side in sides]
    total = sum(parts)
    if not total > 0:
        return Estimate(float(sides[0].mean() - sides[1].mean()), NAN, NAN, NAN)
    df = total**2 / sum(p**2 / (len(side) - 1) for p, side in zip(parts, sides, strict=True))
    return _interval(float(sides[0].mean() - sides[1].mean()), math.sqrt(total), df, alpha)


def expected_half_width(sd_layout: float, layouts: int, alpha: float = 0.05) -> float:
    """Half the interval of `two_builds` with this many layouts of each, rounds without error."""
    if layouts < 2:
        return math.inf
    multiplier = float(scipy.special.stdtrit(2 * (layouts - 1), 1 - alpha / 2))
    return multiplier * sd_layout * math.sqrt(2 / layouts)


def equivalence_p(found: Layouts, margin: float) -> float:
    """TOST by t over layouts: the larger p of the two sides, margin as a share (0.005 is 0.5 %)."""
    mean, se = found.mean.estimate, found.mean.se
    if found.df < 1 or not se > 0:
        return NAN
    above = (mean - math.log1p(margin)) / se
    below = (-math.log1p(margin) - mean) / se
    return float(max(scipy.special.stdtr(found.df, above), scipy.special.stdtr(found.df, below)))


def _components(
    between: float, ms_within: float, size: float, k: int, df_within: int, alpha: float
) -> tuple[float, float, float, float]:
    """SD between layouts with its interval, and p of no such thing. between: of layouts' means."""
    if df_within < 1 or not ms_within > 0:
        return NAN, NAN, NAN, NAN
    f = size * between / ms_within
    spread = _root(max(0.0, between - ms_within / size))
    # Williams: the mean square of the means bounds the sum, F the ratio; together at least 1 − α
    half = alpha / 2
    upper = float(scipy.special.fdtri(k - 1, df_within, 1 - half / 2))
    lower = float(scipy.special.fdtri(k - 1, df_within, half / 2))
    many, few = (float(scipy.special.chdtri(k - 1, q)) for q in (half / 2, 1 - half / 2))
    lo = (k - 1) * between * max(0.0, 1 - upper / f) / many if f > 0 else 0.0
    hi = (k - 1) * between * max(0.0, 1 - lower / f) / few if f > 0 else 0.0
    return spread, _root(lo), _root(hi), float(scipy.special.fdtrc(k - 1, df_within, f))


def _interval(estimate: float, se: float, df: float, alpha: float) -> Estimate:
    if not varies(estimate, se):
        return Estimate(estimate, NAN, NAN, NAN)
    width = float(scipy.special.stdtrit(df, 1 - alpha / 2)) * se
    return Estimate(estimate, se, estimate - width, estimate + width)


def _p_value(estimate: float, se: float, df: int) -> float:
    return float(2 * scipy.special.stdtr(df, -abs(estimate) / se)) if varies(estimate, se) else NAN


def _root(variance: float) -> float:
    return math.sqrt(variance) if variance >= 0 else NAN
