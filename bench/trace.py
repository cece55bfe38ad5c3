"""What a wait takes on disk, and how fast waits are read and summed.

Bytes: of three loads of a real server, recorded by `pgtare trace record`; first those of the table
of waits as the recorder wrote it, in blocks of some seconds, then of the whole recording, calls and
marks between waits included; at last those of the three loads together. Rate: these waits, repeated
to a size worth timing, written by the recorder's own writer, read and summed by event on one core;
the middle of five, and their range.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pgtare.observing.trace.capture.record import TraceRecorder
from pgtare.observing.trace.capture.server import open_server
from pgtare.observing.trace.capture.target import Target
from pgtare.observing.trace.file import blocks
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.observing.trace.file.reader import MAX_EVENTS, Trace, load, scan
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value

TAKES = "a minute"
ONE_THREAD = True

SECONDS = 5.0
#: Waits that are written and read to time it.
WAITS = 4_000_000
TIMES = 5
GOAL_BYTES, GOAL_RATE = 3.0, 15e6
_LIMITS = Limits(total=8 << 30, reserve=0)
_SCAN = "\\set a random(1, 1000000)\nSELECT abalance FROM pgbench_accounts WHERE aid = :a;\n"


def main(_: argparse.Namespace) -> None:
    """Record three loads, and print bytes a wait and waits a second for each."""
    binaries = from_wheel()
    modules = [loadable(binaries, name) for name in ("wait_event_timing", "sql_trace")]
    settings: dict[str, Value] = {"compute_query_id": True, "shared_buffers": "4MB"}
    with (
        Cluster(binaries, settings, preload=[m.library for m in modules]) as cluster,
        tempfile.TemporaryDirectory() as name,
    ):
        with cluster.connect() as connection:
            for module in modules:
                connection.execute(module.create_sql.encode())
        directory = Path(name)
        dsn = cluster.dsn()
        pgbench = str(binaries.pgbench)
        subprocess.run([pgbench, "-i", "-q", "-s", "10", dsn], check=True, capture_output=True)
        script = directory / "scan.sql"
        script.write_text(_SCAN)
        taken = waits = 0
        for label, options in (
            ("tpcb-like", ["-c", "4"]),
            ("buffer misses", ["-c", "2", "-f", str(script)]),
            ("select-only", ["-c", "2", "-S"]),
        ):
            path = directory / f"{label}.pgtrace"
            found = _record(dsn, path, [pgbench, "-n", *options, dsn])
            _measure(label, found, path, directory)
            taken += _bytes_of_waits(path)
            waits += _waits(found)
        sys.stdout.write(f"together: {taken / waits:.2f} bytes a wait (goal {GOAL_BYTES:g})\n")


def _record(dsn: str, path: Path, load_command: list[str]) -> Trace:
    command = [*load_command[:-1], "-T", str(round(SECONDS)), load_command[-1]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as load_:
        with open_server(dsn) as server:
            recorder = TraceRecorder(server, dsn, path, Target(level=8), _LIMITS)
            recorder.run(SECONDS - 1, lambda now: None)
        load_.wait()
    return load(path)


def _waits(found: Trace) -> int:
    return sum(len(w.start) for w in found.waits.values())


def _bytes_of_waits(path: Path) -> int:
    """What the blocks of the table of waits take in a recording of one file."""
    data, at, found = path.read_bytes(), blocks.FILE_HEADER, 0
    while at < len(data):
        table, _, _, stored = struct.unpack_from("<HHII", data, at + 4)
        if table == Table.WAITS:
            found += blocks.BLOCK_HEADER + stored
        at += blocks.BLOCK_HEADER + stored
    return found


def _measure(label: str, found: Trace, recorded: Path, directory: Path) -> None:
    waits = _waits(found)
    if not waits:
        sys.stdout.write(f"{label}: no waits\n")
        return
    copies = -(-WAITS // waits)
    many = _written(found, directory / f"{label}-many.pgtrace", copies)
    rates = sorted(waits * copies / _timed(many) / 1e6 for _ in range(TIMES))
    sys.stdout.write(
        f"{label}: {waits:,} waits recorded, {_bytes_of_waits(recorded) / waits:.2f} bytes a wait "
        f"(goal {GOAL_BYTES:g}), {recorded.stat().st_size / waits:.2f} with calls and marks, "
        f"{rates[TIMES // 2]:.1f} M waits/s read and summed ({rates[0]:.1f} to {rates[-1]:.1f}; "
        f"goal {GOAL_RATE / 1e6:g})\n"
    )
    many.unlink()


def _written(found: Trace, path: Path, copies: int) -> Path:
    """The waits of a trace, several times one after another, in a file of their own."""
    parts = list(found.waits.items())
    first = min(int(w.start[0]) for _, w in parts)
    span = max(int(w.start[-1]) for _, w in parts) - first + 10**6
    writer = Writer(path, b"{}", _LIMITS)
    for copy in range(copies):
        for ring, w in parts:
            rows = {
                "ring": np.full(len(w.start), ring),
                "event": w.event,
                "gap_ns": w.start + copy * span,
                "length_ns": w.length,
                "calls": w.calls,
            }
            writer.add(Table.WAITS, rows)
    writer.close(b"{}")
    return path


def _timed(path: Path) -> float:
    """CPU seconds to read a trace and sum it up: of one core, whatever else the machine does."""
    began = time.process_time()
    spent = np.zeros(MAX_EVENTS)
    for block in scan(path):
        if isinstance(block, blocks.Block) and block.table == Table.WAITS:
            event, length = (np.asarray(block.columns[name]) for name in ("event", "length_ns"))
            spent += np.bincount(event, length, MAX_EVENTS)
    return time.process_time() - began
