"""Calibration of the estimators on recorded noise: re-drawn labels and injected effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from pgtare.estimate.blocks import Blocks, Bools, Floats, by_arm
from pgtare.estimate.effects import Effects, threshold
from pgtare.estimate.inference import Estimate
from pgtare.observations import Observations, UnitFlag

#: Pseudo-trials with an injected effect are one in this many of those without.
_INJECTED_SHARE = 4


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
    body + excess of the raw truth.
    """

    blocks: int  # of each pseudo-trial, of two units each
    false_positives: Rate  # headline body, p < 0.05 without any effect
    false_positives_plain: Rate  # the same of the plain block differences
    body_coverage: dict[str, Rate]
    raw_coverage: dict[str, Rate]


@dataclass(frozen=True)
class _Injection:
    """An effect in every unit of a window: on the unit itself, and on the next."""

    own: Callable[[Floats, np.random.Generator], Floats]
    carry: float = 0.0  # of the median service time


def _shift(x: Floats, rng: np.random.Generator) -> Floats:
    return np.full_like(x, 0.1 * float(np.median(x)))


def _proportional(x: Floats, rng: np.random.Generator) -> Floats:
    return 0.1 * x


def _tail(x: Floats, rng: np.random.Generator) -> Floats:
    """Two units in a hundred take twice the median longer."""
    return np.where(rng.random(x.shape) < 0.02, 2 * float(np.median(x)), 0.0)


_INJECTIONS = {
    "shift": _Injection(_shift),
    "proportional": _Injection(_proportional),
    "tail": _Injection(_tail),
    "carry_over": _Injection(_shift, carry=0.05),
}


def clopper_pearson(hits: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial rate (Clopper and Pearson 1934)."""
    alpha = 1 - level
    lo = float(special.betaincinv(hits, trials - hits + 1, alpha / 2)) if hits else 0.0
    hi = float(special.betaincinv(hits + 1, trials - hits, 1 - alpha / 2)) if hits < trials else 1.0
    return lo, hi


def calibrate(
    obs: Observations, *, trials: int = 4_000, blocks: int = 1_000, seed: int
) -> Calibration:
    """Re-randomise a recording into pseudo-trials of two arms and count errors.

    obs: a recording without effects, its arms ignored; every pseudo-trial is a window of `blocks`
    blocks of two consecutive units of one backend, at a random place. trials: number of
    pseudo-trials without an effect; a quarter as many for every kind of injected effect.
    Deterministic for a seed. Raises ValueError where no backend has a window's worth of units.
    """
    rng = np.random.default_rng(seed)
    windows = _Windows(obs, 2 * blocks + 1, rng)
    positive = plain_positive = 0
    for _ in range(trials):
        effects = _pseudo_trial(windows.draw(), None, rng)[0]
        positive += _excludes(effects.interval(effects.body_cost(1)), 0.0)
        plain_positive += _excludes(effects.plain(effects.body, 1), 0.0)
    injected = trials // _INJECTED_SHARE
    body = dict.fromkeys(_INJECTIONS, 0)
    raw = dict.fromkeys(_INJECTIONS, 0)
    for name, injection in _INJECTIONS.items():
        for _ in range(injected):
            effects, body_truth, raw_truth = _pseudo_trial(windows.draw(), injection, rng)
            body[name] += _covers(effects.interval(effects.body_cost(1)), body_truth)
            raw[name] += _covers(effects.interval(effects.total_cost(1)), raw_truth)
    return Calibration(
        blocks=blocks,
        false_positives=Rate(positive, trials),
        false_positives_plain=Rate(plain_positive, trials),
        body_coverage={name: Rate(hits, injected) for name, hits in body.items()},
        raw_coverage={name: Rate(hits, injected) for name, hits in raw.items()},
    )


def _excludes(interval: Estimate, value: float) -> bool:
    return value < interval.lo or value > interval.hi


def _covers(interval: Estimate, value: float) -> bool:
    return interval.lo <= value <= interval.hi


class _Windows:
    """Random windows of consecutive units of one backend."""

    def __init__(self, obs: Observations, units: int, rng: np.random.Generator) -> None:
        kept = obs[obs["flags"] & UnitFlag.UNBLOCKED == 0]
        kept = kept[np.lexsort((kept["unit"], kept["backend"]))]
        ends = np.flatnonzero(np.diff(kept["backend"])) + 1
        service_us = kept["service_ns"] / 1000.0
        self.series = [part for part in np.split(service_us, ends) if len(part) >= units]
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


def _pseudo_trial(
    x: Floats, injection: _Injection | None, rng: np.random.Generator
) -> tuple[Effects, float, float]:
    """A trial of two arms on a window, and the true cost of body and raw mean when left on.

    x: (2B + 1,) service times; the first unit is only the previous one of the second.
    """
    treated = _labels(len(x) // 2, rng)
    if injection is None:
        return _effects(x, treated), 0.0, 0.0
    own = injection.own(x, rng)
    carry = injection.carry * float(np.median(x))
    with_effect = x + own * treated
    with_effect[1:] += carry * treated[:-1]
    effects = _effects(with_effect, treated)
    always = (x + own + carry)[1:]
    never = x[1:]
    body = np.minimum(always, effects.c) - np.minimum(never, effects.c)
    return effects, float(body.mean()), float((always - never).mean())


def _labels(blocks: int, rng: np.random.Generator) -> Bools:
    """Arms (2B + 1,) in permuted blocks of two, after one unit of either arm."""
    first = rng.random(blocks) < 0.5
    labels = np.stack([first, ~first], axis=1).ravel()
    return np.concatenate(([rng.random() < 0.5], labels))


def _effects(x: Floats, treated: Bools) -> Effects:
    shape = (len(x) // 2, 2)
    arm = treated.astype(np.int64)
    before = arm[:-1].reshape(shape)
    blocks: Blocks = by_arm(
        arm=arm[1:].reshape(shape),
        service_us=x[1:].reshape(shape),
        cpu_us=np.full(shape, np.nan),
        previous=np.stack([before, np.full(shape, -1)]),
        backend=np.zeros(shape[0], dtype=np.int64),
        block=(0, 1),
    )
    return Effects(blocks, threshold(blocks.service_us))
