"""What TIMING adds to EXPLAIN ANALYZE: predicted from the cost of a clock reading, and measured.

For each plan pairs of executions, TIMING on and off in random order; after each pair the probe of
`pgtare clock` weighs a reading. With --slow-clock the server makes a system call of each reading,
and the probe weighs that call: the same prediction has to hold on a clock many times as slow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.versions.servers import DEBIAN15

from bench.harness import say
from pgtare.seeing.clock import explain_timing, probe
from pgtare.seeing.clock.clocks import BY_NAME
from pgtare.seeing.clock.plan import Plan
from pgtare.seeing.clock.predict import Clock, explain_cost
from pgtare.server.binaries import Binaries, from_pg_config, from_wheel
from pgtare.server.cluster import Cluster

_SLOW_CLOCK = Path(__file__).with_name("slow_clock.c")
_TABLES = {"t10k": 10_000, "t100k": 100_000, "t300k": 300_000, "t1m": 1_000_000, "t5m": 5_000_000}
_ALIKE = {
    "shared_buffers": "768MB",
    "work_mem": "256MB",
    "jit": "off",
    "autovacuum": "off",
    "max_parallel_workers_per_gather": "0",
}
_NO_HASH = "-c enable_hashjoin=off -c enable_mergejoin=off"
_NO_SCAN = "-c enable_seqscan=off -c enable_bitmapscan=off"
_MERGE = "-c enable_hashjoin=off -c enable_nestloop=off"


@dataclass(frozen=True)
class Case:
    """A statement and the settings that give it the plan meant."""

    name: str
    query: str
    options: str = ""


CASES = (
    Case("scan of 10 k rows", "SELECT * FROM t10k"),
    Case("aggregate of 5 M rows", "SELECT count(*) FROM t5m"),
    Case("1,000 groups of 1 M rows", "SELECT g, sum(v) FROM t1m GROUP BY g"),
    Case(
        "nested loop, 100 k look-ups",
        "SELECT count(*) FROM t100k a JOIN t1m b ON b.id = a.r",
        _NO_HASH,
    ),
    Case("hash join, 1 M with 10 k rows", "SELECT count(*) FROM t1m b JOIN t10k a ON a.id = b.k"),
    Case("sort of 300 k rows", "SELECT * FROM t300k ORDER BY r"),
)
MORE = (
    Case("hash join, 1 M with 100 k rows", "SELECT count(*) FROM t1m b JOIN t100k a ON a.id = b.k"),
    Case("sort of 300 k rows in order", "SELECT * FROM t300k ORDER BY id"),
    Case("sort of 1 M rows", "SELECT * FROM t1m ORDER BY r"),
    Case("1 M groups", "SELECT r, sum(v) FROM t1m GROUP BY r", "-c enable_sort=off"),
    Case("index scan of 500 k rows", "SELECT count(v) FROM t1m WHERE id < 500000", _NO_SCAN),
    Case("merge join, 100 k rows", "SELECT count(*) FROM t1m b JOIN t100k a USING (id)", _MERGE),
    Case("hash join, scattered", "SELECT count(*) FROM t1m b JOIN t300k a ON a.id = b.r"),
    Case(
        "nested loop, scattered heap",
        "SELECT count(b.v) FROM t100k a JOIN t1m b ON b.id = a.r * 10",
        _NO_HASH,
    ),
    Case(
        "append of 400 k rows",
        "SELECT count(*) FROM (SELECT id FROM t300k UNION ALL SELECT id FROM t100k) x",
    ),
    Case(
        "CTE of 300 k rows", "WITH x AS MATERIALIZED (SELECT * FROM t300k) SELECT count(*) FROM x"
    ),
)


@dataclass(frozen=True)
class ServerClock:
    """The clock that the servers read, and the library that makes it slow, if one does."""

    slow: Path | None

    def read_ns(self, batches: int) -> float:
        """What a reading costs now: the median of batches of 1,000."""
        clock = BY_NAME["monotonic_syscall" if self.slow else "monotonic"]
        only, _ = probe.cost(clock, batches, 1000)
        return float(np.median(only))

    def server(self, found: Binaries) -> Binaries:
        """The installation, its server started with the slow clock if that is wanted."""
        if self.slow is None:
            return found
        programs = self.slow.parent / f"bin{found.major}"
        programs.mkdir(mode=0o755)
        wrapper = programs / "postgres"
        wrapper.write_text(
            f'#!/bin/sh\nLD_PRELOAD={self.slow} exec {found.postgres} "$@"\n', encoding="ascii"
        )
        wrapper.chmod(0o755)
        (programs / "initdb").symlink_to(found.initdb)
        return replace(found, bindir=programs)


@contextlib.contextmanager
def server_clock(*, slow: bool) -> Iterator[ServerClock]:
    """The clock; what makes it slow lies where the server's account can read it, meanwhile."""
    if not slow:
        yield ServerClock(None)
        return
    directory = Path(tempfile.mkdtemp(prefix="pgtare-bench-", dir="/var/tmp"))
    try:
        directory.chmod(0o755)
        library = directory / "slow_clock.so"
        compiler = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", str(_SLOW_CLOCK)]
        subprocess.run([*compiler, "-o", str(library)], check=True)
        library.chmod(0o755)
        yield ServerClock(library)
    finally:
        shutil.rmtree(directory)


