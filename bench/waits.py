"""What a captured wait costs, and the cost of its two clock readings in the same run.

The module's own function calls a wrapped libc function in a tight loop inside a backend, with the
deferred folding included.
"""

from __future__ import annotations

import argparse
from statistics import median

from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable

TAKES = "a minute"

LEVELS = (("off", "off"), ("stats", "off"), ("stats", "on"), ("trace", "off"), ("trace", "on"))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waits", type=int, default=400_000)


def main(args: argparse.Namespace) -> None:
    """Print a line for each round, capture level, and statements distinguished or not."""
    found = from_wheel()
    module = loadable(found, "wait_event_timing")
    ratios: dict[tuple[str, str], list[float]] = {case: [] for case in LEVELS}
    with Cluster(found, {}, [module.library]) as cluster, cluster.connect() as conn:
        conn.execute(module.create_sql.encode())
        print("capture  query ids  ns a wait  ns for two clock readings  ratio")
        for _ in range(args.rounds):
            for level, identified in LEVELS:
                conn.execute(f"SET wait_event_timing.capture = {level}".encode())
                conn.execute(f"SET compute_query_id = {identified}".encode())
                row = conn.execute(
                    "SELECT wait_ns, two_clock_reads_ns, ratio FROM"
                    " wait_event_timing_benchmark(%s)",
                    (args.waits,),
                ).fetchone()
                assert row is not None
                ratios[level, identified].append(row[2])
                print(
                    f"{level:7}  {identified:9}  {row[0]:9.1f}  {row[1]:25.1f}  {row[2]:5.2f}",
                    flush=True,
                )
    for (level, identified), seen in ratios.items():
        print(
            f"{level}, query ids {identified}: ratio {median(seen):.2f}, "
            f"{min(seen):.2f} to {max(seen):.2f} in {len(seen)} rounds"
        )
