"""Small arrays for the charts, boiled down from the observations; no chart gets more points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.observations import (
    NO_BLOCK,
    NO_SLICE,
    UNUSABLE,
    Observations,
    UnitFlag,
)
from pgtare.estimate.trial.runs import DROPPED

Floats = npt.NDArray[np.float64]

_LEFT_OUT = UNUSABLE | UnitFlag.FIRST_RUN | UnitFlag.OPEN
TIME_BINS = 30
#: A time bin with fewer blocks is left blank.
MIN_BLOCKS = 10
#: Levels of a distribution's curve, dense in both tails.
LEVELS: Floats = np.unique(
    np.concatenate(
        [
            np.linspace(0.001, 0.01, 10),
            np.linspace(0.01, 0.99, 197),
            1 - np.geomspace(0.01, 0.001, 20),
        ]
    )
)


@dataclass(frozen=True)
class TimeCourse:
    """Body difference from the base by time of the trial; all (arms, bins), in µs.

    Plain differences of blocks: they show whether the effect is steady.
    """

    at_s: Floats  # (bins,) middle of each bin, seconds since the trial began
    mean: Floats
    lo: Floats
    hi: Floats


def usable(observations: Observations) -> Observations:
    """The finished units in which the arm surely was in force, and had been for a while."""
    kept = (observations["flags"] & _LEFT_OUT == 0) & (observations["position"] >= DROPPED)
    units: Observations = observations[kept]
    return units


def distributions(units: Observations, n_arms: int) -> list[Floats | None]:
    """Service time in µs at LEVELS for each arm, None if it has no unit."""
    found: list[Floats | None] = []
    for arm in range(n_arms):
        service = units["service_ns"][units["arm"] == arm]
        found.append(np.quantile(service, LEVELS) / 1000.0 if len(service) else None)
    return found


def time_course(units: Observations, thresholds_us: list[float]) -> TimeCourse | None:
    """Body differences over time, None if there are too few blocks.

    thresholds_us: c of every arm; both the arm and the base end there.
    """
    n_arms = len(thresholds_us)
    if not len(units):
        return None
    _, starts, block = np.unique(_block_of(units), return_index=True, return_inverse=True)
    start_s = units["start_ns"][starts] / 1e9
    service_us, arm = units["service_ns"] / 1000.0, units["arm"]
    differences = np.stack(
        [_difference(np.minimum(service_us, c), arm, block, k) for k, c in enumerate(thresholds_us)]
    )  # (K, B)
    whole = np.isfinite(differences).all(axis=0)
    if np.count_nonzero(whole) < MIN_BLOCKS:
        return None
    differences, start_s = differences[:, whole], start_s[whole]
    edges = np.linspace(start_s.min(), start_s.max(), TIME_BINS + 1)
    which = np.clip(np.searchsorted(edges, start_s, side="right") - 1, 0, TIME_BINS - 1)
    mean = np.full((n_arms, TIME_BINS), np.nan)
    half = mean.copy()
    for i in range(TIME_BINS):
        inside = differences[:, which == i]
        if inside.shape[1] >= MIN_BLOCKS:
            mean[:, i] = inside.mean(axis=1)
            half[:, i] = 1.96 * inside.std(axis=1, ddof=1) / np.sqrt(inside.shape[1])
    return TimeCourse((edges[:-1] + edges[1:]) / 2, mean, mean - half, mean + half)


def _block_of(units: Observations) -> npt.NDArray[np.int64]:
    """A number for each unit's block; in slices, for some slices in a row of all sessions."""
    own = (units["backend"].astype(np.int64) << 32) | units["block"]
    in_slices = units["slice"] != NO_SLICE
    return np.asarray(np.where(in_slices, -1 - units["slice"].astype(np.int64) // 8, own))


def _difference(
    body: Floats, arms: npt.NDArray[np.uint8], block: npt.NDArray[np.int64], arm: int
) -> Floats:
    """Of an arm's mean and the base's in each block; NaN where one of them is missing."""
    n = int(block.max()) + 1

    def mean(k: int) -> Floats:
        mine = arms == k
        with np.errstate(invalid="ignore"):
            found = np.bincount(block[mine], body[mine], n) / np.bincount(block[mine], minlength=n)
        return np.asarray(found, dtype=np.float64)

    return mean(arm) - mean(0)


def by_position(observations: Observations, thresholds_us: list[float | None]) -> Floats | None:
    """Arm less base by the place in a later run, (arms, places), in µs; None without runs.

    thresholds_us: c of every arm; None of the base's.
    """
    left_out = UNUSABLE | UnitFlag.FIRST_RUN | UnitFlag.OPEN
    rows = observations[
        (observations["flags"] & left_out == 0) & (observations["block"] != NO_BLOCK)
    ]
    if not len(rows):
        return None
    places = int(rows["position"].max()) + 1
    found = np.full((len(thresholds_us), places), np.nan)
    service_us = rows["service_ns"] / 1000.0
    position = rows["position"].astype(np.int64)

    def means(arm: int, c: float) -> Floats:
        mine = rows["arm"] == arm
        sums = np.bincount(position[mine], np.minimum(service_us[mine], c), places)
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / np.bincount(position[mine], minlength=places))

    for arm, c in enumerate(thresholds_us):
        if arm and c is not None:
            found[arm] = means(arm, c) - means(0, c)
    return found
