"""Calibration of the estimators on recorded noise: re-drawn labels and injected effects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.design import Runs, block_layout
from pgtare.estimate.trial.effects import Effects, Strata, effects_of
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.estimate.trial.outcomes import FailedRuns
from pgtare.estimate.trial.runs import DROPPED
from pgtare.estimate.trial.strata import LaterRuns, Units
from pgtare.estimate.trial.threshold import threshold
from pgtare.estimate.trial.verdict import ALPHA

#: Pseudo-trials with an injected effect are one in this many of those without.
_INJECTED_SHARE = 4
#: Pseudo-trials with rare stalls are long, and so fewer still.
_STALL_SHARE = 16
#: Blocks of the pseudo-trials: those of weighings of one instrument without a control and with one,
#: and that of six with one, in which the base has two runs. The last arm is the one that is judged.
LAYOUTS = (block_layout(2), block_layout(3), block_layout(8))
#: Of the transactions fail in spells, in all arms alike; and of the judged arm's, early.
_FAILING, _FAILING_EARLY = 0.02, 0.05
_SPELL = 20
#: Units of a run that a cold start makes slower.
_COLD = 4
#: Units of a pseudo-trial with rare stalls, at least and at most: enough that each arm has some 30
#: over the threshold, which is at the 99.9th percentile.
STALL_UNITS = (90_000, 144_000)


@dataclass(frozen=True)
class Rate:
    """How often something happened in a number of pseudo-trials."""

    hits: int
    trials: int

    @property
    def rate(self) -> float:
        """Hits per trial, NaN without trials."""
        return self.hits / self.trials if self.trials else float("nan")


@dataclass(frozen=True)
class Calibration:
    """What re-randomised pseudo-trials say of the estimators.

    Coverage is that of 95 % intervals, by kind of injected effect: of the body's truth, and by
    body + excess of the raw truth. Only the rare stalls are put into trials long enough for the
    tail to be judged; without a recording of that length there are no trials of them.
    """

    false_positives: Rate  # headline body, p < 0.05 without any effect
    false_failures: Rate  # all arms fail alike, p < 0.05
    failures_found: Rate  # one in twenty of the arm's fails early, p < 0.05
    body_coverage: dict[str, Rate]
    percent_coverage: dict[str, Rate]
    raw_coverage: dict[str, Rate]


@dataclass(frozen=True)
class _Injection:
    """A delay of a share of an arm's units, drawn by chance, and of the unit after each."""

    size: Callable[[Floats], Floats]  # the delay of each unit (N,), from its service time
    share: float = 1.0
    carry: float = 0.0  # of the median service time, after every unit of the arm
    cold: float = 0.0  # likewise, in the first units of each of its runs

    def apply(self, x: Floats, place: _Place, rng: np.random.Generator) -> _Injected:
        """The effect put into the last arm's units of service times (N,)."""
        median, treated = float(np.median(x)), place.treated
        delay, carried = self.size(x), self.carry * median
        hit = treated & (rng.random(len(x)) < self.share)
        found = x + np.where(hit, delay, 0.0)
        found += self.cold * median * (treated & (place.position < _COLD))
        found[1:] += carried * treated[:-1]
        return _Injected(found, x, delay, self.share, carried)


class _Injected(NamedTuple):
    """Service times with an effect (N,), and what it is."""

    service_us: Floats
    window: Floats  # without it
    delay: Floats
    share: float  # of the units that are delayed
    carried: float  # to the next one

    def truth(self, c: float) -> float:
        """The expected cost of it when left on, of the mean below c."""
        x = self.window
        after = x + self.carried
        mean = self.share * np.minimum(after + self.delay, c)
        mean += (1 - self.share) * np.minimum(after, c)
        return float((mean - np.minimum(x, c)).mean())


@dataclass(frozen=True)
class _Place:
    """Where each unit (N,) of a pseudo-trial is."""

    layout: tuple[int, ...]
    arm: Ints
    block: Ints
    run: Ints  # in the block
    position: Ints  # in the run

    @property
    def judged(self) -> int:
        """The arm that is judged: the last one."""
        return max(self.layout)

    @property
    def clusters(self) -> Ints:
        """The blocks; the last one is cut short, and part of the one before, as in a trial."""
        last = int(self.block[-1])
        mine = self.block == last
        whole = np.count_nonzero(mine) == len(self.layout) * (int(self.position[mine].max()) + 1)
        return self.block if whole else np.minimum(self.block, max(last - 1, 0))

    @property
    def treated(self) -> Bools:
        """The judged arm's units."""
        return np.asarray(self.arm == self.judged, dtype=np.bool_)


