"""Small arrays for the charts, boiled down from the observations; no chart gets more points."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.observations import (
    NO_BLOCK,
    UNUSABLE,
    Observations,
    UnitFlag,
)
from pgtare.estimate.trial.runs import DROPPED

Floats = npt.NDArray[np.float64]

_LEFT_OUT = UNUSABLE | UnitFlag.FIRST_RUN | UnitFlag.OPEN
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


def by_position(observations: Observations, thresholds_us: list[float | None]) -> Floats | None:
    """Arm less base by the place in a later run, (arms, places), in µs; None without runs.

    thresholds_us: c of every arm; None of the base's.
    """
    rows = observations[
        (observations["flags"] & _LEFT_OUT == 0) & (observations["block"] != NO_BLOCK)
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
