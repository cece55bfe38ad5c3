"""What collecting a flame graph costs the server: one load, seconds with and without, in turn.

Each pair of slices of a running `pgbench -S` has one under the collector and one without it, in
random order; the figure is the mean of the paired log ratios with its 95 % t interval. As root.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from tests.versions.servers import DEBIAN15

from pgtare.kit import machine
from pgtare.observing.flame import processes
from pgtare.observing.flame.record import FlameRecorder
from pgtare.observing.flame.recording import FlameRecording, Mode
from pgtare.postgres import own_session
from pgtare.postgres.binaries import from_pg_config, from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench, initialise

TAKES = "10 minutes, as root, with perf; the machine should be quiet"

#: Mode, samples a second.
WAYS: tuple[tuple[str, Mode, int], ...] = (
    ("on, 99 Hz", "on", 99),
    ("on, 1999 Hz", "on", 1999),
    ("off", "off", 99),
    ("wake", "wake", 99),
)


@contextlib.contextmanager
def collecting(dsn: str, mode: Mode, rate: int) -> Iterator[list[FlameRecording]]:
    """The whole server recorded while the block runs."""
    done: list[FlameRecording] = []
    with own_session.connect(dsn) as conn:
        recorder = FlameRecorder(mode, processes.of_connection(conn), rate)
        ended, begun = threading.Event(), threading.Event()

        def run() -> None:
            done.append(recorder.run(ended.is_set, tell=lambda *progress: begun.set()))

        thread = threading.Thread(target=run)
        thread.start()
        begun.wait(30)
        try:
            yield done
        finally:
            ended.set()
            thread.join()


@dataclass(frozen=True)
class Slice:
    """Some seconds of the load: transactions a second, and the server's µs of CPU for each."""

    tps: float
    cpu_us: float


def slice_of(load: PgbenchLoad, postmaster: int, reports: int) -> Slice:
    """The next whole seconds that pgbench reports, the one under way left out."""

    def wait_for(number: int) -> float:
        while len(load.progress) < number:
            load.check()
            time.sleep(0.01)
        return machine.tree_ticks(postmaster) * machine.tick_s()

    begin = len(load.progress) + 1
    used = -wait_for(begin)
    used += wait_for(begin + reports)
    tps = float(np.mean([report.tps for report in load.progress[begin : begin + reports]]))
    return Slice(tps, 1e6 * used / (tps * reports))


def own_s() -> float:
    """Processor time of this process and of the children that have ended, perf among them."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def change(with_it: Sequence[float], without: Sequence[float]) -> str:
    """The mean of the paired log ratios and its interval, in %."""
    ratios = np.log(np.array(with_it) / np.array(without))
    mean, se = np.mean(ratios), np.std(ratios, ddof=1) / np.sqrt(len(ratios))
    half = stats.t.ppf(0.975, len(ratios) - 1) * se
    low, high = (100 * np.expm1(mean + sign * half) for sign in (-1, 1))
    return f"{100 * np.expm1(mean):+6.1f} [{low:+6.1f}, {high:+6.1f}] %"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=1, help="of a slice")
    parser.add_argument("--major", type=int, help="only the server of this version")


def main(given: argparse.Namespace) -> None:
    installations = [from_wheel(), *([from_pg_config(DEBIAN15)] if DEBIAN15.exists() else [])]
    draw = random.Random(1)
    print(
        "server  stacks  mode          TPS, 95 %                  server's CPU a transaction  "
        "processors  events/s     lost"
    )
    for binaries in installations:
        if given.major not in (None, binaries.major):
            continue
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(Cluster(binaries))
            dsn = initialise(binaries, cluster.dsn(), 10).dsn
            spec = LoadSpec(clients=given.clients)
            load = stack.enter_context(PgbenchLoad(find_pgbench(binaries), dsn, spec))
            load.wait_ready()
            for name, mode, rate in WAYS:
                found: dict[str, list[Slice]] = {"with": [], "without": []}
                recordings: list[FlameRecording] = []
                spent = 0.0
                for _ in range(given.pairs):
                    for way in draw.sample(("with", "without"), 2):
                        used = own_s()
                        recording = (
                            collecting(dsn, mode, rate)
                            if way == "with"
                            else (contextlib.nullcontext([]))
                        )
                        with recording as done:
                            found[way].append(slice_of(load, cluster.postmaster_pid, given.seconds))
                        recordings += done
                        spent += own_s() - used if way == "with" else 0.0
                seconds = sum(r.duration_s for r in recordings)
                tps, cpu = (
                    change(*([getattr(s, what) for s in found[way]] for way in ("with", "without")))
                    for what in ("tps", "cpu_us")
                )
                walk = recordings[0].walk.partition(",")[0]
                events, lost = sum(r.events for r in recordings), sum(r.lost for r in recordings)
                print(
                    f"{binaries.major:<6}  {walk:<6}  {name:<12}  {tps}  {cpu:<26}  "
                    f"{spent / seconds:10.2f}  {events / seconds:8,.0f}  {lost:7,}",
                    flush=True,
                )
