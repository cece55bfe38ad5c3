"""Where the reading thread was held up: how much time that took, and what the kernel says of it."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from pgtare.observing.clock.distribution import Distribution
from pgtare.observing.clock.probe import DIRECT, ProbeRun
from pgtare.observing.clock.probe import Gap as ProbeGap
from pgtare.observing.clock.schema import Cause, Gap, Gaps

#: A gap is longer than this, and than this many ordinary readings.
LEAST_NS = 1_000.0
MEDIANS = 5
LONGEST = 10


def gaps(clock: str, recording: ProbeRun, seen: Distribution, hypervisor: bool) -> Gaps | None:
    """Time lost in the run of a clock; None if the clock did not move."""
    median, observed = seen.quantile(0.5), seen.observed()
    if median is None or not observed:
        return None
    threshold = max(LEAST_NS * seen.hz / 1e9, MEDIANS * median)
    long = recording.ticks >= threshold
    ticks, counts = recording.ticks[long], recording.counts[long]
    switched = recording.switched[long]

    def cause(name: str, these: NDArray[np.uint64]) -> Cause:
        """These gaps, and the time that they took beyond an ordinary reading."""
        pairs = zip(ticks.tolist(), these.tolist(), strict=True)
        beyond: int = sum((length - median) * n for length, n in pairs)
        return Cause(cause=name, count=int(these.sum()), lost_pct=100.0 * beyond / observed)

    asked, none = ticks >= DIRECT, np.zeros_like(counts)
    causes = [
        cause("context switches", switched),
        cause(_others(hypervisor), np.where(asked, counts - switched, none)),
    ]
    if not asked.all():
        causes.append(cause("too short to tell", np.where(asked, none, counts)))
    return Gaps(
        clock=clock,
        duration_s=seen.ns(observed) / 1e9,
        threshold_ns=seen.ns(threshold),
        count=sum(one.count for one in causes),
        lost_pct=sum(one.lost_pct for one in causes),
        causes=causes,
        longest=[
            _gap(gap, seen, hypervisor)
            for gap in recording.gaps[:LONGEST]
            if gap.ticks >= threshold
        ],
    )


def _others(hypervisor: bool) -> str:
    return "interrupts and the hypervisor" if hypervisor else "interrupts"


def _gap(gap: ProbeGap, seen: Distribution, hypervisor: bool) -> Gap:
    stolen = None if gap.stolen is None else gap.stolen * 1000 // os.sysconf("SC_CLK_TCK")
    causes = []
    if gap.switches:
        causes.append("context switch")
    if stolen:
        causes.append("stolen by other guests")
    return Gap(
        at_ms=seen.ns(gap.at) / 1e6,
        duration_ns=seen.ns(gap.ticks),
        cause=" and ".join(causes) or _others(hypervisor).replace(" and ", " or "),
        switches=gap.switches,
        waited_ns=gap.waited_ns,
        stolen_ms=stolen,
    )
