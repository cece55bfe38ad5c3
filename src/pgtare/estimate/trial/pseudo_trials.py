"""Calibration of the estimators on recorded noise: re-drawn labels and injected effects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.blocks import Blocks, runs
from pgtare.estimate.trial.carry_over import Model
from pgtare.estimate.trial.design import block_layout
from pgtare.estimate.trial.effects import Effects
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.estimate.trial.outcomes import failures_p
from pgtare.estimate.trial.threshold import THRESHOLD_QUANTILE, shared_thresholds, threshold
from pgtare.estimate.trial.verdict import ALPHA

#: Pseudo-trials with an injected effect are one in this many of those without.
_INJECTED_SHARE = 4
#: Pseudo-trials with rare stalls are long, and so fewer still.
_STALL_SHARE = 16
#: Blocks of the pseudo-trials: the shortest there can be, those of weighings of one instrument
#: without a control and with one, and that of six with one, in which the base has two slots. The
#: last arm is the one that is judged.
LAYOUTS = ((0, 1), block_layout(2), block_layout(3), block_layout(8))
#: Of the transactions fail in spells, in all arms alike; and of the judged arm's, early.
_FAILING, _FAILING_EARLY = 0.02, 0.05
_SPELL = 20
#: Units of a pseudo-trial with rare stalls, at least and at most: enough that each arm has some 30
#: over the threshold, which is at the 99.9th percentile.
STALL_UNITS = (60_000, 96_000)
#: Pseudo-trials that are estimated at once, and their units: what a processor's cache holds.
_TOGETHER, _UNITS_TOGETHER = 160, 96_000


@dataclass(frozen=True)
class Rate:
    """How often something happened in a number of pseudo-trials."""

    hits: int
    trials: int

    @property
    def rate(self) -> float:
        """Hits per trial, NaN without trials."""
        return self.hits / self.trials if self.trials else float("nan")

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Two-sided Clopper-Pearson interval."""
        return clopper_pearson(self.hits, self.trials, level)


@dataclass(frozen=True)
class Calibration:
    """What re-randomised pseudo-trials say of the estimators.

    Coverage is that of 95 % intervals, by kind of injected effect: of the body's truth, and by
    body + excess of the raw truth. Only the rare stalls are put into trials long enough for the
    tail to be judged; without a recording of that length there are no trials of them.
    """

    units: int  # of each pseudo-trial
    stall_units: int  # of each pseudo-trial with rare stalls, 0 if the recording is too short
    false_positives: Rate  # headline body, p < 0.05 without any effect
    false_positives_plain: Rate  # the same of the plain block differences
    percent_differs: Rate  # the interval in percent says otherwise of zero than that in time
    false_failures: Rate  # all arms fail alike, p < 0.05
    failures_found: Rate  # one in twenty of the arm's fails early, p < 0.05
    body_coverage: dict[str, Rate]
    percent_coverage: dict[str, Rate]  # of effects on the transaction itself
    raw_coverage: dict[str, Rate]


@dataclass(frozen=True)
class _Injection:
    """A delay of a share of an arm's units, drawn by chance, and of the unit after each."""

    size: Callable[[Floats], Floats]  # the delay of each unit (N,), from its service time
    share: float = 1.0
    carry: float = 0.0  # of the median service time, after every unit of the arm

    def apply(self, x: Floats, treated: Bools, rng: np.random.Generator) -> _Injected:
        """The effect put into the treated units of service times (N,)."""
        delay, carried = self.size(x), self.carry * float(np.median(x)) if self.carry else 0.0
        hit = treated & (rng.random(len(x)) < self.share)
        found = x + np.where(hit, delay, 0.0)
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
        """The expected cost of it when left on, of the mean below c.

        The first unit is only the one before the first block, and does not count.
        """
        x = self.window[1:]
        after = x + self.carried
        mean = self.share * np.minimum(after + self.delay[1:], c)
        mean += (1 - self.share) * np.minimum(after, c)
        return float((mean - np.minimum(x, c)).mean())


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
}
#: So rare that the threshold stays among the recording's own slow units.
_STALLS = {"rare stall": _Injection(_stall, share=0.0005)}


