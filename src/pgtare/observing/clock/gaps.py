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
_STEAL_FIELD = 7


@dataclass(frozen=True)
class Kernel:
    """What the kernel has counted on one processor; None if it does not tell."""

    interrupts: dict[str, int]
    stolen_ms: int | None


def kernel_now(cpu: int | None) -> Kernel:
    """Counters of a processor, of all if `cpu` is None."""
    return Kernel(interrupts(_read("/proc/interrupts"), cpu), stolen_ms(_read("/proc/stat"), cpu))


def interrupts(text: str, cpu: int | None) -> dict[str, int]:
    """Interrupts by name from /proc/interrupts, on one processor or on all."""
    lines = text.splitlines()
    if not lines:
        return {}
    columns = lines[0].split()
    wanted = [i for i, name in enumerate(columns) if cpu is None or name == f"CPU{cpu}"]
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


def stolen_ms(text: str, cpu: int | None) -> int | None:
    """Time that other guests took, in ms, from /proc/stat.

    psutil tells processors by their place in a list, in which those that are offline are missing.
    """
    name = "cpu" if cpu is None else f"cpu{cpu}"
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == name and len(fields) > _STEAL_FIELD + 1:
            return int(fields[_STEAL_FIELD + 1]) * 1000 // os.sysconf("SC_CLK_TCK")
    return None


def gaps(
    clock: str,
    recording: ProbeRun,
    seen: Distribution,
    before: Kernel,
    after: Kernel,
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
    delta = {
        name: n - before.interrupts.get(name, 0)
        for name, n in after.interrupts.items()
        if n > before.interrupts.get(name, 0)
    }
    stolen = None
    if before.stolen_ms is not None and after.stolen_ms is not None:
        stolen = after.stolen_ms - before.stolen_ms
    return Gaps(
        clock=clock,
        duration_s=seen.ns(observed) / 1e9,
        threshold_ns=seen.ns(threshold),
        count=int(found.counts.sum()),
        lost_pct=found.lost_pct(found.counts),
        causes=found.causes(
            _others(hypervisor),
            _evidence(delta, stolen),
            f"the kernel is asked about gaps from {seen.ns(DIRECT) / 1000:.1f} µs on",
        ),
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

    def causes(self, others: str, known: str, unknown: str) -> list[Cause]:
        """Switched out, not switched out, and too short for the kernel to be asked."""
        asked, none = self.ticks >= DIRECT, np.zeros_like(self.counts)
        rest = np.where(asked, self.counts - self.switched, none)
        short = np.where(asked, none, self.counts)
        found = [
            (
                "context switches",
                self.switched,
                "the thread's own count of switches rose during these gaps",
            ),
            (others, rest, known),
        ]
        if short.any():
            found.append(("too short to tell", short, unknown))
        return [
            Cause(
                cause=cause,
                count=int(counts.sum()),
                lost_pct=self.lost_pct(counts),
                evidence=evidence,
            )
            for cause, counts, evidence in found
        ]


def _others(hypervisor: bool) -> str:
    return "interrupts and the hypervisor" if hypervisor else "interrupts"


def _evidence(delta: dict[str, int], stolen: int | None) -> str:
    evidence = f"{sum(delta.values()):,} interrupts on this processor"
    if stolen is None:
        return f"{evidence}; the kernel does not report steal"
    return f"{evidence}, {stolen:,} ms stolen by other guests (counted in steps of 10 ms)"


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
