"""Try the server modules on aarch64, emulated by QEMU: `python -m tests.versions.aarch64`.

The modules are compiled without a warning, and a server of aarch64 runs with all of them. Clients
are of this machine. An emulation on x86-64 shows that hooks and arithmetic work; it has the memory
order of x86-64, so it shows nothing about that of aarch64 (server/MEMORY-ORDER.md).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg
from rich.console import Console
from rich.table import Table

from pgtare.errors import PgtareError
from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import PRELOAD_ORDER, install
from pgtare.postgres.settings import Value
from tests.lint_c import compile_for
from tests.servers import CRASH_WORDS
from tests.sessions import Connection, bare_session, eventually, one, rows, session
from tests.trace_records import check_whole, drain, trace_of
from tests.trials import share, trial
from tests.versions import aarch64_server
from tests.versions.servers import say

SETTINGS: dict[str, Value] = {
    "wait_event_timing.capture": "trace",
    "compute_query_id": True,
    "shared_buffers": "1MB",
    "autovacuum_naptime": "1s",
}
START_SECONDS = 120.0
#: The frequency that QEMU gives its virtual counter.
QEMU_HZ = 62_500_000
SLEEPS = 40
INJECTED_US = 1000.0
UNITS = 400


@dataclass
class Finding:
    """What was tried, what came of it, and whether that is as it should be."""

    tried: str
    found: str
    good: bool


def compiled(binaries: Binaries) -> Finding:
    failed = [name for name in PRELOAD_ORDER if not compile_for(
        binaries.pg_config, f"{binaries.version} on aarch64", name)]  # fmt: skip
    found = f"not without a warning: {', '.join(failed)}" if failed else "no warning"
    return Finding("three modules compiled, warnings as errors", found, not failed)


def extensions(connection: Connection) -> Finding:
    for name in PRELOAD_ORDER:
        connection.execute(f"CREATE EXTENSION {name}".encode())
    made = rows(
        connection, "SELECT extname, extversion FROM pg_extension WHERE extname <> 'plpgsql'"
    )
    machine = one(connection, "SELECT version()").partition(" on ")[2].partition(",")[0]
    shown = ", ".join(f"{name} {version}" for name, version in made)
    good = len(made) == len(PRELOAD_ORDER) and machine.startswith("aarch64")
    return Finding("extensions made", f"{shown}; on {machine}", good)


def slots(connection: Connection) -> Finding:
    waits = rows(
        connection,
        "SELECT slots_installed, slots_intact, slots_problem FROM pg_stat_wait_event_timing_info",
    )
    trials = rows(
        connection, "SELECT slots_installed, slots_intact, slots_problem FROM pgtare.info()"
    )
    found = "; ".join(
        f"{name}: {installed} replaced, {intact} intact"
        for name, ((installed, intact, _),) in (("waits", waits), ("trials", trials))
    )
    good = all(0 < installed == intact and problem is None
               for ((installed, intact, problem),) in (waits, trials))  # fmt: skip
    return Finding("call slots of the executable", found, good)


def processes(connection: Connection) -> Finding:
    """Whether every kind of process that runs has waited under the module's eyes."""
    connection.execute("CREATE TABLE wide AS SELECT generate_series(1, 20000) i")
    for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
        connection.execute(f"SET {setting} = 0".encode())
    connection.execute("SELECT count(*) FROM wide")
    connection.execute("CHECKPOINT")
    # the views name this worker by its name, and ours by its kind
    wanted = (
        "SELECT DISTINCT replace(backend_type, 'logical replication launcher', "
        "'background worker') FROM pg_stat_activity"
    )
    seen = "SELECT DISTINCT backend_type FROM pg_stat_wait_event_timing_system"

    def lacking() -> set[tuple[str]]:
        return {*rows(connection, wanted), ("parallel worker",)} - {*rows(connection, seen)}

    try:
        eventually(lambda: not lacking(), 30)
    except TimeoutError:
        missing = ", ".join(sorted(name for (name,) in lacking()))
        return Finding("waits seen in all processes", f"not in {missing}", good=False)
    kinds = ", ".join(sorted(name for (name,) in rows(connection, seen)))
    return Finding("waits seen in all processes", kinds, good=True)


