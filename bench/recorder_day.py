"""Mixed load for hours with the flight recorder and its triggers on: `make bench-recorder-day`.

pgbench writes and reads all the time. Meanwhile sessions queue for a lock, deadlock, fail, are cut
off, are cancelled, change their role, and send large texts, again and again. At the end every
kept recording is read: it must be whole, its end must say that it is, and its profile must add up
to the time that it covers. No number may be missing that counters do not explain, no unfinished
file may be left, the recorder's memory must be within its budget, and the server's log may hold
no crash and no complaint of the modules.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from bench.harness import say
from pgtare.kit.files import write_text
from pgtare.load import LoadSpec, PgbenchLoad, find_pgbench, initialise
from pgtare.seeing.trace.analysis.ledger import ledger
from pgtare.seeing.trace.analysis.profile import profile
from pgtare.seeing.trace.file.reader import load
from pgtare.server.binaries import Binaries, from_pg_config, from_wheel
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable
from pgtare.server.os_account import server_account
from pgtare.server.settings import Value

BUDGET_MB = 16
SETTINGS: dict[str, Value] = {
    "compute_query_id": True,
    "deadlock_timeout": "100ms",
    "max_connections": 60,
    "sql_trace.recorder": True,
    "sql_trace.recorder_memory": f"{BUDGET_MB}MB",
    "sql_trace.keep_slower_than": "500ms",
    "sql_trace.keep_lock_wait": "300ms",
    "sql_trace.keep_sqlstates": "40P01, 57014, 22, 42",
    "sql_trace.keep_interval": "1s",
    "sql_trace.keep_most": 32,
    "sql_trace.keep_files": 100_000,
    "sql_trace.keep_files_size": "20GB",
}
#: What the log of a server that is well does not have; errors are the load's own.
_WRONG = re.compile(r"PANIC:|terminated by signal|was terminated|WARNING:.*(sql_trace|wait_event)")
_OURS = re.compile(r"LOG:\s+sql_trace (cannot|keeps|could not|stopped)")
_NUMBER = re.compile(r"kept-.*-(\d+)\.pgtrace$")


@dataclass
class Day:
    """What happened, by kind, and what is wrong."""

    happened: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    most_used: int = 0


Incident = Callable[[Cluster, random.Random], None]


def _session(cluster: Cluster, role: str = "shop") -> psycopg.Connection[Any]:
    return psycopg.connect(
        cluster.dsn(user=role, application_name="day"), autocommit=True, prepare_threshold=None
    )


def lock_queue(cluster: Cluster, draw: random.Random) -> None:
    with _session(cluster) as holder, _session(cluster) as waiting:
        holder.execute("BEGIN; LOCK TABLE things IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=_quietly, args=(waiting, "SELECT count(*) FROM things"))
        thread.start()
        time.sleep(draw.uniform(0.2, 2.5))
        holder.execute("COMMIT")
        thread.join()


def deadlock(cluster: Cluster, draw: random.Random) -> None:
    with _session(cluster) as one, _session(cluster) as two:
        for client, item in ((one, 1), (two, 2)):
            client.execute(f"BEGIN; UPDATE things SET n = n + 1 WHERE item = {item}")
        thread = threading.Thread(
            target=_quietly, args=(two, "UPDATE things SET n = n + 1 WHERE item = 1")
        )
        thread.start()
        _quietly(one, "UPDATE things SET n = n + 1 WHERE item = 2")
        _quietly(one, "ROLLBACK")
        thread.join()
        _quietly(two, "ROLLBACK")


def error(cluster: Cluster, draw: random.Random) -> None:
    with _session(cluster) as client:
        for query in ("SELECT 1 / 0", "SELECT nothing FROM things", "SELECT 'x'::int"):
            _quietly(client, query)


def disconnect(cluster: Cluster, draw: random.Random) -> None:
    """The client goes away in the midst of a statement."""
    client = _session(cluster)
    client.pgconn.send_query(b"SELECT pg_sleep(0.7)")
    client.pgconn.flush()
    time.sleep(draw.uniform(0, 0.3))
    client.close()


def cancelled(cluster: Cluster, draw: random.Random) -> None:
    with _session(cluster) as client:
        threading.Timer(draw.uniform(0.05, 0.8), client.cancel).start()
        _quietly(client, "SELECT pg_sleep(2)")


def role_switch(cluster: Cluster, draw: random.Random) -> None:
    with _session(cluster, "postgres") as client:
        for role in ("shop", "janitor", "shop"):
            client.execute(f"SET ROLE {role}".encode())
            client.execute("SELECT count(*) FROM things")
        client.execute("RESET ROLE")
        client.execute("SELECT pg_sleep(0.55)")


def large_text(cluster: Cluster, draw: random.Random) -> None:
    with _session(cluster) as client:
        for size in (1_000, 50_000, 2_000_000):
            client.execute(f"SELECT {draw.randrange(10**6)}, '{'x' * size}'".encode())
        client.execute("SELECT pg_sleep(0.55), length(%s)", ("y" * 500_000,))


INCIDENTS: tuple[Incident, ...] = (
    lock_queue,
    deadlock,
    error,
    disconnect,
    cancelled,
    role_switch,
    large_text,
)


def _quietly(client: psycopg.Connection[Any], query: str) -> None:
    with contextlib.suppress(psycopg.Error):
        client.execute(query.encode())


@contextlib.contextmanager
def server(binaries: Binaries) -> Iterator[tuple[Cluster, str, Path]]:
    """A server with the recorder on; with the DSN of pgbench's tables, and where files are."""
    modules = [loadable(binaries, name) for name in ("wait_event_timing", "sql_trace")]
    with tempfile.TemporaryDirectory(prefix="pgtare-day-", dir="/var/tmp") as directory:
        server_account().give(Path(directory))
        kept = Path(directory, "kept")
        settings = SETTINGS | {"sql_trace.keep_directory": str(kept)}
        with Cluster(binaries, settings, [module.library for module in modules]) as cluster:
            with cluster.connect() as admin:
                for module in modules:
                    admin.execute(module.create_sql.encode())
                admin.execute(
                    "CREATE ROLE shop LOGIN; CREATE ROLE janitor LOGIN; "
                    "CREATE TABLE things AS SELECT n AS item, 0 AS n "
                    "FROM generate_series(1, 100) n; "
                    "GRANT ALL ON things TO shop, janitor"
                )
            yield cluster, initialise(binaries, cluster.dsn(), 2).dsn, kept