def _tenth(x: Floats) -> Floats:
    return np.full_like(x, 0.1 * float(np.median(x)))


def _stall(x: Floats) -> Floats:
    """Long enough to lie above the threshold whatever unit it hits."""
    return np.full_like(x, 20 * float(np.median(x)) + threshold(x))


_INJECTIONS = {
    "shift": _Injection(_tenth),
    "proportional effect": _Injection(lambda x: 0.1 * x),
    "delay of one in fifty": _Injection(
        lambda x: np.full_like(x, 2 * float(np.median(x))), share=0.02
    ),
    "carry-over": _Injection(_tenth, carry=0.05),
    "cold start": _Injection(_tenth, cold=0.5),
}
#: So rare that the threshold stays among the recording's own slow units.
_STALLS = {"rare stall": _Injection(_stall, share=0.0005)}


def calibrate(
    obs: Observations, *, trials: int = 4_000, units: int = 12_000, seed: int
) -> Calibration:
    """Re-randomise a recording into pseudo-trials and count errors.

    obs: a recording without effects, its arms ignored; every pseudo-trial is a window of `units`
    consecutive units of one backend, at a random place, in runs of blocks of each of LAYOUTS in
    turn. trials: number of pseudo-trials without an effect; a quarter as many for every kind of
    injected effect, a sixteenth for rare stalls, whose longer windows may join backends.
    Deterministic for a seed. Raises ValueError if no backend has a window's worth of units.
    """
    rng = np.random.default_rng(seed)
    series = _series(obs)
    windows = _Windows(series, units, rng)
    positive = failing = found = 0
    for i in range(trials):
        x, place = windows.draw(), _drawn(units, LAYOUTS[i % len(LAYOUTS)], rng)
        effects, _ = _effects(x, place)
        positive += not _covers(effects.interval(effects.body), 0.0)
        failing += _failures_differ(x, place, _in_spells(len(x), rng))
        found += _failures_differ(x, place, place.treated & (rng.random(len(x)) < _FAILING_EARLY))
    body, in_percent = {}, {}
    for name, injection in _INJECTIONS.items():
        coverage = _coverage(windows, injection, trials // _INJECTED_SHARE, rng)
        body[name], in_percent[name] = coverage.body, coverage.percent
    joined = np.concatenate(series)
    stall_units = min(STALL_UNITS[1], len(joined))
    raw = dict.fromkeys(_STALLS, Rate(0, 0))
    if stall_units >= STALL_UNITS[0]:
        long_windows = _Windows([joined], stall_units, rng)
        for name, injection in _STALLS.items():
            coverage = _coverage(long_windows, injection, trials // _STALL_SHARE, rng, LAYOUTS[:2])
            body[name], raw[name] = coverage.body, coverage.raw
    return Calibration(
        false_positives=Rate(positive, trials),
        false_failures=Rate(failing, trials),
        failures_found=Rate(found, trials),
        body_coverage=body,
        percent_coverage=in_percent,
        raw_coverage=raw,
    )


class _Coverage(NamedTuple):
    """How often the body's truth is covered, in time and in percent, and that of the raw mean."""

    body: Rate
    percent: Rate
    raw: Rate  # of the trials that judge it


def _coverage(
    windows: _Windows,
    injection: _Injection,
    trials: int,
    rng: np.random.Generator,
    layouts: tuple[tuple[int, ...], ...] = LAYOUTS,
) -> _Coverage:
    body = in_percent = raw = judged = 0
    for i in range(trials):
        place = _drawn(windows.units, layouts[i % len(layouts)], rng)
        injected = injection.apply(windows.draw(), place, rng)
        effects, base_c = _effects(injected.service_us, place)
        compared = effects.compared()
        truth = injected.truth(effects.c)
        us = effects.interval(effects.body)
        body += _covers(us, truth)
        base = float(np.minimum(injected.window, base_c).mean())
        in_percent += _covers(compared.scale.percent(us), 100 * truth / base)
        if compared.scale.judges_tail:
            judged += 1
            raw += _covers(compared.scale.tail_interval(compared.total), injected.truth(math.inf))
    return _Coverage(Rate(body, trials), Rate(in_percent, trials), Rate(raw, judged))


def _failures_differ(x: Floats, place: _Place, failed: Bools) -> bool:
    """Whether the last arm is found to fail more or less often than the base."""
    run = place.block * len(place.layout) + place.run
    size = np.bincount(run)
    _, first = np.unique(run, return_index=True)
    found = FailedRuns(
        block=place.block[first],
        arm=place.arm[first],
        failed=np.bincount(run, failed).astype(np.float64),
        size=size.astype(np.float64),
        service_us=x,
        aborted=failed,
        arm_of_unit=place.arm,
        layout=place.layout,
    )
    return found.p(place.judged) < ALPHA


def _in_spells(units: int, rng: np.random.Generator) -> Bools:
    """Failures of all arms alike (N,): in some spells every second transaction."""
    spells = rng.random(-(-units // _SPELL)) < 2 * _FAILING
    failed: Bools = np.repeat(spells, _SPELL)[:units] & (rng.random(units) < 0.5)
    return failed


def _covers(interval: Estimate, value: float) -> bool:
    return interval.lo <= value <= interval.hi


def _series(obs: Observations) -> list[Floats]:
    """Service times of each backend, in order."""
    kept = obs[obs["flags"] & (UnitFlag.FIRST_RUN | UnitFlag.OPEN) == 0]
    kept = kept[np.lexsort((kept["unit"], kept["backend"]))]
    ends = np.flatnonzero(np.diff(kept["backend"])) + 1
    return list(np.split(kept["service_ns"] / 1000.0, ends))


class _Windows:
    """Random windows of consecutive units of one series."""

    def __init__(self, series: list[Floats], units: int, rng: np.random.Generator) -> None:
        self.series = [part for part in series if len(part) >= units]
        if not self.series:
            raise ValueError(f"no session of the recording has {units} transactions")
        places = np.array([len(part) - units + 1 for part in self.series], dtype=np.float64)
        self.chance = np.cumsum(places / places.sum())
        self.units, self.rng = units, rng

    def draw(self) -> Floats:
        """Service times (units,) of a window, every window being as likely."""
        which = int(np.searchsorted(self.chance, self.rng.random(), side="right"))
        series = self.series[min(which, len(self.series) - 1)]
        start = int(self.rng.integers(len(series) - self.units + 1))
        return series[start : start + self.units]


def _drawn(units: int, layout: tuple[int, ...], rng: np.random.Generator) -> _Place:
    """Runs of so many units; the last block is cut short."""
    runs = Runs()
    length = rng.integers(
        runs.shortest, runs.longest + 1, units // len(layout) // runs.shortest + 1
    )
    blocks = int(np.searchsorted(np.cumsum(length) * len(layout), units)) + 1
    length = np.repeat(length[:blocks], len(layout))
    order = rng.permuted(np.tile(layout, (blocks, 1)), axis=1).ravel()
    starts = np.cumsum(length) - length
    number = np.repeat(np.arange(len(length)), length)[:units]
    return _Place(
        layout=layout,
        arm=order[number],
        block=number // len(layout),
        run=number % len(layout),
        position=np.arange(units) - starts[number],
    )


def _effects(x: Floats, place: _Place) -> tuple[Effects, float]:
    """The estimators of the judged arm, and the threshold of the base's own body."""
    kept = place.position >= DROPPED
    cluster = place.clusters
    units = Units(
        service_us=x[kept],
        cpu_us=x[kept],
        arm=place.arm[kept],
        cluster=cluster[kept],
        open=np.zeros(int(kept.sum()), dtype=np.bool_),
        n_clusters=int(cluster[-1]) + 1,
    )
    # as in a weighing: the second arm is a control unless it is the judged one
    reference = (0, 1) if place.judged > 1 else (0,)
    base_c, _, found = effects_of(Strata(LaterRuns(units)), reference, [place.judged])
    return found[place.judged], base_c
