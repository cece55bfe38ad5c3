"""An hour of mixed load under `pgtare agent`, which is killed while servers restart and reset.

Transactions that write, selects, short connections, and a session that waits for a
lock all the time. The agent is killed (signal 9) ten times; the server is restarted once and
crashes once; its counters are reset twice, and those of one process once. Afterwards, in each
epoch, sums of rows must equal the last reading less the first in every column and bucket, gaps must
tell of each interruption, and the lock must be 1.0 ± 0.01 sessions in each tick.

Sums are compared with the readings that the spool stored, and with readings that the benchmark took
itself before and after: agent_sums.py. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from tests.versions.servers import DEBIAN15, server

from bench.agent_sums import (
    BUCKETS,
    COUNTED,
    STATEMENT_KEYS,
    WAITS_KEYS,
    Comparison,
    Origin,
    OwnSample,
    SpoolSums,
)
from bench.harness import say
from pgtare.keeping.spool import manifest
from pgtare.postgres.binaries import from_pg_config
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import find_pgbench, initialise
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value
from pgtare.postgres.signals import StopRequest, asked_to_stop

TAKES = "an hour"

KILLS, LOCK_TOLERANCE = 10, 0.01
#: In this order, equally spread; the kills of the agent come in between.
INTERRUPTIONS = ("reset", "restart", "process reset", "crash", "reset")
#: Kills after which the agent stays away for long enough that the time counts as an absence.
LONG_KILLS, AWAY_S = (3, 7), 40.0
TICK_S = 10.0
#: How long to wait for the agent's reading at the end of an epoch, in s.
_READING_S = 400.0
#: How long a server may take to start or stop at the lowest priority, and an agent to stop, in s.
_START_S, _STOP_S = 300.0, 120.0
#: How long before that reading the load ends, in s.
_PAUSE_S = 6.0
_SETTINGS: dict[str, Value] = {
    "compute_query_id": True,
    "max_connections": 60,
    "shared_buffers": "64MB",
    "wait_event_timing.capture": "stats",
}
#: Arguments of pgbench by what it is for; late transactions are left out, not made up for.
_LOADS = {
    "writes": ("-c", "4", "-R", "100", "-L", "1000"),
    "selects": ("-S", "-c", "4", "-R", "300", "-L", "1000"),
    "short connections": ("-C", "-S", "-c", "2", "-R", "10", "-L", "1000"),
}
_US = "(extract(epoch FROM {}) * 1000000)::bigint"
_INFO = f"""
SELECT {_US.format("clock_timestamp()")}, {_US.format("pg_postmaster_start_time()")},
  {_US.format("memory_since")}, {_US.format("stats_reset")}, resets
FROM wait_event_timing_info()
"""
_WAITS = """
SELECT backend_type, wait_event_type, wait_event, waits, total_ns, histogram
FROM wait_event_timing_moment() WHERE wait_event_type IS NOT NULL
"""
_STATEMENTS = """
SELECT userid::bigint, dbid::bigint, queryid, wait_event_type, wait_event, sum(waits)::bigint,
  sum(total_ns)::bigint,
  (SELECT array_agg(b ORDER BY n) FROM (SELECT n, sum(h[n])::bigint AS b
    FROM unnest(array_agg(to_jsonb(histogram))) j,
      LATERAL (SELECT array_agg(v::bigint) AS h FROM jsonb_array_elements_text(j) v) a,
      generate_series(1, 32) n GROUP BY n) s)
