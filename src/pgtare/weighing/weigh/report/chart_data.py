"""Small arrays for the charts, boiled down from the observations; no chart gets more points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.blocks import UNUSABLE
from pgtare.estimate.trial.observations import Observations, UnitFlag

Floats = npt.NDArray[np.float64]

_LEFT_OUT = UNUSABLE | UnitFlag.UNBLOCKED | UnitFlag.OPEN
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

    Plain block differences, without carry-over: they show whether the effect is steady.
    """

    at_s: Floats  # (bins,) middle of each bin, seconds since the trial began
    mean: Floats
    lo: Floats
    hi: Floats


def usable(observations: Observations) -> Observations:
    """The finished units in which the arm surely was in force."""
    units: Observations = observations[observations["flags"] & _LEFT_OUT == 0]
    return units


def distributions(units: Observations, n_arms: int) -> list[Floats | None]:
    """Service time in µs at LEVELS for each arm, None if it has no unit."""
    found: list[Floats | None] = []
    for arm in range(n_arms):
        service = units["service_ns"][units["arm"] == arm]
        found.append(np.quantile(service, LEVELS) / 1000.0 if len(service) else None)
    return found


def time_course(
    units: Observations, block: list[int], thresholds_us: list[float]
) -> TimeCourse | None:
    """Body differences over time, None if there are too few whole blocks.

    thresholds_us: c of every arm; both the arm and the base end there.
    """
    n_arms = len(thresholds_us)
    start_s, service_us = _whole_blocks(units, block)
    if len(start_s) < MIN_BLOCKS:
        return None
    layout = np.sort(block)
    differences = np.stack(
        [_difference(np.minimum(service_us, c), layout, k) for k, c in enumerate(thresholds_us)]
    )  # (K, B)
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


def _difference(body: Floats, layout: npt.NDArray[np.int64], arm: int) -> Floats:
    found = body[:, layout == arm].mean(axis=1) - body[:, layout == 0].mean(axis=1)
    return np.asarray(found, dtype=np.float64)


def _whole_blocks(units: Observations, block: list[int]) -> tuple[Floats, Floats]:
    """Start in s (B,) and time in µs (B, L), columns by arm, of blocks with all their units."""
    order = np.lexsort((units["arm"], units["block"], units["backend"]))
    units = units[order]
    key = (units["backend"].astype(np.int64) << 32) | units["block"]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    sizes = np.diff(np.append(starts, len(units)))
    rows = starts[sizes == len(block)][:, np.newaxis] + np.arange(len(block))
    rows = rows[(units["arm"][rows] == np.sort(block)).all(axis=1)]
    service_us = units["service_ns"][rows] / 1000.0
    start_s = units["start_ns"][rows].min(axis=1, initial=np.iinfo(np.int64).max) / 1e9
    return np.asarray(start_s, dtype=np.float64), np.asarray(service_us, dtype=np.float64)
