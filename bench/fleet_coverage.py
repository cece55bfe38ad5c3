"""How often the intervals of a fleet hold: simulated fleets, and the table of the docs.

Estimates' standard errors are drawn as
those of a trial are: from χ² with as many degrees of freedom as there are clusters less one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from pgtare.estimate.arrays import Floats
from pgtare.estimate.fleet.kinds import find_kinds
from pgtare.estimate.fleet.prediction import FleetIntervals, intervals
from pgtare.estimate.fleet.server_effect import ServerEffect, working_variances
from pgtare.estimate.fleet.subgroups import subgroups

TAKES = "some minutes"
ONE_THREAD = True

SERVERS = (3, 5, 10, 30, 100)
#: τ² relative to the median of servers' variances: I² is about 0, 50 and 90 %.
HETEROGENEITY = {"none": 0.0, "moderate": 1.0, "large": 9.0}
REQUIRED = 0.94
#: Servers' standard errors differ by a factor of e^0.4 either way, one SD; unequal ones by e^1.1.
_ERRORS, _UNEQUAL = 0.4, 1.1
_CLUSTERS = (12, 64)
#: A dominated server rests on two clusters, and its error is among the smallest tenth of such.
_FEW, _LUCKY = 2.0, 0.1
_SEED = 20_262
#: One server in five is dear, by so much; errors go with costs, at this correlation.
_DEAR, _ONE_IN, _TOGETHER = 6.0, 0.2, 0.9
FALSE_DIFFERENCES = 0.06
_CHUNK = 500
#: Monte Carlo errors by which a bound may be missed.
_TOLERANCE = 3.0


@dataclass(frozen=True)
class Kind:
    """Fleets of one kind: how true effects are spread, and whether one server is dominated."""

    heterogeneity: str
    skewed: bool
    dominated: bool
    unequal: bool = False  # standard errors differ by a factor of nine and more
    dear_unsure: bool = False  # dear servers are slow, and so have larger standard errors
    two: bool = False  # one server in five is dear, by six of the others' SDs

    @property
    def name(self) -> str:
        skewed = ", skewed" if self.skewed else ""
        unequal = ", unequal errors" if self.unequal else ""
        if self.dear_unsure:
            return f"{self.heterogeneity}, dear servers have larger errors"
        if self.two:
            return "one in five is dear"
        return f"{self.heterogeneity}{skewed}{unequal}{', one dominated' if self.dominated else ''}"

    @property
    def mean(self) -> float:
        """Of the true effects."""
        return _DEAR * _ONE_IN if self.two else 0.0

    def true_effects(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Of servers of such a fleet, with mean 0; skewed ones are exponential."""
        if self.two:
            return np.asarray(_DEAR * (rng.random(shape) < _ONE_IN) + rng.standard_normal(shape))
        drawn = rng.exponential(1.0, shape) - 1 if self.skewed else rng.standard_normal(shape)
        return np.asarray(drawn * np.sqrt(HETEROGENEITY[self.heterogeneity]), dtype=np.float64)

    def draw(
        self, rng: np.random.Generator, fleets: int, k: int
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Estimates, standard errors and clusters (fleets, k), and the next server's effect."""
        shape = (fleets, k)
        true = self.true_effects(rng, shape)
        size = rng.standard_normal(shape)
        if self.dear_unsure:
            size = _TOGETHER * true / true.std() + np.sqrt(1 - _TOGETHER**2) * size
        variances = np.exp(2 * (_UNEQUAL if self.unequal else _ERRORS) * size)
        clusters = rng.integers(*_CLUSTERS, shape).astype(np.float64)
        if self.dominated:
            clusters[:, 0] = _FEW
        squares = rng.chisquare(clusters - 1)
        if self.dominated:
            squares[:, 0] = scipy.special.chdtri(_FEW - 1, 1 - rng.uniform(0, _LUCKY, fleets))
        se = np.sqrt(variances * squares / (clusters - 1))
        noise = np.sqrt(variances) * rng.standard_normal(shape)
        return (
            true + noise,
            se,
            clusters,
            self.true_effects(rng, (fleets,)),
        )


KINDS = [
    Kind(heterogeneity, skewed, dominated)
    for dominated in (False, True)
    for skewed in (False, True)
    for heterogeneity in HETEROGENEITY
    if not (skewed and heterogeneity == "none")
] + [
    *(Kind(heterogeneity, False, False, unequal=True) for heterogeneity in HETEROGENEITY),
    Kind("moderate", False, False, unequal=True, dear_unsure=True),
    Kind("large", False, False, unequal=True, dear_unsure=True),
    Kind("moderate", False, False, two=True),
]


@dataclass(frozen=True)
class Coverage:
    """Shares of fleets."""

    mean: float  # the mean's interval has the fleet's mean
    prediction: float  # the interval has the next server's effect, or they differ in kind
    student: float  # Student's alone has it
    kinds: float  # the servers are said to differ in kind
    false: float  # equivalent, and the next server is outside the margin: of the worst margin

    def misses(self, fleets: int) -> bool:
        error = np.sqrt(REQUIRED * (1 - REQUIRED) / fleets)
        return min(self.mean, self.prediction) < REQUIRED - _TOLERANCE * error


def coverage(kind: Kind, k: int, fleets: int, seed: int) -> Coverage:
    """Of simulated fleets with k servers each."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Floats, ...]] = []
    for size in _chunks(fleets):
        estimates, se, clusters, following = kind.draw(rng, size, k)
        ours = intervals(estimates, working_variances(se, clusters))
        kinds = np.array([_differ(*fleet) for fleet in zip(estimates, se, clusters, strict=True)])
        student = np.abs(following - ours.mean) <= ours.student_width
        inside = ((ours.low <= following) & (following <= ours.high)) | kinds
        found.append(
            (_has(ours, kind.mean), inside, student, kinds, ours.low, ours.high, following)
        )
    mean, inside, student, kinds, low, high, following = (
        np.concatenate(column) for column in zip(*found, strict=True)
    )
    return Coverage(
        float(mean.mean()),
        float(inside.mean()),
        float(student.mean()),
        float(kinds.mean()),
        _false_equivalence(low, high, following),
    )


def _chunks(fleets: int) -> Iterator[int]:
    for start in range(0, fleets, _CHUNK):
        yield min(_CHUNK, fleets - start)


def _has(found: FleetIntervals, truth: float) -> Floats:
    return np.asarray(np.abs(found.mean - truth) <= found.mean_width, dtype=np.float64)


def _differ(estimates: Floats, se: Floats, clusters: Floats) -> bool:
    """Whether the servers are said to be of two kinds."""
    effects = [
        ServerEffect(str(i), *(float(x) for x in one))
        for i, one in enumerate(zip(estimates, se, clusters, strict=True))
    ]
    return find_kinds(effects) is not None


def false_differences(fleets: int, seed: int) -> float:
    """How often ten servers, which differ much, are said to differ from thirty, which do not."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(fleets):
        spread = np.repeat([3.0, 0.3], [10, 30])
        true, noise = rng.standard_normal((2, 40))
        effects = [
            ServerEffect(str(i), float(x), 1.0, 40.0, {"place": "a" if i < 10 else "b"})
            for i, x in enumerate(spread * true + noise)
        ]
        hits += subgroups(effects, "place")[0].p < 0.05
    return hits / fleets


def _false_equivalence(low: Floats, high: Floats, following: Floats) -> float:
    """The largest share, over all margins, of fleets wrongly called equivalent.

    Wrong is an interval inside the margin while the next server is not. Margins are symmetric about
    the true mean, or far from it on one side, as if the mean were almost as large as the margin.
    """
    both = _largest_between(np.maximum(-low, high), np.abs(following))
    return max(both, _largest_between(high, following), _largest_between(-low, -following))


def _largest_between(end: Floats, truth: Floats) -> float:
    """The largest share of pairs with end < m < truth, over all m."""
    begins, ends = np.sort(end[end < truth]), np.sort(truth[end < truth])
    if not len(begins):
        return 0.0
    inside = np.searchsorted(begins, begins, "right") - np.searchsorted(ends, begins, "right")
    return float(inside.max()) / len(end)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleets", type=int, default=4_000)
    parser.add_argument("--only", default="", help="kinds with this in their name")


def main(args: argparse.Namespace) -> int:
    """Exit status 1 if a bound is missed that docs/fleet-statistics.md does not state."""
    fleets = args.fleets
    print("| true effects differ | servers | mean | next server | Student's alone | ", end="")
    print("differ in kind | wrongly equivalent | |")
    print("|---|---|---|---|---|---|---|---|")
    unstated = 0
    for number, kind in enumerate(KINDS):
        if args.only not in kind.name:
            continue
        for k in SERVERS:
            found = coverage(kind, k, fleets, _SEED + 1_000 * number + k)
            missed = found.misses(fleets)
            stated = kind.skewed or kind.unequal or kind.two
            unstated += missed and not stated
            note = "" if not missed else "stated" if stated else "**missed**"
            false = "no verdict" if k < 5 else f"{found.false:.3f}"
            shares = found.mean, found.prediction, found.student, found.kinds
            cells = (kind.name, str(k), *(f"{share:.3f}" for share in shares), false, note)
            print(f"| {' | '.join(cells)} |", flush=True)
    false = false_differences(fleets, _SEED)
    print(f"ten servers that differ much against thirty that do not: p < .05 in {false:.3f}")
    return int(unstated > 0 or false > FALSE_DIFFERENCES)
