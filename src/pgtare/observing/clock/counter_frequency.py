"""How fast the counter runs: calibrated against the kernel's clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from pgtare.errors import MeasurementError
from pgtare.observing.clock import probe
from pgtare.observing.clock.distribution import NS
from pgtare.observing.clock.probe import Pair
from pgtare.observing.clock.schema import Frequency

REPEATS = 20
REPEAT_NS = 1_900_000
#: Calibrations over short and long times that are further apart than this are a step: it is twice
#: what the kernel may slew its clock by.
STEP_PPM = 1000.0


def between(first: Pair, last: Pair) -> float:
    """Ticks a second between two pairs."""
    return (last.ticks - first.ticks) * NS / (last.ns - first.ns)


def bound_ppm(first: Pair, last: Pair, resolution_ns: float = 1.0) -> float:
    """What the error of `between` cannot exceed.

    The system clock was read somewhere within each bracket, half its width from the middle at
    most, and tells whole ns, or, without timers of high resolution, whole ticks of the kernel.
    """
    ticks = last.ticks - first.ticks
    per_ns = ticks / (last.ns - first.ns)
    return 1e6 * ((first.width + last.width) / 2 + per_ns * resolution_ns) / ticks


def repeat(n: int = REPEATS, duration_ns: int = REPEAT_NS) -> list[float]:
    """The frequency from `n` short calibrations, longer ones if the kernel's clock did not move.

    Raises MeasurementError if it does not move at all.
    """
    found: list[float] = []
    while len(found) < n:
        first, last = probe.calibrate(duration_ns)
        if last.ns > first.ns:
            found.append(between(first, last))
        elif duration_ns < NS:
            duration_ns *= 2
        else:
            raise MeasurementError("CLOCK_MONOTONIC does not move: nothing can be measured by it")
    return found


def step_ns(
    first: Pair, last: Pair, repeated: Sequence[float], resolution_ns: float = 1.0
) -> float:
    """By how much the counter stepped between the pairs, against CLOCK_MONOTONIC; 0: it did not.

    The median of the short calibrations holds although a step may fall into one of them.
    """
    if not repeated:
        return 0.0
    per_ns = statistics.median(repeated) / NS
    stepped = (last.ticks - first.ticks) / per_ns - (last.ns - first.ns)
    slewed = (last.ns - first.ns) * max(STEP_PPM / 1e6, resolution_ns / REPEAT_NS)
    return stepped if abs(stepped) > slewed or last.ticks <= first.ticks else 0.0


def frequency(first: Pair, last: Pair, repeated: Sequence[float]) -> Frequency:
    """The counter's frequency from the pairs around the whole measurement.

    If the counter stepped between them, from the median of the short calibrations.
    """
    resolution_ns = NS * time.clock_getres(time.CLOCK_MONOTONIC)
    stepped = step_ns(first, last, repeated, resolution_ns)
    if stepped:
        calibrated = statistics.median(repeated)
        error_ppm = 1e6 * max(abs(hz / calibrated - 1) for hz in repeated)
    else:
        calibrated = between(first, last)
        error_ppm = bound_ppm(first, last, resolution_ns)
    return Frequency(
        hz=round(calibrated),
        step_ns=stepped,
        error_ppm=error_ppm,
        duration_s=(last.ns - first.ns) / NS,
    )
