"""Where the reading thread was held up: how much time that took, and what the kernel says of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

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


def interrupts_now(cpu: int) -> dict[str, int]:
    """Interrupts by name that the kernel has counted on a processor; empty if it does not tell."""
    return interrupts(_read("/proc/interrupts"), cpu)


def interrupts(text: str, cpu: int) -> dict[str, int]:
    """Interrupts by name from /proc/interrupts, on one processor."""
    lines = text.splitlines()
    if not lines:
        return {}
    columns = lines[0].split()
    wanted = [i for i, name in enumerate(columns) if name == f"CPU{cpu}"]
    found = {}
    for line in lines[1:]:
        number, _, rest = line.partition(":")
        fields = rest.split(maxsplit=len(columns))
        counts = [int(field) for field in fields[: len(columns)] if field.isdigit()]
        if len(counts) < len(columns):
            continue  # ERR and MIS count for the whole machine
        about = fields[len(columns)].strip() if len(fields) > len(columns) else ""
        # a device's line tells its controller first and its name last
        what = about.split()[-1] if number.strip().isdigit() and about else about
        found[f"{number.strip()} {what}".strip()] = sum(counts[i] for i in wanted)
    return found


def gaps(
    clock: str,
    recording: ProbeRun,
    seen: Distribution,
    before: dict[str, int],
    after: dict[str, int],
    hypervisor: bool,
) -> Gaps | None:
    """Time lost in the run of a clock; None if the clock did not move."""
    median, observed = seen.quantile(0.5), seen.observed()
    if median is None or not observed:
        return None
    threshold = max(LEAST_NS * seen.hz / 1e9, MEDIANS * median)
    long = recording.ticks >= threshold
    found = _Long(
        recording.ticks[long], recording.counts[long], recording.switched[long], median, observed
    )
    delta = {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}
    return Gaps(
        clock=clock,
        duration_s=seen.ns(observed) / 1e9,
        threshold_ns=seen.ns(threshold),
        count=int(found.counts.sum()),
        lost_pct=found.lost_pct(found.counts),
        causes=found.causes(_others(hypervisor)),
        longest=[
            _gap(gap, seen, hypervisor)
            for gap in recording.gaps[:LONGEST]
            if gap.ticks >= threshold
        ],
        interrupts=dict(sorted(delta.items(), key=lambda item: -item[1])),
    )


@dataclass(frozen=True)
class _Long:
    """The differences that are gaps, in ticks, with the median and the sum of all."""

    ticks: NDArray[np.int64]
    counts: NDArray[np.uint64]
    switched: NDArray[np.uint64]
    median: int
    observed: int

    def lost_pct(self, counts: NDArray[np.uint64]) -> float:
        """Time that these took beyond an ordinary reading."""
        pairs = zip(self.ticks.tolist(), counts.tolist(), strict=True)
        beyond: int = sum((ticks - self.median) * n for ticks, n in pairs)
        return 100.0 * beyond / self.observed

    def causes(self, others: str) -> list[Cause]:
        """Switched out, not switched out, and too short for the kernel to be asked."""
        asked, none = self.ticks >= DIRECT, np.zeros_like(self.counts)
        rest = np.where(asked, self.counts - self.switched, none)
        short = np.where(asked, none, self.counts)
        found = [("context switches", self.switched), (others, rest)]
        if short.any():
            found.append(("too short to tell", short))
        return [
            Cause(cause=cause, count=int(counts.sum()), lost_pct=self.lost_pct(counts))
            for cause, counts in found
        ]


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


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