def clopper_pearson(hits: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial rate (Clopper and Pearson 1934)."""
    alpha = 1 - level
    lo = float(scipy.special.betaincinv(hits, trials - hits + 1, alpha / 2)) if hits else 0.0
    hi = (
        float(scipy.special.betaincinv(hits + 1, trials - hits, 1 - alpha / 2))
        if hits < trials
        else 1.0
    )
    return lo, hi


def calibrate(
    obs: Observations, *, trials: int = 4_000, units: int = 3_000, seed: int
) -> Calibration:
    """Re-randomise a recording into pseudo-trials and count errors.

    obs: a recording without effects, its arms ignored; every pseudo-trial is a window of `units`
    consecutive units of one backend, at a random place, in blocks of each of LAYOUTS in turn.
    trials: number of pseudo-trials without an effect; a quarter as many for every kind of
    injected effect, a sixteenth for rare stalls, whose longer windows may join backends.
    Deterministic for a seed. Raises ValueError if no backend has a window's worth of units.
    """
    rng = np.random.default_rng(seed)
    series = _series(obs)
    windows = _Windows(series, units + 1, rng)
    positive = plain_positive = differs = failing = found = 0
    for numbers in _groups(trials):
        drawn = []
        for i in numbers:
            one = _draw(windows.draw(), LAYOUTS[i % len(LAYOUTS)], None, rng)
            drawn.append((one, _in_spells(one, rng), _early(one, rng)))
        effects_of = _effects([one for one, _, _ in drawn])
        for effects, (_, spells, early) in zip(effects_of, drawn, strict=True):
            arm = effects.blocks.n_arms - 1
            excludes = _excludes(effects.interval(effects.body_cost(arm)), 0.0)
            positive += excludes
            plain_positive += _excludes(effects.plain(effects.body, arm), 0.0)
            differs += excludes != _excludes(effects.percent(effects.body_cost(arm)), 0.0)
            failing += _failures_differ(effects, spells)
            found += _failures_differ(effects, early)
    body, in_percent = {}, {}
    for name, injection in _INJECTIONS.items():
        coverage = _coverage(windows, injection, trials // _INJECTED_SHARE, rng)
        body[name] = coverage.body
        if not injection.carry:
            in_percent[name] = coverage.percent
    joined = np.concatenate(series)
    stall_units = min(STALL_UNITS[1], len(joined) - 1)
    raw = dict.fromkeys(_STALLS, Rate(0, 0))
    if stall_units >= STALL_UNITS[0]:
        long_windows = _Windows([joined], stall_units + 1, rng)
        for name, injection in _STALLS.items():
            coverage = _coverage(long_windows, injection, trials // _STALL_SHARE, rng, LAYOUTS[1:3])
            body[name], raw[name] = coverage.body, coverage.raw
    else:
        stall_units = 0
    return Calibration(
        units=units,
        stall_units=stall_units,
        false_positives=Rate(positive, trials),
        false_positives_plain=Rate(plain_positive, trials),
        percent_differs=Rate(differs, trials),
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
    for numbers in _groups(trials, windows.units):
        drawn = [_draw(windows.draw(), layouts[i % len(layouts)], injection, rng) for i in numbers]
        for one, effects in zip(drawn, _effects(drawn), strict=True):
            arm, cost = effects.blocks.n_arms - 1, effects.body_cost(effects.blocks.n_arms - 1)
            assert one.injected is not None
            assert effects.base_c is not None
            truth = one.injected.truth(effects.c)
            body += _covers(effects.interval(cost), truth)
            base = float(np.minimum(one.injected.window[1:], effects.base_c).mean())
            in_percent += _covers(effects.percent(cost), 100 * truth / base)
            scale = effects.yardstick(arm)
            if scale.judges_tail:
                judged += 1
                total = scale.tail_interval(effects.total_cost(arm))
                raw += _covers(total, one.injected.truth(math.inf))
    return _Coverage(Rate(body, trials), Rate(in_percent, trials), Rate(raw, judged))


def _failures_differ(effects: Effects, failed: Bools) -> bool:
    """Whether the last arm is found to fail more or less often than the base."""
    blocks = effects.blocks
    return failures_p(failed, blocks.slots(blocks.n_arms - 1), blocks.slots(0)) < ALPHA


def _in_spells(drawn: _Drawn, rng: np.random.Generator) -> Bools:
    """Failures of all arms alike (B, L): in some spells of blocks every second transaction."""
    blocks, size = drawn.blocks, len(drawn.layout)
    length = max(1, _SPELL // size)
    spells = rng.random(-(-blocks // length)) < 2 * _FAILING
    return np.repeat(spells, length)[:blocks, np.newaxis] & (rng.random((blocks, size)) < 0.5)


def _early(drawn: _Drawn, rng: np.random.Generator) -> Bools:
    """Failures of the last arm alone (B, L)."""
    mine = np.asarray(sorted(drawn.layout)) == max(drawn.layout)
    failed: Bools = mine & (rng.random((drawn.blocks, len(mine))) < _FAILING_EARLY)
    return failed


def _excludes(interval: Estimate, value: float) -> bool:
    return value < interval.lo or value > interval.hi


def _covers(interval: Estimate, value: float) -> bool:
    return interval.lo <= value <= interval.hi


def _series(obs: Observations) -> list[Floats]:
    """Service times of each backend, in order."""
    kept = obs[obs["flags"] & (UnitFlag.UNBLOCKED | UnitFlag.OPEN) == 0]
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


@dataclass(frozen=True)
class _Drawn:
    """A trial on a window of service times, its effect in the last arm.

    The first unit is only the one before the first block.
    """

    layout: tuple[int, ...]
    arm: Ints  # (M,) M - 1 units are whole blocks
    service_us: Floats  # (M,) with the effect
    injected: _Injected | None

    @property
    def blocks(self) -> int:
        return (len(self.arm) - 1) // len(self.layout)


def _draw(
    x: Floats, layout: tuple[int, ...], injection: _Injection | None, rng: np.random.Generator
) -> _Drawn:
    blocks = (len(x) - 1) // len(layout)
    arms = rng.permuted(np.tile(layout, (blocks, 1)), axis=1)
    before = layout[int(rng.integers(len(layout)))]
    arm = np.concatenate(([before], arms.ravel())).astype(np.int64)
    x = x[: len(arm)]
    if injection is None:
        return _Drawn(layout, arm, x, None)
    injected = injection.apply(x, np.asarray(arm == max(layout), dtype=np.bool_), rng)
    return _Drawn(layout, arm, injected.service_us, injected)


def _groups(trials: int, units: int = 0) -> list[range]:
    """Numbers of the trials that are estimated together: few if they are long."""
    size = max(1, min(_TOGETHER, _UNITS_TOGETHER // max(units, 1)))
    return [range(start, min(start + size, trials)) for start in range(0, trials, size)]


def _effects(drawn: list[_Drawn]) -> list[Effects]:
    """The estimators on each trial, in the order given; those of one layout are computed at once.

    What is done at once gives the same as one by one. It is several times faster, as the trials are
    short.
    """
    found: dict[int, Effects] = {}
    for layout in {one.layout for one in drawn}:
        places = [place for place, one in enumerate(drawn) if one.layout == layout]
        for place, effects in zip(places, _alike([drawn[p] for p in places]), strict=True):
            found[place] = effects
    return [found[place] for place in range(len(drawn))]


def _alike(drawn: list[_Drawn]) -> list[Effects]:
    """`_effects` of trials of one layout and length."""
    layout, blocks, parts = drawn[0].layout, drawn[0].blocks, len(drawn)
    arm = np.stack([one.arm for one in drawn])
    shape = (parts * blocks, len(layout))
    order = np.argsort(arm[:, 1:].reshape(shape), axis=1, kind="stable")
    service_us = np.stack([one.service_us[1:] for one in drawn]).reshape(shape)
    previous = np.full((2, *shape), -1)
    previous[0] = np.take_along_axis(arm[:, :-1].reshape(shape), order, axis=1)
    cluster = runs(np.zeros(blocks, dtype=np.int64))
    clusters = int(cluster[-1]) + 1
    together = Blocks(
        service_us=np.take_along_axis(service_us, order, axis=1),
        cpu_us=np.broadcast_to(np.nan, shape),
        previous=previous,
        backend=np.zeros(parts * blocks, dtype=np.int64),
        aborted=np.broadcast_to(np.False_, shape),
        cluster=(np.arange(parts)[:, np.newaxis] * clusters + cluster).ravel(),
        layout=tuple(sorted(layout)),
        n_arms=len(set(layout)),
    )
    # as in a weighing: the second arm is a control unless it is the judged one
    reference = (0, 1) if together.n_arms > 2 else (0,)
    judged = together.n_arms - 1
    by_trial = together.service_us.reshape(parts, blocks, len(layout))
    of_base = by_trial[:, :, together.columns(reference)].reshape(parts, -1)
    of_arm = by_trial[:, :, together.slots(judged)].reshape(parts, -1)
    base_c, c = np.quantile(of_base, THRESHOLD_QUANTILE, axis=1), shared_thresholds(of_base, of_arm)
    body = np.minimum(together.service_us, np.repeat(c, blocks)[:, np.newaxis])
    model = Model(together, 1, parts)
    fits = model.solve_parts(body)
    return [
        Effects(
            _part(together, slice(part * blocks, (part + 1) * blocks), cluster),
            float(c[part]),
            base_c=float(base_c[part]),
            body_fit=fits[part],
            models={1: model} if parts == 1 else {},
        )
        for part in range(parts)
    ]


def _part(together: Blocks, rows: slice, cluster: Ints) -> Blocks:
    return Blocks(
        service_us=together.service_us[rows],
        cpu_us=together.cpu_us[rows],
        previous=together.previous[:, rows],
        backend=together.backend[rows],
        aborted=together.aborted[rows],
        cluster=cluster,
        layout=together.layout,
        n_arms=together.n_arms,
    )
