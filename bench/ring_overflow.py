"""What becomes of a trace whose ring overflows: what is lost, and what tracing costs then.

One session makes some hundred thousand waits a second. `losses`: its trace is drained every second,
ten and a hundred times a second, with a small ring and with the usual one; what was read and what
was lost must add up to what was written, and the numbers of the records read must be theirs.
`cost`: tracing is weighed against counting alone, transaction by transaction, in one session whose
ring is first empty and then overflows all the time, and for rings of other sizes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import harness
from bench.latency_puzzle import CAPTURE, MODULE, RING, USUAL_RING, reads_load
from pgtare.errors import MeasurementError
from pgtare.estimate.trial import analyse
from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.load import PgbenchLoad, find_pgbench
from pgtare.server import own_session
from pgtare.server.binaries import from_wheel
from pgtare.server.modules import loadable

RECORD = np.dtype(
    [
        ("seq", "<u4"),
        ("kind", "<u2"),
        ("depth", "<u2"),
        ("event", "<u4"),
        ("calls", "<u4"),
        ("start_ns", "<i8"),
        ("value", "<i8"),
    ]
)


@dataclass
class Drained:
    """What draining a trace gave. gaps: numbers that no record read has; disorder: of times."""

    written: int = 0
    read: int = 0
    lost: int = 0
    gaps: int = 0
    disorder: int = 0
    seconds: float = 0.0


def drain(target: harness.Server, pid: int, hertz: float, seconds: float) -> Drained:
    """Read a session's trace this often a second."""
    found = Drained()
    parts: list[np.ndarray[Any, Any]] = []
    with own_session.connect(target.dsn) as conn:
        position = first = _caught_up(conn, pid)
        due = began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            if now < due:
                time.sleep(due - now)
            due = max(due + 1 / hertz, time.monotonic())
            position, lost, records = _call(conn, pid, position)
            parts.append(np.frombuffer(records, RECORD)[["seq", "start_ns"]].copy())
            found.lost += lost
        found.seconds = time.monotonic() - began
    table = np.concatenate(parts)
    # unwound: the number of a record is kept to 32 bits, and is one more than its place
    seq = first + (table["seq"].astype(np.int64) - 1 - first) % (1 << 32)
    found.written, found.read = position - first, len(table)
    found.gaps = found.written - len(np.unique(seq[(seq >= first) & (seq < position)]))
    found.disorder = int((np.diff(seq) <= 0).sum() + (np.diff(table["start_ns"]) < 0).sum())
    return found


def _caught_up(conn: Any, pid: int) -> int:
    """The number of the next record that will be written, about."""
    position = 0
    while True:
        position, _, records = _call(conn, pid, position)
        if len(records) < 1 << 20:
            return position


def _call(conn: Any, pid: int, position: int) -> tuple[int, int, bytes]:
    row = conn.execute(
        "SELECT next, lost, records FROM wait_event_trace_drain(%s, %s)",
        (pid, position),
        binary=True,
    ).fetchone()
    if row is None or row[0] is None:
        raise MeasurementError("the load's session has no trace")
    return int(row[0]), int(row[1]), bytes(row[2])


def losses(target: harness.Server, args: argparse.Namespace) -> None:
    """A row for each ring and rate of draining."""
    print("| ring, records | drained | written a second | lost | reported | no record | disorder |")
    print("|---|---|---|---|---|---|---|")
    for size in (1_024, USUAL_RING):
        with (
            harness.options({CAPTURE: "trace", RING: str(size)}),
            PgbenchLoad(
                find_pgbench(target.binaries), target.dsn, reads_load(args.reads, 1)
            ) as running,
        ):
            running.wait_ready()
            pid = _pid(target, running.application_name)
            for hertz in (1, 10, 100):
                found = drain(target, pid, hertz, args.drain_seconds)
                print(
                    f"| {size:,} | {hertz} Hz | {found.written / found.seconds:,.0f} |"
                    f" {100 * found.lost / max(found.written, 1):.1f} % | {found.lost:,} |"
                    f" {found.gaps:,} | {found.disorder} |",
                    flush=True,
                )


def cost(target: harness.Server, args: argparse.Namespace) -> None:
    """A row for each ring: tracing against counting, and the same once it overflows."""
    print("| ring, records | state | records a transaction | trace against stats | a record |")
    print("|---|---|---|---|---|")
    arms = (
        Arm("stats", "base", {CAPTURE: "stats"}),
        Arm("trace", "instrument", {CAPTURE: "trace"}),
    )
    for size, passes in ((1_024, 1), (USUAL_RING, 1), (args.large, args.passes)):
        with (
            harness.options({CAPTURE: "off", RING: str(size)}),
            PgbenchLoad(
                find_pgbench(target.binaries), target.dsn, reads_load(args.reads, 1)
            ) as running,
        ):
            running.wait_ready()
            begun = _records(target)
            for number in range(passes):
                before = _records(target)
                design = Design(arms, block_layout(2), args.seed + number)
                data = harness.record(target, running, design, args.seconds)
                written = _records(target)
                traced = max(int(np.count_nonzero(data["arm"] == 1)), 1)
                each = (written - before) / traced
                effect = analyse(data, design, seed=1).arms[1].effect
                assert effect is not None
                found = effect.body_us
                state = "overflows" if written - begun > size else "not yet full"
                print(
                    f"| {size:,} | {state} | {each:.1f} |"
                    f" {found.estimate:+.2f} ± {found.half_width:.2f} µs |"
                    f" {1000 * found.estimate / each:.1f} ± {1000 * found.half_width / each:.1f} ns"
                    " |",
                    flush=True,
                )


def _records(target: harness.Server) -> int:
    with own_session.connect(target.dsn) as conn:
        row = conn.execute("SELECT trace_records FROM pg_stat_wait_event_timing_info").fetchone()
    assert row is not None
    return int(row[0])


def _pid(target: harness.Server, application: str) -> int:
    with own_session.connect(target.dsn) as conn:
        row = conn.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s", (application,)
        ).fetchone()
    if row is None:
        raise MeasurementError("the load has no session")
    return int(row[0])


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("losses", "cost"), nargs="+", default=["losses", "cost"])
    parser.add_argument("--reads", type=int, default=64)
    parser.add_argument("--drain-seconds", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=12, help="of a weighing")
    parser.add_argument("--large", type=int, default=1 << 22, help="records of the largest ring")
    parser.add_argument("--passes", type=int, default=4, help="weighings of the largest ring")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    library = loadable(from_wheel(), MODULE).library
    with harness.server([library]) as target:
        with own_session.connect(target.dsn) as conn:
            conn.execute(loadable(target.binaries, MODULE).create_sql.encode())
            conn.execute("CREATE EXTENSION pg_prewarm")
        if "losses" in args.part:
            losses(target, args)
        if "cost" in args.part:
            cost(target, args)


if __name__ == "__main__":
    main()
