"""A report on clocks that were never read, and a scripted clock with faults of known size."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from numpy.typing import NDArray

from pgtare.observing.clock import probe
from pgtare.observing.clock.clocks import CLOCKS
from pgtare.observing.clock.cpuid import Leaves
from pgtare.observing.clock.diagnosis import Setup
from pgtare.observing.clock.schema import (
    Bucket,
    Cause,
    Choice,
    ClockReport,
    ClockResult,
    CoreOffset,
    Cores,
    Diagnosis,
    Exact,
    Frequency,
    Gap,
    Gaps,
    Meaning,
    Span,
    Trust,
)

needs_tsc = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone has a TSC")


BY_NAME = {clock.name: clock for clock in CLOCKS}


def even(n: int, step: int = 25, start: int = 1_000_000) -> NDArray[np.uint64]:
    """`n` readings of a faultless counter, `step` ticks apart."""
    return (np.arange(n, dtype=np.uint64) * np.uint64(step) + np.uint64(start)).astype(np.uint64)


def replay(readings: NDArray[np.uint64]) -> probe.ProbeRun:
    """What the probe finds in given readings of a counter, whose faults are known."""
    lib = probe.library()
    run = probe._new(lib)
    try:
        held = np.ascontiguousarray(readings, dtype=np.uint64)
        lib.probe_replay(run, held.ctypes.data, len(held))
        return probe._taken(run.contents, False)
    finally:
        lib.probe_free(run)


GOOD_LEAVES = Leaves(there=True, invariant=True, tsc_adjust=True, has_rdtscp=True)


def sample_setup(
    leaves: Leaves = GOOD_LEAVES, clocksource: str | None = "tsc", architecture: str = "x86_64"
) -> Setup:
    """A machine whose clock is good, but for what is named."""
    trust = Trust(
        counter=leaves.invariant and clocksource == "tsc",
        reason=f"the kernel reads the time by {clocksource}",
    )
    return Setup(clocksource, ("tsc",), leaves, leaves.invariant, architecture, trust)


def sample_clock(name: str = "tsc", read_ns: float = 8.0) -> ClockResult:
    """A clock that was read for a second."""
    return ClockResult(
        name=name,
        title=name.upper(),
        source="processor",
        duration_s=1.0,
        differences=10_000,
        mean_ns=read_ns + 1,
        read_ns=read_ns,
        loop_ns=1.0,
        step_ns=7.5,
        p50_ns=9.0,
        p99_ns=12.0,
        max_ns=30_000.0,
        still_longest=0,
        advanced_pct=100.0,
        backward=0,
        backward_largest_ns=0.0,
        histogram=[
            Bucket(up_to_ns=n, count=c)
            for n, c in ((0, 0), (1, 0), (3, 0), (7, 0), (15, 9998), (31, 0), (32767, 2))
        ],
        exact=[
            Exact(ticks=18, duration_ns=9.0, count=9900),
            Exact(ticks=24, duration_ns=12.0, count=98),
            Exact(ticks=60_000, duration_ns=30_000.0, count=2),
        ],
    )


def sample() -> ClockReport:
    """A report with something in every place."""
    return ClockReport(
        created="2026-01-02T03:04:05+00:00",
        pgtare_version="0",
        command=["pgtare", "clock"],
        machine={"cpu_model": "A processor", "host_os": "Linux 6"},
        cpu=1,
        stopped_by="time",
        diagnosis=Diagnosis(
            verdict="good",
            sentence="The clock is cheap and sane.",
            remedies=["Do nothing."],
            clocksource="tsc",
            available=["tsc", "hpet"],
            vdso=True,
            cpuid=True,
            invariant=True,
            tsc_adjust=True,
            hypervisor="KVM",
            postgres19=Choice(
                clock="tsc",
                why="CPUID says TSC_ADJUST",
                usable=True,
            ),
            modules=Trust(counter=True, reason="the kernel reads the time by tsc"),
        ),
        clocks=[sample_clock("monotonic", 18.0), sample_clock("tsc")],
        frequency=Frequency(
            hz=2_000_000_000,
            error_ppm=0.02,
            duration_s=1.5,
        ),
        cores=Cores(
            clock="counter",
            possible=1,
            note=None,
            pairs=[
                CoreOffset(
                    first=0,
                    second=1,
                    lo_ns=-50.0,
                    hi_ns=150.0,
                    rounds=5000,
                    backward=0,
                )
            ],
        ),
        gaps=Gaps(
            clock="tsc",
            duration_s=1.0,
            threshold_ns=1000.0,
            count=2,
            lost_pct=0.006,
            causes=[Cause(cause="context switches", count=1, lost_pct=0.003)],
            longest=[
                Gap(
                    at_ms=3.0,
                    duration_ns=30_000.0,
                    cause="context switch",
                    switches=1,
                    waited_ns=29_000,
                    stolen_ms=0,
                )
            ],
        ),
        meaning=[
            Meaning(
                what="a row",
                server="19",
                clock="tsc",
                cost_ns=Span(lo=15.0, likely=20.0, hi=30.0),
            )
        ],
    )
