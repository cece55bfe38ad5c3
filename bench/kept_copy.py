"""What keeping the trace of a session takes, by the size of its ring.

A session fills its ring, and meets an error of which a trigger keeps the trace, by turns with one
of which none does: its next request waits that much longer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from pgtare.postgres.binaries import Binaries, from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable

TAKES = "a minute"

_RINGS_KB = (64, 256, 1024, 4096)
_PAIRS = 15


@dataclass(frozen=True)
class Copying:
    """What it takes to keep the trace of a ring: medians of pairs.

    answer_later_us: of the request that fires. next_later_us: of the one after it; on a busy
    machine the copy can be over before the client runs again. cpu_us: of the server process.
    """

    ring_kb: int
    kept_bytes: int
    answer_later_us: float
    next_later_us: float
    cpu_us: float


def on_processor_ns(pid: int) -> int:
    """How long a process has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def copying(binaries: Binaries) -> list[Copying]:
    """What keeping a full ring takes, by its size."""
    modules = [loadable(binaries, name) for name in ("wait_event_timing", "sql_trace")]
    settings = {
        "sql_trace.recorder_memory": "64MB",
        "sql_trace.recorder": True,
        "sql_trace.keep_sqlstates": "22012",
        "sql_trace.keep_interval": 0,
        "sql_trace.keep_most": 32,
    }
    with (
        Cluster(binaries, settings, [module.library for module in modules]) as cluster,
        cluster.connect() as admin,
    ):
        for module in modules:
            admin.execute(module.create_sql.encode())
        admin.execute("SET search_path = public, sql_trace")
        return [copying_of(cluster, admin, ring_kb) for ring_kb in _RINGS_KB]


def copying_of(cluster: Cluster, admin: psycopg.Connection[Any], ring_kb: int) -> Copying:
    """By turns with an error that no trigger fires for."""
    more: list[tuple[float, ...]] = []
    size = 0
    dsn = cluster.dsn(options=f"-c sql_trace.recorder_ring={ring_kb}kB")
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as client:
        fill = "x" * 1000
        for number in range(3 * ring_kb // 2):  # some 1.2 kB each: it has been written around
            client.execute(f"SELECT {number}, '{fill}'".encode())
        for _ in range(_PAIRS):
            kept = after_error(client, "SELECT 1 / 0")
            plain = after_error(client, "SELECT 'x'::int")
            more.append(tuple((a - b) / 1000 for a, b in zip(kept, plain, strict=True)))
            found = admin.execute(
                "SELECT bytes, sql_trace_kept_forget(id) FROM sql_trace_kept()"
            ).fetchall()
            size = max([size, *(int(row[0]) for row in found)])
    if not size:
        raise RuntimeError("no trace was kept: there is nothing to measure")
    return Copying(
        ring_kb, size, *(statistics.median(column) for column in zip(*more, strict=True))
    )


def after_error(client: psycopg.Connection[Any], query: str) -> tuple[int, int, int]:
    """In ns: how long the answer takes, then the next one, and what the server worked for both."""
    pid = client.info.backend_pid
    worked, began = on_processor_ns(pid), time.perf_counter_ns()
    # not by execute: an exception takes as long as a small copy
    if client.pgconn.exec_(query.encode()).status != psycopg.pq.ExecStatus.FATAL_ERROR:
        raise RuntimeError(f"{query}: no error")
    answered = time.perf_counter_ns()
    client.pgconn.exec_(b"SELECT 1")
    return answered - began, time.perf_counter_ns() - answered, on_processor_ns(pid) - worked


def main(_: argparse.Namespace) -> None:
    """Print a table."""
    table = Table(
        "ring", "kept", "answer later by", "next one later by", "processor time",
        title="What it takes to keep a trace (medians)",
    )  # fmt: skip
    for one in copying(from_wheel()):
        table.add_row(
            f"{one.ring_kb} kB",
            f"{one.kept_bytes:,} bytes",
            f"{one.answer_later_us:,.0f} µs",
            f"{one.next_later_us:,.0f} µs",
            f"{one.cpu_us:,.0f} µs",
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)
