"""What wait_event_timing shows, held against the processor and the kernel, load by load.

Hardware watchpoints count every wait that a process announces, and time it from outside; the system
calls within time it from inside. See docs/ground-truth.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.versions.servers import DEBIAN15

from bench.harness import say
from bench.truth import calibrate, witness
from bench.truth.compare import Row
from bench.truth.loads import LOADS
from bench.truth.run import held_against_witness
from pgtare.errors import MeasurementError
from pgtare.postgres.binaries import Binaries, from_pg_config, from_wheel

TAKES = "half an hour, as root, with bpftrace (Debian: apt-get install bpftrace)"

HEAD = (
    "| load | process | event | announced | waits | > 10 µs | ours | found | ms by calls | away"
    " | ms, ours | ms by stores | off | open | calls |\n|---|---|---|" + "--:|" * 11 + "---|"
)
SHARE = 0.01


def table(name: str, rows: Sequence[Row]) -> list[str]:
    """Lines for events with over 1 % of their process's waiting, idle or not, and the others."""
    whole: dict[tuple[str, bool], float] = {}
    for row in rows:
        whole[row.who, row.idle] = whole.get((row.who, row.idle), 0.0) + row.ours_ms + row.calls_ms
    lines, others = [], []
    for row in sorted(rows, key=lambda row: (row.who, row.idle, -row.ours_ms)):
        if row.ours_ms + row.calls_ms > SHARE * whole[row.who, row.idle]:
            lines.append(line(name, row))
        else:
            others.append(row)
    if others:
        counts = [
            sum(getattr(row, count) for row in others)
            for count in ("announced", "waits", "long", "ours")
        ]
        worst = min(row.found_pct for row in others)
        lines.append(
            f"| {name} | | {len(others)} others | {' | '.join(f'{n:,}' for n in counts)} | "
            f"{worst:.1f} % | | | {sum(row.ours_ms for row in others):,.2f} | | | | |"
        )
    return lines


def line(name: str, row: Row) -> str:
    """Of the table."""
    calls = ", ".join(sorted(row.calls_seen, key=lambda call: -row.calls_seen[call])[:3])
    return (
        f"| {name} | {row.who} | {row.kind}:{row.event} | {row.announced:,} | {row.waits:,} | "
        f"{row.long:,} | {row.ours:,} | {row.found_pct:.1f} % | {row.calls_ms:,.2f} | "
        f"{row.away_ms:,.2f} | {row.ours_ms:,.2f} | {row.stores_ms:,.2f} | {row.off_pct:.1f} % | "
        f"{row.width_pct:.1f} % | {calls} |"
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--length", type=float, default=1.0, help="factor for the loads' length")
    parser.add_argument("--load", default="", help="only loads whose name contains this")
    parser.add_argument("--server", choices=["15", "18"], help="only this one")


def main(args: argparse.Namespace) -> None:
    """Run the loads and print a table for each server."""
    if why := witness.missing():
        raise MeasurementError(f"the witness cannot be heard here: {why}")
    servers: list[Binaries] = []
    if args.server != "15":
        servers.append(from_wheel())
    if args.server != "18" and DEBIAN15.exists():
        servers.append(from_pg_config(DEBIAN15))
    for binaries in servers:
        calibration = calibrate.calibrate()
        print(f"\nPostgreSQL {binaries.version}; {calibration.describe()}\n\n{HEAD}", flush=True)
        for load in LOADS:
            if args.load not in load.name or not load.runs_on(binaries):
                continue
            try:
                rows = held_against_witness(load, binaries, calibration, args.length)
            except MeasurementError as ex:
                say(f"{load.name}: {ex}")
                continue
            print("\n".join(table(load.name, rows)), flush=True)