FROM wait_event_timing_statements() WHERE wait_event IS NOT NULL GROUP BY 1, 2, 3, 4, 5
"""


class Ended(Exception):
    """The benchmark should end early."""


@dataclass
class Happened:
    """What was done to server and agent, when; s since 1970."""

    kind: str
    at_s: float
    until_s: float = 0.0


@dataclass
class Hour:
    """One server under load, its agent, and what is known of both."""

    cluster: Cluster
    directory: Path
    pgbench_dsn: str
    stop: StopRequest
    statements_s: float
    happened: list[Happened] = field(default_factory=list)
    samples: list[OwnSample] = field(default_factory=list)
    holds: list[Happened] = field(default_factory=list)
    agent: subprocess.Popen[bytes] | None = None
    loads: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lock: list[psycopg.Connection[Any]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def spool(self) -> Path:
        return self.directory / "spool"

    @property
    def kept(self) -> Path:
        return self.directory / "readings"

    def connect(self) -> psycopg.Connection[Any]:
        """A session; at the lowest priority, a busy machine can take long to answer."""
        dsn = self.cluster.dsn(connect_timeout="60")
        for left in reversed(range(5)):
            try:
                return psycopg.connect(dsn, autocommit=True)
            except psycopg.OperationalError:
                if not left:
                    raise
                time.sleep(1.0)
        raise AssertionError

    # Parts that run

    def start_agent(self) -> None:
        config = self.directory / "agent.toml"
        config.write_text(
            f'most_statements = 10000\n[intervals]\nstatements = "{self.statements_s:g}s"\n'
            f'[servers.server]\ndsn = "{self.cluster.dsn(user="watcher")}"\n'
        )
        command = [sys.executable, "-m", "pgtare", "agent", "--config", str(config)]
        with open(self.directory / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [*command, "--spool", str(self.spool)],
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def end_agent(self, number: signal.Signals) -> None:
        agent, self.agent = self.agent, None
        if agent is not None and agent.poll() is None:
            agent.send_signal(number)
            agent.wait(_STOP_S)

    def start_loads(self) -> None:
        """Start the loads that do not run, or go on with those that are paused."""
        pgbench = find_pgbench(self.cluster.binaries)
        for name, arguments in _LOADS.items():
            running = self.loads.get(name)
            if running is not None and running.poll() is None:
                os.killpg(running.pid, signal.SIGCONT)
                continue
            self.loads[name] = subprocess.Popen(
                [str(pgbench), "-n", "-T", "1000000", *arguments, self.pgbench_dsn],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                **self.cluster.run_as,
            )

    def pause_loads(self) -> None:
        for running in self.loads.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGSTOP)

    def end_loads(self) -> None:
        for running in self.loads.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        self.loads.clear()

    def hold_lock(self) -> None:
        """One session holds a lock, and another waits for it."""
        self.lock = [self.connect() for _ in range(2)]
        self.lock[0].execute("SELECT pg_advisory_lock(7)")
        threading.Thread(target=self._wait_for_lock, args=(self.lock[1],), daemon=True).start()
        with self.connect() as connection:
            while not connection.execute(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s",
                [self.lock[1].info.backend_pid],
            ).fetchall():
                time.sleep(0.02)
        self.holds.append(Happened("lock", time.time()))

    @staticmethod
    def _wait_for_lock(connection: psycopg.Connection[Any]) -> None:
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT pg_advisory_lock(7)")

    def end_lock(self) -> None:
        self.holds[-1].until_s = time.time()
        self.let_go()

    def let_go(self) -> None:
        for connection in self.lock:
            with contextlib.suppress(psycopg.Error):
                connection.close()
        self.lock = []

    # Readings

    def sample(self) -> None:
        """Keep a reading of all counters, made without the agent, unless a reset comes between."""
        with self.connect() as connection:
            connection.execute("SET search_path = public, wait_event_timing")
            before = connection.execute(_INFO).fetchall()[0]
            waits = connection.execute(_WAITS).fetchall()
            statements = connection.execute(_STATEMENTS.encode()).fetchall()
            after = connection.execute(_INFO).fetchall()[0]
        if before[1:] == after[1:]:
            self.samples.append(
                OwnSample(
                    before[0],
                    after[0],
                    Origin(*before[1:]),
                    _table(waits, WAITS_KEYS),
                    _table(statements, STATEMENT_KEYS),
                )
            )

    def newest_us(self) -> int:
        """When the older of the two newest stored readings was taken, by the server's clock."""
        with contextlib.suppress(Exception):  # the spool is not there yet
            content, _ = manifest.read(self.spool)
            assert content is not None
            found = [
                pq.read_table(self.spool / content.readings["server", part].name)
                for part in ("waits-info", "statements-info")
            ]
            return min(int(table["server_us"][0].as_py()) for table in found)
        return 0

    def bracketed(self) -> None:
        """Read, wait until the agent has read waits and statements, and read again."""
        self.sample()
        since = self.samples[-1].ended_us
        deadline = time.monotonic() + _READING_S
        while self.newest_us() <= since:
            if self.agent is not None and self.agent.poll() is not None:
                raise RuntimeError(f"the agent ended: see {self.directory / 'agent.log'}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the agent took no reading in {_READING_S:g} s")
            time.sleep(0.3)
        self.sample()

    def keep_readings(self) -> None:
        """Keep every stored reading that a commit has published, until the end."""
        while not self._ended.wait(0.3):
            with contextlib.suppress(Exception):  # nothing is published yet, or replaced just now
                content, _ = manifest.read(self.spool)
                for one in content.readings.values() if content else ():
                    copy = self.kept / Path(one.name).name
                    if not copy.exists():
                        os.link(self.spool / one.name, copy)

    # The course of the hour

    def play(self, seconds: float) -> None:
        """Everything in turn, until it is over or somebody asks to stop."""
        keeper = threading.Thread(target=self.keep_readings, daemon=True)
        keeper.start()
        try:
            self.start_agent()
            self.bracketed()
            began = time.monotonic()
            self.hold_lock()
            self.start_loads()
            with contextlib.suppress(Ended):
                for at, kind in timetable(seconds):
                    self._until(began + at, began, seconds)
                    self._do(kind)
                    say(f"{kind} done")
                self._until(began + seconds, began, seconds)
            say("the last readings")
            self.pause_loads()
            self.end_lock()
            time.sleep(1.0)
            self.bracketed()
            self.end_agent(signal.SIGTERM)
            time.sleep(1.0)  # the last commit is kept
        finally:
            self._ended.set()
            keeper.join()
            self.end_agent(signal.SIGKILL)
            self.end_loads()
            self.let_go()

    def _until(self, at: float, began: float, seconds: float) -> None:
        said = time.monotonic()
        while time.monotonic() < at:
            if self.stop.made:
                raise Ended
            if time.monotonic() - said > 60:
                said = time.monotonic()
                left = max(0.0, began + seconds - said)
                say(f"{left / 60:.0f} of {seconds / 60:.0f} minutes left")
            time.sleep(0.2)
        if self.stop.made:
            raise Ended

    def _do(self, kind: str) -> None:
        if kind.startswith("kill"):
            self.happened.append(Happened(kind, time.time()))
            self.end_agent(signal.SIGKILL)
            if kind == "kill, away":
                time.sleep(AWAY_S)
            self.start_agent()
            return
        # all is quiet when the last reading of the epoch is taken
        left = -time.time() % self.statements_s
        time.sleep(left - _PAUSE_S if left > _PAUSE_S else left + self.statements_s - _PAUSE_S)
        self.pause_loads()
        time.sleep(_PAUSE_S / 2)
        self.bracketed()
        self.happened.append(Happened(kind, time.time()))
        if kind == "reset":
            self._ask("SELECT wait_event_timing_reset()")
        elif kind == "process reset":
            self._ask(f"SELECT wait_event_timing_reset({self._backend()})")
            self.bracketed()
        else:
            self.end_lock()
            if kind == "restart":
                self.end_loads()
                self.cluster.stop("fast")
                self.cluster.start()
            else:
                self._crash()
            self.hold_lock()
        self.start_loads()

    def _crash(self) -> None:
        log = self.cluster.log_path
        before = log.read_text(errors="replace").count("reinitializing")
        os.kill(self._backend(), signal.SIGKILL)
        self.end_loads()
        while log.read_text(errors="replace").count("reinitializing") == before:
            time.sleep(0.05)
        while not self.cluster.answers():
            time.sleep(0.05)

    def _backend(self) -> int:
        """A process of the load."""
        with self.connect() as connection:
            return int(
                connection.execute(
                    "SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'"
                ).fetchall()[0][0]
            )

    def _ask(self, query: str) -> None:
        with self.connect() as connection:
            connection.execute("SET search_path = public, wait_event_timing")
            connection.execute(query.encode())


