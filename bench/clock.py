"""The probe's loops and pg_test_timing of installed servers, in alternating runs.

Average loop times are compared by elapsed time and by CPU time: the second is what a busy machine
leaves comparable. Then, what the recording loop adds to one that only reads, and 200 short
calibrations against a long one.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pgtare.observing.clock import counter_frequency, probe
from pgtare.observing.clock.clocks import CLOCKS, Clock, of_machine
from pgtare.observing.clock.distribution import NS
from pgtare.observing.clock.survey import weigh
from pgtare.postgres.binaries import from_wheel

TAKES = "5 minutes"

#: A section of pg_test_timing 19 to the clock it reads; before 19 there was one without a title.
_SECTIONS = {"System clock source": "monotonic", "Clock source": "tscp", "Fast clock source": "tsc"}
_MEAN = re.compile(
    r"(?:Average loop|Per loop) time including overhead: ([\d.]+) (ns|[uµ]s|nsec|usec)"
)


def installed(named: Sequence[Path]) -> dict[str, Path]:
    """pg_test_timing of the wheel and of Debian's servers, and those named, by version."""
    found = {}
    candidates = [from_wheel().pg_config.with_name("pg_test_timing")]
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_test_timing"))
    candidates += named
    for path in candidates:
        if path.exists():
            done = subprocess.run([path, "-V"], capture_output=True, text=True, check=True)
            found[done.stdout.split(") ")[1].split()[0]] = path
    return found


@dataclass(frozen=True)
class Run:
    """Average loop time of a run in ns: as the clock on the wall has it, and by CPU time."""

    wall_ns: float
    cpu_ns: float


def theirs(program: Path, seconds: int, cpu: int) -> dict[str, Run]:
    """A run of pg_test_timing by clock, on the same processor as ours.

    Its CPU time counts for all its clocks alike; what merely starting it takes is deducted.
    """
    _, idle_s = _ran([str(program), "-V"], cpu)
    out, cpu_s = _ran([str(program), "-d", str(seconds)], cpu)
    found, clock = {}, "monotonic"
    for line in out.splitlines():
        clock = _SECTIONS.get(line.partition(":")[0], clock)
        mean = _MEAN.search(line)
        if mean:
            found[clock] = float(mean[1]) * (1 if mean[2].startswith("n") else 1000)
    share = (cpu_s - idle_s) / (seconds * len(found))
    return {clock: Run(mean, mean * share) for clock, mean in found.items()}


def _ran(command: list[str], cpu: int) -> tuple[str, float]:
    """What a command printed, and its CPU time in s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["taskset", "-c", str(cpu), *command], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(clock: Clock, seconds: int, cpu: int) -> Run:
    """A run of the probe."""
    before = time.process_time()
    found = probe.record(clock, seconds, cpu)
    spent = time.process_time() - before
    return Run(found.elapsed_ns / found.differences, spent * NS / found.differences)


def side_by_side(named: Sequence[Path], rounds: int, seconds: int) -> None:
    """Our average loop time against each installed pg_test_timing's."""
    cpu = max(os.sched_getaffinity(0))
    clocks = {clock.name: clock for clock in CLOCKS}
    for version, program in installed(named).items():
        keeps = (
            "exact durations kept by both"
            if int(re.split(r"\D", version)[0]) >= 19
            else "exact durations kept by ours alone"
        )
        pairs: dict[str, list[tuple[Run, Run]]] = {}
        for _ in range(rounds):
            for name, other in theirs(program, seconds, cpu).items():
                pairs.setdefault(name, []).append((ours(clocks[name], seconds, cpu), other))
        for name, both in pairs.items():
            for what in ("wall_ns", "cpu_ns"):
                own, other = np.array([[getattr(run, what) for run in pair] for pair in both]).T
                print(
                    f"{name}, {'elapsed' if what == 'wall_ns' else 'CPU'} time: ours "
                    f"{np.median(own):.2f} ns, pg_test_timing {version} {np.median(other):.2f} ns, "
                    f"ratio {np.median(own / other):.3f} ({(own / other).min():.3f} to "
                    f"{(own / other).max():.3f}, {rounds} pairs of {seconds} s; {keeps})",
                    flush=True,
                )


def added(groups: int) -> None:
    """What counting adds to reading, by clock."""
    print("clock                     reads only  and counts  ratio")
    for clock in of_machine(probe.leaves()):
        cost = weigh(clock, groups)
        both = cost.read_ns + cost.loop_ns
        print(
            f"{clock.name:24}  {cost.read_ns:7.2f} ns  {both:7.2f} ns  {both / cost.read_ns:.3f}",
            flush=True,
        )


def calibrations(n: int, rounds: int) -> None:
    """Short calibrations against one of a second."""
    for _ in range(rounds):
        first = probe.pair()
        lengths, hz = [], []
        for _ in range(n):
            a, b = probe.calibrate(counter_frequency.REPEAT_NS)
            lengths.append((b.ns - a.ns) / 1e6)
            hz.append(counter_frequency.between(a, b))
        while (last := probe.pair()).ns - first.ns < NS:
            time.sleep(0.01)
        off = 1e6 * np.abs(np.array(hz) / counter_frequency.between(first, last) - 1)
        p50, p99, worst = np.percentile(off, [50, 99, 100])
        print(
            f"{n} calibrations of {np.median(lengths):.2f} ms (longest {max(lengths):.1f} ms) "
            f"against {(last.ns - first.ns) / NS:.2f} s: median {p50:.2f} ppm, 99 % {p99:.2f} ppm, "
            f"largest {worst:.2f} ppm",
            flush=True,
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--program", type=Path, action="append", help="another pg_test_timing")


def main(args: argparse.Namespace) -> None:
    """Run all three."""
    side_by_side(args.program or (), args.rounds, args.seconds)
    added(groups=20)
    if probe.counter_usable():
        calibrations(200, 3)