def fill(cluster: Cluster) -> None:
    """Tables of rows whose column r is the key in no order, and indexes on two of them."""
    with cluster.connect() as conn:
        for name, rows in _TABLES.items():
            conn.execute(
                f"CREATE TABLE {name} AS SELECT i AS id, (i * 7919::bigint) % {rows} + 1 AS r,"
                f" i % 100000 + 1 AS k, i % 1000 AS g, i * 0.5::float8 AS v"
                f" FROM generate_series(1, {rows}) i".encode()
            )
        for name in ("t100k", "t1m"):
            conn.execute(f"CREATE UNIQUE INDEX ON {name} (id)".encode())
        conn.execute("VACUUM ANALYZE")
        conn.execute("CHECKPOINT")


def shape(plan: Plan) -> str:
    """The kinds of nodes, from the top."""
    return ", ".join(node.kind for node in plan.root.walk())


def compare(cluster: Cluster, clock: ServerClock, case: Case, pairs: int) -> dict[str, object]:
    """One row of the table."""
    reads: list[float] = []

    def read_clock(progress: explain_timing.Progress) -> None:
        reads.append(clock.read_ns(150))

    dsn = cluster.dsn(options=case.options)
    # small plans are over before the noise of a moment is: more of them
    small = case is CASES[0]
    measured = explain_timing.measure(case.query, dsn, pairs * (10 if small else 1), read_clock)
    read_ns = statistics.median(reads)
    cost = explain_cost(measured.plan, Clock(read_ns), measured.major)
    difference = measured.difference_ms
    own = (difference.estimate * 1e6 / cost.calls.likely) - 2 * read_ns
    say(f"{measured.major}, {case.name}: {shape(measured.plan)}, by {measured.by}")
    error = 100 * (cost.wall_ms.likely / difference.estimate - 1)
    print(
        f"| {case.name} | {cost.calls.likely:,.0f} "
        f"| {read_ns:.1f} "
        f"| {cost.wall_ms.likely:.1f} [{cost.wall_ms.lo:.1f}, {cost.wall_ms.hi:.1f}] "
        f"| {difference.estimate:.1f} [{difference.lo:.1f}, {difference.hi:.1f}] "
        f"| {measured.wall_difference_ms.estimate:.1f} "
        f"| {error:+.0f} % | {own:.1f} |",
        flush=True,
    )
    return {
        "plan": case.name,
        "postgresql": measured.major,
        "read_ns": read_ns,
        "predicted": cost.as_json(),
        "measured": measured.as_json(),
        "error_pct": error,
        "beyond_two_reads_ns": own,
    }


def main() -> None:
    """Print a table for each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--more", action="store_true", help="other plans, harder to predict")
    parser.add_argument("--only", nargs="*", default=[""], help="words of the plans' names")
    parser.add_argument("--slow-clock", action="store_true")
    parser.add_argument("--pg-config", nargs="*", default=[DEBIAN15])
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    with server_clock(slow=args.slow_clock) as clock:
        installed = [from_pg_config(path) for path in args.pg_config if Path(path).exists()]
        for found in [from_wheel(), *installed]:
            with Cluster(clock.server(found), _ALIKE) as cluster:
                fill(cluster)
                print(
                    f"{found.version}\n| plan | timed calls | reading, ns "
                    "| predicted ms | measured ms | by wall clock | error "
                    "| beyond two reads, ns a call |"
                )
                for case in MORE if args.more else CASES:
                    if any(words in case.name for words in args.only):
                        rows.append(compare(cluster, clock, case, args.pairs))
    if args.output:
        args.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
