"""How fast the counter runs: calibrated against the kernel's clock, compared with stated ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from pgtare.errors import MeasurementError
from pgtare.observing.clock import probe
from pgtare.observing.clock.cpuid import Leaves
from pgtare.observing.clock.distribution import NS
from pgtare.observing.clock.probe import Pair
from pgtare.observing.clock.schema import Frequency, Stated

REPEATS = 20
REPEAT_NS = 1_900_000
#: The kernel may slew its clock by as much, so a true frequency may look so far off,
SLEW_PPM = 500.0
#: but seldom does by more than this: a frequency that is stated is confirmed within it only.
USUAL_SLEW_PPM = 50.0
#: Calibrations over short and long times that are further apart than this are no slew, but a step.
STEP_PPM = 2 * SLEW_PPM
_TRUSTED = "agrees"


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


def frequency(
    first: Pair, last: Pair, repeated: Sequence[float], leaves: Leaves, bare_metal: bool
) -> Frequency:
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
    stated = _stated(leaves, bare_metal, calibrated, error_ppm)
    trusted = next((s for s in stated if s.note == _TRUSTED and s.hz), None)
    return Frequency(
        hz=round(calibrated),
        source="calibration" if trusted is None else f"calibration, confirmed by {trusted.by}",
        step_ns=stepped,
        error_ppm=error_ppm,
        duration_s=(last.ns - first.ns) / NS,
        stated=stated,
    )


def _stated(leaves: Leaves, bare_metal: bool, calibrated: float, error_ppm: float) -> list[Stated]:
    found = _kernel(calibrated, error_ppm)
    architecture = probe.architecture_hz()
    if architecture is not None:
        return [*found, _judged("CNTFRQ_EL0", architecture, calibrated, error_ppm, None)]
    if not leaves.there:
        note = "this machine has no CPUID, so the frequency is known by calibration alone"
        return [*found, Stated(by="CPUID", hz=None, difference_ppm=None, note=note)]
    said: list[tuple[str, int | None, str | None]]
    if bare_metal:
        said = [
            ("CPUID leaf 0x15", leaves.crystal_hz, None),
            ("CPUID leaf 0x16", leaves.nominal_hz, "a nominal frequency in whole MHz"),
        ]
    else:
        said = [("CPUID leaf 0x40000010", leaves.hypervisor_hz, None)]
    for by, hz, doubt in said:
        if hz is not None:
            found.append(_judged(by, hz, calibrated, error_ppm, doubt))
    if not any(hz for _, hz, _ in said):
        names = " and ".join(by.removeprefix("CPUID ") for by, _, _ in said)
        note = f"{names} {'is' if len(said) == 1 else 'are'} empty: nothing but calibration tells"
        found.append(Stated(by="CPUID", hz=None, difference_ppm=None, note=note))
    return found


def _judged(by: str, hz: int, calibrated: float, error_ppm: float, doubt: str | None) -> Stated:
    off = 1e6 * (hz / calibrated - 1)
    if abs(off) > SLEW_PPM:
        note = "not trusted: further from the calibration than the kernel's clock can be slewed"
    elif doubt is None and abs(off) > USUAL_SLEW_PPM + error_ppm:
        note = "not confirmed: as far off as only a kernel clock being slewed hard would explain"
    else:
        note = doubt or _TRUSTED
    return Stated(by=by, hz=hz, difference_ppm=off, note=note)


def _kernel(calibrated: float, error_ppm: float) -> list[Stated]:
    """The kernel's own figure, from the page of a perf event, if that may be read and has one."""
    rate = probe.kernel_rate()
    if isinstance(rate, int):
        return []
    mult, shift = rate
    hz = round((NS << shift) / mult)
    return [_judged("kernel (perf event page)", hz, calibrated, error_ppm, None)]
