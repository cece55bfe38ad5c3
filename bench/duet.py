"""How far apart equal servers come out: by duet, and by whole runs one after the other.

Two servers of the wheel with the same settings, so that every difference is error. A unit is two
runs of equal length: two rounds of a duet with exchanged roles, or two runs on one server. Prints
the mean and standard deviation of the units' log-ratios, in percent.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.study import duet as estimate
from pgtare.load import LoadSpec, run
from pgtare.load.duet import run_duet
from pgtare.load.duet_plan import DuetTarget, Length
from pgtare.server.binaries import from_wheel
from pgtare.weighing.ladder.duet_clusters import (
    DuetBlock,
    DuetVariant,
    judge,
    load_seed,
    roles_of_set,
)

SEED = 11
WARMUP_S = 0.5
STATISTICS: tuple[estimate.Statistic, ...] = ("body", "p50")


@dataclasses.dataclass(frozen=True)
class Bench:
    """The servers, and how much to measure."""

    block: DuetBlock
    pairs: int
    seconds: int

    @property
    def length(self) -> Length:
        return Length(self.seconds - WARMUP_S, warmup_s=WARMUP_S)

    def duet(self, spec: LoadSpec, pin: bool) -> dict[estimate.Statistic, Floats]:
        """Both servers at once, in pairs of rounds with exchanged roles."""
        played: list[estimate.RoundStatistics | None] = []
        for pair in range(self.pairs):
            for roles in roles_of_set(SEED, pair, len(self.block.variants)):
                self.block.assign(roles)
                seeded = dataclasses.replace(spec, seed=load_seed(SEED, len(played)))
                with tempfile.TemporaryDirectory() as directory:
                    done = self.block.drive(seeded, self.length, Path(directory, "round"), pin=pin)
                statistics, dropped = judge(done, roles)
                if dropped:
                    print(f"a round is dropped: {dropped}", flush=True)
                played.append(statistics)
        pairs = np.repeat(np.arange(self.pairs), len(self.block.variants))
        return {s: self._between(played, pairs, s) for s in STATISTICS}

    @staticmethod
    def _between(
        played: list[estimate.RoundStatistics | None],
        pairs: estimate.Ints,
        statistic: estimate.Statistic,
    ) -> Floats:
        values = estimate.round_values(played, statistic, 2)
        return estimate.by_set(estimate.log_ratios(values), pairs)[:, 1]

    def alone(self, spec: LoadSpec, pin: bool) -> dict[estimate.Statistic, Floats]:
        """Two runs on one server by the same driver, one after the other."""
        units: dict[estimate.Statistic, list[float]] = {s: [] for s in STATISTICS}
        for _ in range(self.pairs):
            one, two = (self._run_alone(spec, pin) for _ in range(2))
            shorter = min(len(one), len(two))
            found = estimate.statistics_of(np.column_stack((one[:shorter], two[:shorter])))
            for statistic, ratios in units.items():
                ratios.append(float(np.log(found[statistic][1] / found[statistic][0])))
        return {statistic: np.array(ratios) for statistic, ratios in units.items()}

    def _run_alone(self, spec: LoadSpec, pin: bool) -> Floats:
        with tempfile.TemporaryDirectory() as directory:
            target = DuetTarget(self.block.databases[0].dsn)
            done = run_duet(
                self.block.driver, [target], spec, self.length, Path(directory, "run"), pin=pin
            )
        return np.asarray(done.records.measured["latency_ns"] / 1000.0)

    def pgbench(self, spec: LoadSpec) -> dict[estimate.Statistic, Floats]:
        """Two runs of pgbench on one server."""
        pgbench, dsn = self.block.variants[0].binaries.pgbench, self.block.databases[0].dsn
        units = []
        for _ in range(self.pairs):
            one, two = (run(pgbench, dsn, spec, self.seconds).tps for _ in range(2))
            units.append(np.log(one / two))
        return {"mean": np.array(units)}


def main() -> None:
    """Print a line for each way of measuring and statistic."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rate", type=float, default=500.0, help="of the open loop, each server")
    args = parser.parse_args()
    found = from_wheel()
    closed = LoadSpec(protocol="prepared", clients=2, seed=SEED)
    opened = dataclasses.replace(closed, rate=args.rate)
    with DuetBlock([DuetVariant("base", found), DuetVariant("again", found)]) as block:
        bench = Bench(block, args.pairs, args.seconds)
        ways: dict[str, Callable[[], dict[estimate.Statistic, Floats]]] = {
            "closed loop: pgbench, runs": lambda: bench.pgbench(closed),
            "closed loop: driver, runs": lambda: bench.alone(closed, pin=True),
            "closed loop: duet, not pinned": lambda: bench.duet(closed, pin=False),
            "closed loop: duet": lambda: bench.duet(closed, pin=True),
            "open loop: driver, runs": lambda: bench.alone(opened, pin=True),
            "open loop: duet, not pinned": lambda: bench.duet(opened, pin=False),
            "open loop: duet": lambda: bench.duet(opened, pin=True),
        }
        print("select-only, 2 clients, equal servers: log-ratio of a pair of runs")
        print("way                            statistic  seconds   mean %     SD %")
        for name, measure in ways.items():
            started = time.monotonic()
            units = measure()
            seconds = time.monotonic() - started
            for statistic, ratios in units.items():
                print(
                    f"{name:30} {statistic:9} {seconds:8.0f} {100 * ratios.mean():+8.2f}"
                    f" {100 * ratios.std(ddof=1):8.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
