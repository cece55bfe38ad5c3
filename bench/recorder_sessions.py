"""Measures 500 sessions with the flight recorder on, and what keeping a trace takes.

`make bench-recorder`. pgbench runs with 500 clients, many more than have room in the recorder's
memory. `pgtare weigh sql_trace_recorder --unit slice` switches the recorder on and off for all of
them together, slice by slice, while the memory and the counters are read. Clients send their next
transaction as soon as the last is answered, so that throughput is one by the time of a transaction:
a cost of c is a throughput of 1 / (1 + c).

Then one session fills its ring, and meets an error of which a trigger keeps the trace, by turns
with one of which none does: its next request waits that much longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from bench.harness import say
from pgtare.kit.files import write_text
from pgtare.load import LoadSpec, PgbenchLoad, find_pgbench, initialise
from pgtare.server.binaries import Binaries, from_wheel
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable

_RINGS_KB = (64, 256, 1024, 4096)
_PAIRS = 15


@dataclass(frozen=True)
class Reading:
    """The recorder's memory and counters at a moment."""

    bytes: int
    used: int
    rings: int
    gave_way: int
    refused: int
    lost_records: int


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


def read(admin: psycopg.Connection[Any]) -> Reading:
    """All counters."""
    ((total, used, rings, gave_way, refused, lost),) = admin.execute(
        "SELECT r.bytes, r.bytes - r.free_bytes, r.rings, r.gave_way, r.refused, i.lost_records "
        "FROM pg_stat_sql_trace_recorder r, pg_stat_sql_trace_info i"
    ).fetchall()
    return Reading(total, used, rings, gave_way, refused, lost)


def throughput(cost_pct: Mapping[str, float]) -> dict[str, float]:
    """Of a closed loop, in % of that without the cost; lo and hi change places."""
    change = {end: 100 / (1 + cost_pct[end] / 100) - 100 for end in ("estimate", "lo", "hi")}
    return {"estimate": change["estimate"], "lo": change["hi"], "hi": change["lo"]}


def many_sessions(binaries: Binaries, clients: int, seconds: int, budget_mb: int) -> dict[str, Any]:
    """What the weighing says, and the memory and the counters while it ran."""
    names = ("pgtare", "wait_event_timing", "sql_trace")
    modules = [loadable(binaries, name) for name in names]
    settings = {
        "max_connections": clients + 20,
        "pgtare.ring_memory": "256MB",
        "sql_trace.recorder_memory": f"{budget_mb}MB",
    }
    readings: list[Reading] = []
    over = threading.Event()
    with Cluster(binaries, settings, [module.library for module in modules]) as cluster:
        database = initialise(binaries, cluster.dsn(), 10)
        with psycopg.connect(database.dsn, autocommit=True) as admin:
            for module in modules:
                admin.execute(module.create_sql.encode())
            admin.execute("SET search_path = public, sql_trace")
            spec = LoadSpec(clients=clients, protocol="prepared")
            with PgbenchLoad(find_pgbench(binaries), database.dsn, spec) as load:
                load.wait_ready(120)
                say(f"{clients} sessions run")

                def watch() -> None:
                    while not over.wait(0.5):
                        readings.append(read(admin))

                watching = threading.Thread(target=watch)
                watching.start()
                try:
                    document = weigh(database.dsn, load.application_name, seconds)
                finally:
                    over.set()
                    watching.join()
                readings.append(read(admin))
    return {"weighing": document, "readings": [asdict(one) for one in readings]}


def weigh(dsn: str, application: str, seconds: int) -> dict[str, Any]:
    """The JSON document of a trial by slices on the load's own sessions."""
    command = [sys.executable, "-m", "pgtare", "weigh", "sql_trace_recorder", "--dsn", dsn]
    command += ["--allow", "sql_trace_recorder", "--application", application, "--yes"]
    command += ["--unit", "slice", "--slice-ms", "150-450", "--duration", f"{seconds}s", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(f"pgtare weigh ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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


def rows(found: Mapping[str, Any], budget_mb: int) -> list[tuple[str, str]]:
    """What was seen of the many sessions."""
    document, readings = found["weighing"], [Reading(**one) for one in found["readings"]]
    (arm,) = [one for one in document["arms"] if one["role"] == "instrument"]
    cost = arm["effect"]["body_pct"]
    changed = throughput(cost)
    first, last = readings[0], readings[-1]

    def percent(of: Mapping[str, float]) -> str:
        return f"{of['estimate']:+.1f} %, {of['lo']:+.1f} to {of['hi']:+.1f}"

    return [
        ("memory of rings and their budget", f"{last.bytes:,} of {budget_mb << 20:,} bytes"),
        ("used at most", f"{max(one.used for one in readings):,} bytes"),
        ("rings at most", f"{max(one.rings for one in readings):,}"),
        ("rings that gave way", f"{last.gave_way - first.gave_way:,}"),
        ("no room for a ring", f"{last.refused - first.refused:,}"),
        ("records lost", f"{last.lost_records - first.lost_records:,}"),
        ("a transaction takes more", percent(cost)),
        ("throughput, as follows", percent(changed)),
        ("transactions", f"{arm['n']:,} on, {document['baseline']['n']:,} off"),
        ("verdict of the weighing", arm["verdict"]),
        ("proof", arm["proof"]["evidence"]),
    ]


def within(readings: Sequence[Mapping[str, int]], budget_mb: int) -> bool:
    """Whether the memory was within the budget at every reading."""
    return all(max(one["bytes"], one["used"]) <= budget_mb << 20 for one in readings)


def main() -> int:
    """Print two tables; 1 if the memory was not within its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=90, help="of the weighing")
    parser.add_argument("--memory", type=int, default=64, help="of the recorder, in MB")
    parser.add_argument("--part", choices=["sessions", "copying"], help="only this")
    parser.add_argument("--output", type=Path, default=Path("recorder.json"), help="JSON")
    args = parser.parse_args()
    binaries = from_wheel()
    shown = Console(width=None if sys.stdout.isatty() else 100)
    document: dict[str, Any] = {"schema": "pgtare.bench.recorder/1", "server": binaries.version}
    well = True
    if args.part != "copying":
        found = many_sessions(binaries, args.clients, args.seconds, args.memory)
        document["sessions"] = found
        table = Table("", "", title=f"{args.clients} sessions, {binaries.version}")
        for row in rows(found, args.memory):
            table.add_row(*row)
        shown.print(table)
        well = within(found["readings"], args.memory)
    if args.part != "sessions":
        copies = copying(binaries)
        document["copying"] = [asdict(one) for one in copies]
        table = Table(
            "ring", "kept", "answer later by", "next one later by", "processor time",
            title="What it takes to keep a trace (medians)",
        )  # fmt: skip
        for one in copies:
            table.add_row(
                f"{one.ring_kb} kB",
                f"{one.kept_bytes:,} bytes",
                f"{one.answer_later_us:,.0f} µs",
                f"{one.next_later_us:,.0f} µs",
                f"{one.cpu_us:,.0f} µs",
            )
        shown.print(table)
    write_text(args.output, json.dumps(document, indent=1) + "\n")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