def counted(connection: Connection, event: str) -> int:
    """Waits of the session so far."""
    query = (
        "SELECT coalesce(sum(waits), 0)::int FROM pg_stat_wait_event_timing "
        "WHERE pid = pg_backend_pid() AND wait_event = %s"
    )
    return int(one(connection, query, event))


def sleeps(connection: Connection) -> Finding:
    before = counted(connection, "PgSleep")
    for _ in range(SLEEPS):
        connection.execute("SELECT pg_sleep(0.005)")
    found = counted(connection, "PgSleep") - before
    return Finding(f"{SLEEPS} calls of pg_sleep counted", f"{found} waits", found == SLEEPS)


def reads(connection: Connection) -> Finding:
    """Whether a scan's reads are as many as EXPLAIN has them."""
    connection.execute("CREATE TABLE large AS SELECT i, repeat('x', 900) s FROM "
                       "generate_series(1, 4000) i")  # fmt: skip
    for statement in ("VACUUM large", "SET max_parallel_workers_per_gather = 0", "CHECKPOINT"):
        connection.execute(statement.encode())
    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(*) FROM large"
    connection.execute(query.encode())
    before = counted(connection, "DataFileRead")
    plan = one(connection, query)[0]
    found = counted(connection, "DataFileRead") - before
    read = plan["Plan"]["Shared Read Blocks"] + plan["Planning"]["Shared Read Blocks"]
    # asking for the count may itself read a page or two of a catalog
    good = read > 400 and read <= found <= read + 5
    return Finding("reads of a scan counted", f"{found} waits, {read} blocks read", good)


def clock(connection: Connection) -> Finding:
    """The virtual counter's rate, and a sleep by it next to the client's clock."""
    name, hz, reason = rows(
        connection, "SELECT clock, counter_hz, clock_reason FROM pg_stat_wait_event_timing_info"
    )[0]
    query = (
        "SELECT coalesce(sum(total_time), 0) FROM pg_stat_wait_event_timing "
        "WHERE pid = pg_backend_pid() AND wait_event = 'PgSleep'"
    )
    before = one(connection, query)
    started = time.monotonic()
    connection.execute("SELECT pg_sleep(4)")
    outside = (time.monotonic() - started) * 1000
    inside = one(connection, query) - before
    ppm = (hz / QEMU_HZ - 1) * 1e6
    good = name == "tsc" and reason == "the architecture's counter" and abs(ppm) < 200
    good = good and 4000 - 0.5 <= inside <= outside + 0.5
    found = (
        f"cntvct_el0 at {hz:,.0f} Hz, {ppm:+.1f} ppm from QEMU's {QEMU_HZ:,}; a sleep of 4 s: "
        f"{inside:.3f} ms by it, {outside:.3f} ms seen by the client"
    )
    return Finding("clock", found, good)


def traced(cluster: Cluster, observer: Connection) -> Finding:
    with bare_session(cluster) as client:
        client.execute("SET sql_trace.level = 12; SET sql_trace.rowsource_sampling = 1")
        pid = client.info.backend_pid
        start = drain(observer, pid)[0]
        with client.transaction():
            client.execute("SELECT count(*) FROM wide WHERE i > %s", (100,))
            client.execute("UPDATE wide SET i = i + 1 WHERE i < 50")
        client.execute("SELECT pg_sleep(0.02)")
        trace = trace_of(observer, pid, start)
        waits = rows(
            observer, "SELECT kind FROM wait_event_trace(%s) WHERE wait_event = 'PgSleep'", pid
        )
    check_whole(trace)
    kinds = [record.kind for record in trace.records]
    scanned = [record for record in trace.records if record.kind == "call" and record.rows == 49]
    wanted = ("request", "call", "binds", "plan", "rowsources", "transaction")
    good = all(kind in kinds for kind in wanted) and bool(scanned) and len(waits) == 1
    shown = ", ".join(f"{kinds.count(kind)} {kind}" for kind in wanted)
    return Finding("SQL trace at level 12", f"{len(kinds)} records, all whole: {shown}", good)


