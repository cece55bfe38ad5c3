"""What collecting a flame graph costs the server: one load, seconds with and without, in turn.

Each pair of slices of a running `pgbench -S` has one under the collector and one without it, in
random order; the figure is the mean of the paired log ratios with its 95 % t interval. As root.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import stats

from bench import harness
from pgtare.flame import targets
from pgtare.flame.record import Plan, Recorder, Recording
from pgtare.flame.samples import Mode
from pgtare.load import LoadSpec, PgbenchLoad, find_pgbench, initialise
from pgtare.server import trials
from pgtare.server.binaries import from_pg_config, from_wheel
from pgtare.server.cluster import Cluster

DEBIAN = Path("/usr/lib/postgresql/15/bin/pg_config")
#: Mode, samples a second.
WAYS: tuple[tuple[str, Mode, int], ...] = (
    ("on, 99 Hz", "on", 99),
    ("on, 1999 Hz", "on", 1999),
    ("off", "off", 99),
    ("wake", "wake", 99),
)


@contextlib.contextmanager
def collecting(dsn: str, mode: Mode, rate: int) -> Iterator[list[Recording]]:
    """The whole server recorded while the block runs."""
    done: list[Recording] = []
    with trials.connect(dsn) as conn:
        recorder = Recorder(Plan(mode, targets.of_connection(conn), None, rate))
        ended, begun = threading.Event(), threading.Event()

        def run() -> None:
            done.append(recorder.run(ended.is_set, lambda *told: begun.set()))

        thread = threading.Thread(target=run)
        thread.start()
        begun.wait(30)
        try:
            yield done
        finally:
            ended.set()
            thread.join()


def speed(load: PgbenchLoad, reports: int) -> float:
    """Transactions a second over the next whole seconds, the one under way left out."""
    begin = len(load.progress) + 1
    while len(load.progress) < begin + reports:
        load.check()
        time.sleep(0.05)
    return float(np.mean([report.tps for report in load.progress[begin : begin + reports]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=1, help="of a slice")
    parser.add_argument("--major", type=int, help="only the server of this version")
    given = parser.parse_args()
    installations = [from_wheel(), *([from_pg_config(DEBIAN)] if DEBIAN.exists() else [])]
    draw = random.Random(1)
    print("server  stacks  mode          TPS changed by   95 % interval   events/s   lost")
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
                ratios, events, lost, seconds, walk = [], 0, 0, 0.0, ""
                for _ in range(given.pairs):
                    tps = {}
                    for way in draw.sample(("with", "without"), 2):
                        if way == "without":
                            tps[way] = speed(load, given.seconds)
                            continue
                        with collecting(dsn, mode, rate) as done:
                            # perf reads the programs' symbols at its first samples
                            tps[way] = speed(load, given.seconds)
                        (told,) = done
                        events, lost = events + told.events, lost + told.lost
                        seconds, walk = seconds + told.seconds, told.walk.partition(",")[0]
                    ratios.append(np.log(tps["with"] / tps["without"]))
                mean, se = np.mean(ratios), np.std(ratios, ddof=1) / np.sqrt(len(ratios))
                half = stats.t.ppf(0.975, len(ratios) - 1) * se
                low, high = (100 * np.expm1(mean + sign * half) for sign in (-1, 1))
                print(
                    f"{binaries.major:<6}  {walk:<6}  {name:<12}  {100 * np.expm1(mean):+13.1f} %"
                    f"  [{low:+5.1f}, {high:+5.1f}] %  {events / seconds:8,.0f}  {lost:,}",
                    flush=True,
                )


if __name__ == "__main__":
    harness.say("what collecting a flame graph costs")
    main()