def _table(found: list[tuple[Any, ...]], keys: tuple[str, ...]) -> pa.Table:
    """Rows of keys, waits, total_ns and a histogram, as columns."""
    count = len(keys)
    columns: dict[str, Any] = {
        name: pa.array(
            [row[number] for row in found],
            pa.int64() if name in ("role_oid", "database_oid", "query_id") else pa.string(),
        )
        for number, name in enumerate(keys)
    }
    values = [[*row[count : count + 2], *(row[count + 2] or [0] * len(BUCKETS))] for row in found]
    columns |= {
        name: pa.array([row[number] for row in values], pa.int64())
        for number, name in enumerate(COUNTED)
    }
    return pa.table(columns)


def timetable(seconds: float) -> list[tuple[float, str]]:
    """What happens when, in s from the start."""
    step = seconds / (len(INTERRUPTIONS) + 1)
    found = [(step * (number + 1), kind) for number, kind in enumerate(INTERRUPTIONS)]
    for number in range(KILLS):
        long = number in LONG_KILLS
        kind = "kill, away" if long else "kill"
        found.append((seconds * (number + 0.6) / KILLS, kind))
    return sorted(found)


# What it gave


@dataclass
class Outcome:
    """What one server gave."""

    version: str
    comparisons: list[Comparison]
    happened: list[Happened]
    gaps: dict[str, int]
    lock_ticks: int
    lock_range: tuple[float, float]
    wrong: list[str]


