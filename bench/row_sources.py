"""What measuring row sources costs, and how often their intervals hold the truth.

Costs: each query plain, with every Nth call timed, and under EXPLAIN (ANALYZE, TIMING), in an order
drawn anew each round; the ratio to the plain query, median over rounds with its 95 % interval, of
wall time and of the backend's processor time, which a busy machine disturbs less.

Truth: queries whose nodes idle for lengths that are booked by the function that idles.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scipy.stats import binom

from bench.row_loads import HASHED, NESTED, PARALLEL, TRUTHS, Connection, Load, serving
from bench.row_truth import repeat, timed_by_explain
from pgtare.kit import machine
from pgtare.postgres.binaries import Binaries, from_pg_config, from_wheel

TAKES = "some minutes"


@dataclass(frozen=True)
class Query:
    """A query whose cost is measured."""

    name: str
    text: str
    settings: str = ""


COSTS = (
    Query("count(*)", "SELECT count(*) FROM million"),
    Query("nested loop", "SELECT count(*) FROM tenth t JOIN million m ON m.i = t.i", NESTED),
    Query("hash join", "SELECT count(*) FROM million a JOIN million b USING (i)", HASHED),
    Query("sort", "SELECT count(*) FROM (SELECT i FROM million ORDER BY -i OFFSET 0) x"),
    Query("parallel", "SELECT count(*) FROM million", PARALLEL),
    Query(
        "1,001 calls, one long",
        "SELECT count(*) FROM (SELECT * FROM (SELECT i FROM tenth LIMIT 1000) t"
        " JOIN (SELECT i FROM million"
        " WHERE (i + 0) % 1 = 0 AND (i + 1) % 1 = 0 OFFSET 0) m USING (i) OFFSET 0) x",
        HASHED,
    ),
    Query(
        "one call interrupted",
        "SELECT count(*) FROM million WHERE CASE WHEN i = 500000 THEN idle_for(9, 13000)"
        " ELSE i > 0 END",
    ),
)


def make_tables(connection: Connection) -> None:
    """A million rows, and a tenth of them."""
    connection.execute(
        "CREATE TABLE million AS SELECT i FROM generate_series(1, 1000000) i;"
        "CREATE TABLE tenth AS SELECT i * 10 AS i FROM generate_series(1, 100000) i;"
        "CREATE INDEX ON million (i)"
    )
    connection.execute("VACUUM ANALYZE million, tenth")


@dataclass(frozen=True)
class Took:
    """What one execution took, in seconds: for the client, and of its backend's processor time."""

    wall: float
    cpu: float


def cpu_seconds(pid: int) -> float:
    """Processor time of a process since it began."""
    times = machine.schedstat(pid)
    assert times is not None
    return times[0] / 1e9


def execute(connection: Connection, query: Query, arm: str) -> Took:
    """Run a query once."""
    prefix = {
        "timing": "EXPLAIN (ANALYZE, TIMING) ",
        "sampling": "EXPLAIN (ANALYZE, SAMPLING 128) ",
    }.get(arm, "")
    every = int(arm) if arm.isdigit() else 0
    pid = connection.info.backend_pid
    with connection.transaction():
        if query.settings:
            connection.execute(query.settings.encode())
        connection.execute(f"SET LOCAL sql_trace.level = {int(every > 0)}".encode())
        connection.execute(f"SET LOCAL sql_trace.rowsource_sampling = {every}".encode())
        cpu, began = cpu_seconds(pid), time.perf_counter()
        connection.execute((prefix + query.text).encode(), prepare=False).fetchall()
        return Took(time.perf_counter() - began, cpu_seconds(pid) - cpu)


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median with a 95 % interval from order statistics."""
    ordered, n = sorted(values), len(values)
    lower = int(binom.ppf(0.025, n, 0.5))
    return median(ordered), ordered[max(lower - 1, 0)], ordered[min(n - lower, n - 1)]


def print_costs(connection: Connection, rounds: int, arms: Sequence[str]) -> None:
    """A line for each query and arm."""
    print("query                   plain ms  arm       wall time            processor time")
    for query in COSTS:
        seen: dict[str, list[Took]] = {arm: [] for arm in ("0", *arms)}
        for arm in seen:
            execute(connection, query, arm)
        for _ in range(rounds):
            order = list(seen)
            random.shuffle(order)
            for arm in order:
                seen[arm].append(execute(connection, query, arm))
        plain = seen["0"]
        for arm in arms:
            wall = [took.wall / base.wall for took, base in zip(seen[arm], plain, strict=True)]
            cpu = [took.cpu / base.cpu for took, base in zip(seen[arm], plain, strict=True)]
            # of a parallel query, the workers' part is not in it
            shown = (
                "-"
                if query.settings == PARALLEL
                else "{:.3f} ({:.3f}-{:.3f})".format(*median_interval(cpu))
            )
            print(
                f"{query.name:22} {median(t.wall for t in plain) * 1e3:9.1f}  {arm:8}"
                "  {:.3f} ({:.3f}-{:.3f})  ".format(*median_interval(wall))
                + shown,
                flush=True,
            )


def print_truth(
    connection: Connection, loads: Sequence[Load], every: int, repetitions: int
) -> None:
    """A line for each node of each load."""
    print(
        f"load               node                    share  truth to  covered of {repetitions}"
        "  half width  error: mean   largest  TIMING"
    )
    for load in loads:
        truths = repeat(connection, load, every, repetitions)
        explained = timed_by_explain(connection, load)
        for key, truth in truths.items():
            print(
                f"{load.name:18} {truth.node:22} {median(truth.share):6.1%}"
                f"  {median(truth.slack):8.2%}  {sum(truth.covered):14d}"
                f"  {median(truth.width):9.2%}"
                f"  {sum(truth.error) / len(truth.error):+10.2%}"
                f"  {max(map(abs, truth.error)):8.2%}  {explained[key]:+6.2%}",
                flush=True,
            )


def servers(names: Sequence[str]) -> list[Binaries]:
    """The embedded server, or those of a pg_config."""
    return [from_wheel() if name == "wheel" else from_pg_config(Path(name)) for name in names]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", action="append", help="wheel, or a pg_config's path")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--every", type=int, default=128)
    parser.add_argument("--only", choices=("costs", "truth"))
    parser.add_argument("--load", action="append", help="only this load's truth")


def main(args: argparse.Namespace) -> None:
    """Print costs and coverage."""
    for binaries in servers(args.server or ["wheel"]):
        print(binaries.version)
        with serving(binaries) as connection:
            if args.only != "truth":
                make_tables(connection)
                arms = [str(args.every), "timing"]
                if connection.info.server_version >= 180000:
                    arms.insert(1, "sampling")
                print_costs(connection, args.rounds, arms)
            if args.only != "costs":
                loads = [load for load in TRUTHS if load.name in (args.load or [load.name])]
                print_truth(connection, loads, args.every, args.repetitions)
        sys.stdout.flush()