def delayed(cluster: Cluster) -> Finding:
    """A trial of two arms, one of them delayed."""
    with (
        trial(cluster, ({}, {}), inject_ns=(0, int(INJECTED_US * 1000))) as running,
        bare_session(cluster) as client,
    ):
        for _ in range(UNITS):
            client.execute("SELECT 1")
        observed = running.observed(client, UNITS)
    sound = (observed["flags"] & UnitFlag.FIRST_RUN) == 0
    by_block: dict[int, dict[int, float]] = {}
    for row in observed[sound]:
        by_block.setdefault(int(row["block"]), {})[int(row["arm"])] = row["service_ns"] / 1000
    pairs = [arms[1] - arms[0] for arms in by_block.values() if len(arms) == 2]
    effect = statistics.median(pairs)
    half = 1.96 * 1.2533 * float(np.std(pairs, ddof=1)) / len(pairs) ** 0.5
    good = len(pairs) > UNITS / 3 and 0.9 * INJECTED_US < effect < 1.3 * INJECTED_US
    good = good and share(observed, UnitFlag.NO_ARRIVAL) < 0.05
    found = f"{effect:.0f} µs (± {half:.0f}), median of {len(pairs)} blocks"
    return Finding(f"trial with a delay of {INJECTED_US:.0f} µs", found, good)


def try_server(binaries: Binaries) -> list[Finding]:
    """Start a server and look at all that it should do."""
    for name in PRELOAD_ORDER:
        say(f"building {name}")
        install(binaries, name, force=True)
    found: list[Finding] = []
    with (
        Cluster(binaries, SETTINGS, list(PRELOAD_ORDER), start_seconds=START_SECONDS) as cluster,
        session(cluster) as connection,
        session(cluster) as observer,
    ):
        steps: list[tuple[str, Callable[[], Finding]]] = [
            ("extensions", lambda: extensions(connection)),
            ("call slots", lambda: slots(connection)),
            ("waits in all processes", lambda: processes(connection)),
            ("sleeps", lambda: sleeps(connection)),
            ("reads", lambda: reads(connection)),
            ("clock", lambda: clock(connection)),
            ("SQL trace", lambda: traced(cluster, observer)),
            ("trial", lambda: delayed(cluster)),
        ]
        for name, step in steps:
            try:
                found.append(step())
            except (psycopg.Error, PgtareError, AssertionError) as ex:
                found.append(Finding(name, str(ex) or repr(ex), good=False))
            say(f"{found[-1].tried}: {found[-1].found}")
        log = Path(cluster.log_path).read_text(errors="replace")
    bad = [line for line in log.splitlines() if any(word in line for word in CRASH_WORDS)]
    found.append(Finding("no process died", bad[0] if bad else "none", not bad))
    return found


def table(findings: list[Finding]) -> Table:
    shown = Table(title="pgtare on aarch64, emulated by QEMU", show_lines=True)
    for name in ("tried", "found", "as it should be"):
        shown.add_column(name)
    for finding in findings:
        shown.add_row(finding.tried, finding.found, "yes" if finding.good else "NO")
    return shown


def main() -> int:
    try:
        binaries = aarch64_server.install(say)
        findings = [compiled(binaries)]
        if findings[0].good:
            findings += try_server(binaries)
    except PgtareError as ex:
        say(str(ex))
        return 2
    Console(width=None if sys.stdout.isatty() else 120).print(table(findings))
    return 0 if all(finding.good for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
