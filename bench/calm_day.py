"""A calm day in time-lapse under an agent: nothing of it may be a finding that wakes somebody.

pgbench's tpcb-like load runs at a tenth of what the server can do. Each "hour" has a checkpoint,
and autovacuum looks every few seconds. Each night pg_dump reads everything, then a batch changes
every tenth row of the largest table and an index is made anew. The exit status is 1 if the agent
opened a finding of class 0 or 1.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from bench import harness
from bench.agent_runs import MODULE, ROLE, AgentProcess
from bench.harness import say
from pgtare.errors import MeasurementError
from pgtare.keeping.spool import reader
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench
from pgtare.postgres.modules import loadable

TAKES = "25 minutes (--hour SECONDS)"

CLIENTS, SCALE, CAPACITY_S = 8, 20, 15.0
HOURS, DUMP_AT, BATCH_AT, INDEX_AT = 24, 1, 2, 4
_SETTINGS = {
    "autovacuum_naptime": "5s",
    "checkpoint_timeout": "30s",
    "compute_query_id": "on",
    "max_wal_size": "2GB",
    "wait_event_timing.capture": "stats",
}
_FINDINGS = """
SELECT strftime(since, '%H:%M:%S'), class, kind, level, round(100 * share), title
FROM findings WHERE event = 'open' ORDER BY since
"""


def capacity(target: harness.Server) -> float:
    """Transactions a second of clients that do not pause."""
    spec = LoadSpec(builtin="tpcb-like", clients=CLIENTS, seed=1)
    with PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as load:
        load.wait_ready()
        time.sleep(CAPACITY_S)
        reports = load.progress[2:]
    if not reports:
        raise MeasurementError("pgbench reported nothing")
    return sum(report.tps for report in reports) / len(reports)


def night(target: harness.Server, hour: int) -> None:
    """What is done in this hour of the day, if anything."""
    if hour == DUMP_AT:
        say("01:00 pg_dump")
        dump = target.binaries.program("pg_dump")
        subprocess.run([dump, "--file=/dev/null", target.dsn], check=True)
    elif hour in (BATCH_AT, INDEX_AT):
        batch = "UPDATE pgbench_accounts SET abalance = abalance WHERE aid % 10 = 3"
        index = "REINDEX TABLE CONCURRENTLY pgbench_accounts"
        say(f"{hour:02d}:00 {'the nightly batch' if hour == BATCH_AT else 'a new index'}")
        with psycopg.connect(target.dsn, autocommit=True, application_name="nightly") as conn:
            conn.execute((batch if hour == BATCH_AT else index).encode())


def run(hour_s: float, spool: Path, log: Path) -> list[tuple[object, ...]]:
    """Play the day; what the agent opened."""
    library = loadable(from_wheel(), MODULE)
    libraries = ["pg_stat_statements", library.library]
    with harness.server(libraries, _SETTINGS, scale=SCALE) as target:
        with psycopg.connect(target.dsn, autocommit=True) as conn:
            conn.execute(library.create_sql.encode())
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute(f"CREATE ROLE {ROLE} LOGIN IN ROLE pg_monitor".encode())
        most = capacity(target)
        say(f"{most:.0f} transactions a second at most; a tenth of it from now on")
        spec = LoadSpec(builtin="tpcb-like", clients=CLIENTS, rate=most / 10, seed=2)
        with (
            PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as load,
            AgentProcess(
                log, "--dsn", make_conninfo(target.dsn, user=ROLE), "--spool", spool
            ) as agent,
        ):
            load.wait_ready()
            agent.wait_connected()
            began = time.monotonic()
            for hour in range(HOURS):
                night(target, hour)
                with psycopg.connect(target.dsn, autocommit=True) as conn:
                    conn.execute("CHECKPOINT")
                load.check()
                time.sleep(max(0.0, began + (hour + 1) * hour_s - time.monotonic()))
            return reader.query(spool, _FINDINGS).rows


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hour", type=float, default=60.0, metavar="SECONDS")


def main(given: argparse.Namespace) -> int:
    """1 if something would have woken somebody."""
    with tempfile.TemporaryDirectory(prefix="pgtare-bench-") as name:
        found = run(given.hour, Path(name, "spool"), Path(name, "log"))
    for since, class_, kind, level, share, title in found:
        print(f"{since}  class {class_}  {level}  {kind}  {share} %  {title}")
    urgent = sum(1 for row in found if row[1] in (0, 1))
    print(f"{len(found)} findings were opened, {urgent} of class 0 or 1")
    return 1 if urgent else 0