def judged(hour: Hour, version: str) -> Outcome:
    """Compare everything."""
    sums = SpoolSums(hour.spool, hour.kept)
    comparisons = [*sums.compare("waits", hour.samples), *sums.compare("statements", hour.samples)]
    wrong = []
    if not comparisons[0].rows:
        wrong.append("there are no rows")
    gaps = dict(sums.rows("SELECT kind, count(*) FROM gaps GROUP BY kind ORDER BY kind"))
    kinds = [one.kind for one in hour.happened]
    restarts = kinds.count("restart") + kinds.count("crash")
    resets = kinds.count("reset") + kinds.count("process reset")
    for kind, expected in (("restart", restarts), ("reset", resets)):
        if gaps.get(kind, 0) != expected:
            wrong.append(f"{gaps.get(kind, 0)} gaps of the kind {kind}, not {expected}")
    for one in hour.happened:
        if one.kind == "kill":
            continue
        kind = {"crash": "restart", "process reset": "reset"}.get(one.kind, one.kind)
        # an agent that stays away just after a restart was never there: the restart's gap says so
        any_of = "'absence', 'restart', 'reset'" if one.kind == "kill, away" else f"'{kind}'"
        ((shown,),) = sums.rows(
            f"SELECT count(*) FROM gaps WHERE kind IN ({any_of}) AND ts_us >= {one.at_s * 1e6:.0f} "
            f"AND epoch_us(from_ts) <= {one.at_s * 1e6:.0f}"
        )
        if shown != 1:
            wrong.append(f"{shown} gaps tell of the {one.kind} at {time.ctime(one.at_s)}, not 1")
    ((unsaid,),) = sums.rows(
        f"SELECT count(*) FROM ticks t WHERE source = 'waits' AND covered_ns > {3e9 * TICK_S:.0f} "
        "AND NOT EXISTS (SELECT 1 FROM gaps g WHERE g.ts = t.ts)"
    )
    if unsaid:
        wrong.append(f"{unsaid} long ticks have no gap")
    lock = held(sums, hour.holds)
    if not lock or any(abs(sessions - 1) > LOCK_TOLERANCE for sessions in lock):
        wrong.append(f"the held lock is {min(lock, default=0)} to {max(lock, default=0)} sessions")
    found = (min(lock, default=0.0), max(lock, default=0.0))
    return Outcome(version, comparisons, hour.happened, gaps, len(lock), found, wrong)


