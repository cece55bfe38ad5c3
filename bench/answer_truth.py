"""Answers against an injector that counts what it took: settled delays, and colder beginnings.

An extension (spinner/) spins a settled time in each transaction, and longer in the first ones after
it was switched on. It counts what it really took. Each row is an arm of a trial by runs, on a
session older than the trial; the truth is the mean that the injector counted, less that of the
base, which runs the same code for a delay of 0.

The exit status is 1 if, pooled over the grid, the slope is not within 1.00 ± 0.02 or the intercept
not within ± 0.1 µs, or if more than 5 % of the arms with a settled delay of 0 are called a cost.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from bench import harness
from bench.harness import say
from pgtare.errors import MeasurementError
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.answer import Answer
from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.postgres import own_session
from pgtare.postgres.binaries import Binaries, from_wheel
from pgtare.postgres.build import build_cached, source_dir
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench
from pgtare.postgres.load.spec import Script
from pgtare.postgres.modules import loadable

TAKES = "8 minutes (--seconds, --rounds)"

SETTLED_NS = (0, 200, 500, 1_000, 2_000, 4_000)
COLD_NS = (0, 5_000, 15_000)
STATEMENT = "SELECT 1"
SLOPE, INTERCEPT_US, FALSE_COSTS = 0.02, 0.1, 0.05


@dataclass(frozen=True)
class Row:
    """An arm: what was asked for, what the injector counted, and the answer."""

    settled_ns: int
    cold_ns: int
    truth_us: float
    answer: Answer


def injector(binaries: Binaries, work: Path) -> str:
    """The library that injects."""
    sources = work / "sources"
    shutil.copytree(source_dir() / "common", sources / "common")
    shutil.copytree(Path(__file__).with_name("spinner"), sources / "spinner")
    return build_cached(binaries, "spinner", sources).library


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=25, help="of each trial")
    parser.add_argument("--rounds", type=int, default=6, help="trials of each cold start")


def main(args: argparse.Namespace) -> int:
    """Print a row for each arm, and the pooled lines."""
    module = loadable(from_wheel())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as work:
        script = Path(work) / "script.sql"
        script.write_text(f"{STATEMENT};\n")
        libraries = [module.library, injector(from_wheel(), Path(work))]
        with (
            harness.server(libraries, {"pgtare.ring_memory": "128MB"}) as target,
            own_session.connect(target.dsn) as conn,
        ):
            conn.execute(module.create_sql.encode())
            create = Path(__file__).with_name("spinner") / "spinner--1.0.sql"
            library = libraries[1]
            conn.execute(create.read_text().replace("MODULE_PATHNAME", library).encode())
            for number in range(args.rounds):
                for cold_ns in COLD_NS:
                    rows += trial(target, conn, script, cold_ns, args.seconds, number)
                    say(f"round {number + 1} of {args.rounds}, {cold_ns} ns cold")
    return judged(rows)


def trial(
    target: harness.Server,
    conn: psycopg.Connection[Any],
    script: Path,
    cold_ns: int,
    seconds: float,
    seed: int,
) -> list[Row]:
    """A trial with an arm of each settled delay; its base has none."""
    base = {"spinner.settled_ns": "0", "spinner.cold_ns": "0"}
    arms = [Arm("base", "base", base)]
    for settled_ns in SETTLED_NS:
        own = {"spinner.settled_ns": str(settled_ns), "spinner.cold_ns": str(cold_ns)}
        if own == base:
            own["spinner.cold_runs"] = "9"
        arms.append(Arm(f"{settled_ns} ns", "instrument", {"spinner.cold_runs": "8", **own}))
    arms[0].settings["spinner.cold_runs"] = "8"
    design = Design(tuple(arms), block_layout(len(arms)), 1_000 * seed + cold_ns)
    spec = LoadSpec(clients=1, scripts=(Script(script),), protocol="prepared")
    with PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as load:
        load.wait_ready()
        conn.execute("SELECT spinner_forget()")
        observations = harness.record(conn, design, load, seconds)
    truth = counted(conn)
    found = analyse(observations, design, proven={arm.name: True for arm in arms})
    rows = []
    for settled_ns, arm in zip(SETTLED_NS, found.arms[1:], strict=True):
        assert arm.answer is not None
        rows.append(Row(settled_ns, cold_ns, truth[settled_ns], arm.answer))
    return rows


def counted(conn: psycopg.Connection[Any]) -> dict[int, float]:
    """What the injector took more than for a delay of 0, in µs, by the delay asked for."""
    found = {
        int(row[0]): row[2] / row[1] / 1_000
        for row in conn.execute("SELECT * FROM spinner_counted()").fetchall()
        if row[1]
    }
    if set(SETTLED_NS) - set(found):
        raise MeasurementError("the injector did not run in each arm")
    return {settled_ns: us - found[0] for settled_ns, us in found.items()}


def judged(rows: list[Row]) -> int:
    """Print what was found, and whether it is as it should be."""
    print("| settled ns | cold ns | truth µs | estimate µs, mean | s.e. | covered | cost |")
    print("|---|---|---|---|---|---|---|")
    for cold_ns in COLD_NS:
        for settled_ns in SETTLED_NS:
            cell = [r for r in rows if (r.settled_ns, r.cold_ns) == (settled_ns, cold_ns)]
            estimates = np.array([r.answer.us.estimate for r in cell])
            covered = sum(r.answer.us.lo <= r.truth_us <= r.answer.us.hi for r in cell)
            costs = sum(r.answer.verdict == "cost" for r in cell)
            error = estimates.std(ddof=1) / np.sqrt(len(cell)) if len(cell) > 1 else np.nan
            print(
                f"| {settled_ns} | {cold_ns} | {np.mean([r.truth_us for r in cell]):.3f} "
                f"| {estimates.mean():.3f} | {error:.3f} | {covered} of {len(cell)} "
                f"| {costs} of {len(cell)} |"
            )
    (slope, intercept), errors = line(rows)
    idle = [r for r in rows if r.settled_ns == 0]
    false = sum(r.answer.verdict == "cost" for r in idle)
    share = np.mean([r.answer.us.lo <= r.truth_us <= r.answer.us.hi for r in rows])
    print(
        f"slope {slope:.4f} ± {errors[0]:.4f}, intercept {intercept:+.4f} ± {errors[1]:.4f} µs, "
        f"covered {share:.3f} of {len(rows)}, a settled 0 called a cost in {false} of {len(idle)}"
    )
    good = abs(slope - 1) <= SLOPE and abs(intercept) <= INTERCEPT_US
    return 0 if good and false <= FALSE_COSTS * len(idle) else 1


def line(rows: list[Row]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Slope and intercept of the estimates against the truth, and their standard errors."""
    truth = np.array([r.truth_us for r in rows])
    estimate = np.array([r.answer.us.estimate for r in rows])
    weight = 1 / np.array([r.answer.us.se for r in rows])
    found, covariance = np.polyfit(truth, estimate, 1, w=weight, cov="unscaled")
    errors = np.sqrt(np.diag(covariance))
    return (float(found[0]), float(found[1])), (float(errors[0]), float(errors[1]))