def live(cluster: Cluster, dsn: str, seconds: float, day: Day, seed: int) -> None:
    """The load and its incidents until the time is over. Ctrl-C ends it early."""
    draw = random.Random(seed)
    pgbench = find_pgbench(cluster.binaries)
    until = time.monotonic() + seconds
    said = time.monotonic()
    with (
        PgbenchLoad(pgbench, dsn, LoadSpec("tpcb-like", clients=3, rate=100)) as writes,
        PgbenchLoad(pgbench, dsn, LoadSpec(clients=3, protocol="prepared")) as reads,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while time.monotonic() < until:
            happen = draw.choice(INCIDENTS)
            happen(cluster, draw)
            day.happened[happen.__name__] += 1
            look(cluster, day)
            for running in (writes, reads):
                running.check()
            if time.monotonic() > said + 60:
                said = time.monotonic()
                left = (until - said) / 60
                say(f"{left:.0f} min left, {sum(day.happened.values())} incidents")


def look(cluster: Cluster, day: Day) -> None:
    """The memory that is used, and what is kept; what is in a file makes room for others."""
    with cluster.connect() as admin:
        admin.execute("SET search_path = public, sql_trace")
        admin.execute(
            "SELECT sql_trace_kept_forget(id) FROM sql_trace_kept() "
            "WHERE file IS NOT NULL AND at < now() - interval '3 s'"
        )
        ((used,),) = admin.execute(
            "SELECT bytes - free_bytes FROM pg_stat_sql_trace_recorder"
        ).fetchall()
        day.most_used = max(day.most_used, int(used))


def settle(cluster: Cluster, day: Day) -> None:
    """Wait until the server's worker has written what it has to, two minutes at most."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        look(cluster, day)
        with cluster.connect() as admin:
            admin.execute("SET search_path = public, sql_trace")
            ((left,),) = admin.execute(
                "SELECT count(*) FROM sql_trace_kept() WHERE file IS NULL"
            ).fetchall()
        if not left:
            return
        time.sleep(0.5)
    day.wrong.append(f"{left} kept traces are in no file after two minutes")


def check_file(path: Path) -> str | None:
    """What is wrong with a kept recording; None: nothing."""
    trace = load(path)
    if trace.damages:
        return f"damaged: {trace.damages[0]}"
    if trace.end is None or trace.end.get("stopped_by") != "kept":
        return f"its end is {trace.end}"
    if not trace.recording.get("kept"):
        return "it does not say what fired"
    if not any(ring.kind == "sql" for ring in trace.rings.values()):
        return "it has no ring of calls"
    book = ledger(trace)
    if not len(book.calls):
        return "it has no calls"
    by = {grouping: profile(book, grouping) for grouping in ("event", "statement")}
    for grouping, found in by.items():
        sums = sum(line.ns for line in found.lines)
        if not math.isclose(sums, found.total_ns, rel_tol=1e-6, abs_tol=1000):
            return f"by {grouping}, its profile is {sums:.0f} ns of {found.total_ns:.0f}"
    if not math.isclose(by["event"].total_ns, by["statement"].total_ns, rel_tol=1e-6):
        return "its totals by event and by statement differ"
    return None


def holes(numbers: Sequence[int], ever: int) -> list[int]:
    """The numbers up to `ever` that are not among those given."""
    return sorted(set(range(1, ever + 1)) - set(numbers))


def complaints(log: str) -> list[str]:
    """Lines of a server's log that should not be there."""
    return [one for one in log.splitlines() if _WRONG.search(one) or _OURS.search(one)]


def check(cluster: Cluster, kept: Path, day: Day) -> dict[str, Any]:
    """What there is at the end; adds what is wrong to the day."""
    names = sorted(os.listdir(kept))
    files = [kept / name for name in names if name.endswith(".pgtrace")]
    day.wrong += [f"{name} was left" for name in names if "partial" in name]
    for path in files:
        try:
            wrong = check_file(path)
        except Exception as ex:  # of whatever kind: a reader must not fail
            wrong = f"{type(ex).__name__}: {ex}"
        if wrong:
            day.wrong.append(f"{path.name}: {wrong}")
    with cluster.connect() as admin:
        admin.execute("SET search_path = public, sql_trace")
        ((ever, skipped, refused),) = admin.execute(
            "SELECT kept, skipped, refused FROM sql_trace_kept_info()"
        ).fetchall()
        cursor = admin.execute("SELECT * FROM pg_stat_sql_trace_recorder")
        assert cursor.description is not None
        area = dict(zip([c.name for c in cursor.description], cursor.fetchall()[0], strict=True))
        ((lost,),) = admin.execute("SELECT lost_records FROM pg_stat_sql_trace_info").fetchall()
    written = [int(found[1]) for path in files if (found := _NUMBER.search(path.name))]
    missing = holes(written, int(ever))
    if len(missing) > refused:
        day.wrong.append(f"numbers without a file: {missing[:10]}, and {refused} were refused")
    if not files:
        day.wrong.append("nothing was kept")
    budget = BUDGET_MB << 20
    if max(day.most_used, area["bytes"]) > budget:
        day.wrong.append(f"{max(day.most_used, area['bytes']):,} bytes of {budget:,} were used")
    day.wrong += complaints(cluster.log_path.read_text(errors="replace"))
    return {
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "kept": ever,
        "skipped": skipped,
        "refused": refused,
        "without_file": missing,
        "most_used_bytes": day.most_used,
        "budget_bytes": budget,
        "lost_records": lost,
        "recorder": area,
    }


def main() -> int:
    """Print a table; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--pg-config", type=Path, help="of another server than the embedded one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("recorder-day.json"), help="JSON")
    args = parser.parse_args()
    day = Day()
    began = time.monotonic()
    binaries = from_pg_config(args.pg_config) if args.pg_config else from_wheel()
    with server(binaries) as (cluster, dsn, kept):
        live(cluster, dsn, args.hours * 3600, day, args.seed)
        lasted = time.monotonic() - began
        settle(cluster, day)
        found = check(cluster, kept, day)
    shown = Table("", "", title=f"{lasted / 60:.1f} minutes of mixed load, {binaries.version}")
    for name, times in sorted(day.happened.items()):
        shown.add_row(f"incident: {name.replace('_', ' ')}", f"{times:,}")
    for name, value in found.items():
        if not isinstance(value, dict):
            shown.add_row(
                name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)
            )
    for name in ("gave_way", "refused", "dictionary_replaced"):
        shown.add_row(f"recorder: {name}", f"{found['recorder'][name]:,}")
    shown.add_row("wrong", str(len(day.wrong)))
    Console(width=None if sys.stdout.isatty() else 100).print(shown)
    for wrong in day.wrong[:20]:
        print(wrong)
    document = {
        "schema": "pgtare.bench.recorder_day/1",
        "server": binaries.version,
        "seconds": lasted,
        "happened": dict(day.happened),
        "wrong": day.wrong,
        **found,
    }
    write_text(args.output, json.dumps(document, indent=1, default=str) + "\n")
    return 1 if day.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