def held(sums: SpoolSums, holds: list[Happened]) -> list[float]:
    """Sessions that waited for the lock, in each tick that lies within a time it was held."""
    found: list[float] = []
    for one in holds:
        found += [
            float(sessions)
            for (sessions,) in sums.rows(
                "SELECT coalesce((SELECT sum(active_ns) FROM waits w WHERE w.ts = t.ts "
                "AND type = 'Lock' AND event = 'advisory'), 0) / t.covered_ns FROM ticks t "
                f"WHERE source = 'waits' AND ts_us - covered_ns // 1000 > {one.at_s * 1e6:.0f} "
                f"AND ts_us < {one.until_s * 1e6:.0f} ORDER BY ts"
            )
        ]
    return found


def show(found: Outcome) -> Table:
    """One row for each epoch."""
    shown = Table(title=f"Sums of rows and counters on {found.version}, by epoch")
    names = "table", "epoch began by", "readings", "rows", "cells", "own cells"
    for name in (*names, "of them pinned", "wrong"):
        shown.add_column(name, justify="left" if name in names[:2] else "right")
    for one in found.comparisons:
        numbers = one.readings, one.rows, one.cells, one.own_cells, one.pinned, len(one.wrong)
        shown.add_row(one.table, one.began, *map(str, numbers))
    return shown


# One server


@contextlib.contextmanager
def hour_on(major: int, statements_s: float, stop: StopRequest) -> Iterator[tuple[Hour, str]]:
    """A server with everything that an hour needs."""
    binaries = from_pg_config(DEBIAN15) if major == 15 and DEBIAN15.exists() else server(major)
    module = loadable(binaries, "wait_event_timing")
    preload = [module.library]
    with (
        tempfile.TemporaryDirectory(prefix="pgtare-hour-", dir="/var/tmp") as directory,
        Cluster(
            binaries, _SETTINGS, preload, start_seconds=_START_S, stop_seconds=_STOP_S
        ) as cluster,
    ):
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
            connection.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
            ((schema,),) = connection.execute(
                "SELECT pronamespace::regnamespace::text FROM pg_proc "
                "WHERE proname = 'wait_event_timing_info'"
            ).fetchall()
            connection.execute(
                f"GRANT USAGE ON SCHEMA {schema} TO watcher;"
                f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO watcher".encode()
            )
        database = initialise(binaries, cluster.dsn(), 5)
        hour = Hour(cluster, Path(directory), database.dsn, stop, statements_s)
        hour.kept.mkdir()
        yield hour, binaries.version.removeprefix("PostgreSQL ").split()[0]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--major", type=int, default=18, help="of the server")


def main(args: argparse.Namespace) -> int:
    """Play the hour, print a row for each epoch; 1 if anything differs."""
    statements_s = 60.0 if args.minutes >= 20 else 20.0
    with asked_to_stop() as stop, hour_on(args.major, statements_s, stop) as (hour, version):
        wrong = []
        try:
            hour.play(60 * args.minutes)
        except Exception as ex:  # what there is, is compared anyway
            wrong.append(f"it broke off: {type(ex).__name__}: {ex}")
            traceback.print_exc()
        if stop.made:
            wrong.append("stopped early by a signal")
        found = judged(hour, version)
        log = (hour.directory / "agent.log").read_text()
    wrong += [*found.wrong, *(f"{c.table}: {w}" for c in found.comparisons for w in c.wrong)]
    console = Console(width=130)
    console.print(show(found))
    least, most = found.lock_range
    console.print(
        f"{dict(Counter(one.kind for one in found.happened))}; gaps {found.gaps}; held lock "
        f"{least:.5f} to {most:.5f} sessions in {found.lock_ticks} ticks",
        highlight=False,
    )
    for line in re.findall(r".* level=(?:warning|error) .*", log):
        console.print(line, highlight=False, markup=False)
    for line in wrong:
        console.print(f"WRONG: {line}", highlight=False, markup=False)
    return int(bool(wrong))
