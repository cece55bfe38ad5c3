"""An hour in which everything is killed, flipped and made anew, under the load of the soak.

Once a minute one of these happens: a process of the server is killed (signal 9);
the modules' settings (but texts) are flipped, ten times, with a reload after each; the server is
restarted; the postmaster is killed; the extensions are dropped and made anew; the agent is killed;
`pgtare weigh` is killed in the middle; a standby is made and promoted. All of them happen in turn,
in random order. Each time the server must answer again within two minutes, and weigh. No other
PostgreSQL may run on the machine.

The exit status is 1 if the server does not answer or weigh, if a process ends by a signal that
nobody sent, if its log has PANIC or TRAP, if the agent ends by itself or reads nothing any more, if
the server does not stop when asked to, or if it leaves a segment of shared memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.servers import with_everything

from bench.agent_runs import AgentProcess
from bench.harness import say
from bench.soak import (
    BAD_WORDS,
    DATABASE,
    LOADS,
    SETTINGS,
    SHM,
    faults,
    make_database,
    new_segments,
    start_load,
    watching,
    weigh_command,
)
from bench.truth.standby import standby
from pgtare.errors import MeasurementError, PgtareError
from pgtare.keeping.spool import reader
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import find_pgbench
from pgtare.postgres.modules import PRELOAD_ORDER, loadable
from pgtare.postgres.signals import StopRequest, asked_to_stop

TAKES = "an hour (--minutes, --seed, --pause)"

_ANSWERS_S, _FLIPS = 120.0, 10
_SETTINGS = """
SELECT name, vartype, enumvals, min_val::float8, max_val::float8, boot_val FROM pg_settings
WHERE split_part(name, '.', 1) = ANY(%s) AND context IN ('sighup', 'superuser', 'user')
  AND vartype IN ('bool', 'enum', 'integer')
"""
#: Signals of processes that we killed, and of the others when the server starts anew after that.
_SENT = {"9", "3"}


@dataclass
class Storm:
    """One server, what runs against it, and what went wrong."""

    cluster: Cluster
    directory: Path
    chance: random.Random
    agent: AgentProcess
    loads: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query by a superuser, who does not wait for ever."""
        dsn = self.cluster.dsn(options="-c statement_timeout=60s")
        with psycopg.connect(dsn, autocommit=True) as connection:
            cursor = connection.execute(text.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def keep_loads(self) -> None:
        """Start each load that has ended, as the loads of a server that was killed do."""
        for name in LOADS:
            if name not in self.loads or self.loads[name].poll() is not None:
                self.loads[name] = start_load(self.cluster, self.directory, name)

    def end_loads(self) -> None:
        """Once and for all."""
        for load in self.loads.values():
            load.kill()
            load.wait()

    def kill_a_process(self) -> None:
        """Any but the postmaster, which then throws all others out."""
        before = self._thrown_out()
        children = psutil.Process(self.cluster.postmaster_pid).children()
        self.chance.choice(children).kill()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._thrown_out() == before:
            time.sleep(0.2)

    def _thrown_out(self) -> int:
        text = self.cluster.log_path.read_text(errors="replace")
        return text.count("all server processes terminated; reinitializing")

    def flip_settings(self) -> None:
        """Give each setting of the modules another value, again and again, and then none."""
        rows = self.query(_SETTINGS, list(PRELOAD_ORDER))
        try:
            for _ in range(_FLIPS):
                with self.cluster.connect() as connection:
                    for name, *kinds in rows:
                        value = self._other_value(*kinds)
                        change = sql.SQL("ALTER SYSTEM SET {} = {}")
                        with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                            connection.execute(change.format(sql.SQL(name), sql.Literal(value)))
                    connection.execute("SELECT pg_reload_conf()")
                time.sleep(0.3)
        finally:
            self.query("ALTER SYSTEM RESET ALL")
            self.query("SELECT pg_reload_conf()")

    def _other_value(
        self, kind: str, choices: list[str] | None, least: float, most: float, default: str
    ) -> str:
        """Any value of a setting, by the columns of pg_settings."""
        if kind == "integer":
            middle = max(int(least), min(1000, int(most)))
            choices = [default, str(int(least)), str(middle)]
        return self.chance.choice(choices or ["on", "off"])

    def restart(self) -> None:
        """With other sessions thrown out, as a fast shutdown does."""
        how = self.cluster.stop()
        if how != "fast":
            self.wrong.append(f"the server did not stop when it was asked to: {how}")
        self.cluster.start()

    def kill_postmaster(self) -> None:
        """And start the server again."""
        self.cluster.kill()
        self.cluster.start()

    def fail_over(self) -> None:
        """To a standby that is made under the load; waits are read there before and after."""
        times = "SELECT sum(waits) > 0 FROM pg_stat_wait_event_timing"
        settings = {name: str(value) for name, value in SETTINGS.items()}
        with standby(self.cluster, settings) as other:
            with psycopg.connect(other.dsn, autocommit=True) as connection:
                for query in (times, "SELECT pg_promote(true, 60)", times):
                    if connection.execute(query.encode()).fetchall() != [(True,)]:
                        self.wrong.append(f"a standby does not answer with true: {query}")
            dsn = make_conninfo(other.dsn, dbname=DATABASE)
            pgbench = [str(find_pgbench(self.cluster.binaries)), "-n", "-c", "4", "-T", "600", dsn]
            quiet = subprocess.DEVNULL
            with subprocess.Popen(pgbench, stdout=quiet, stderr=quiet) as load:
                try:
                    if self._weigh(3, dsn).wait(_ANSWERS_S):
                        self.wrong.append("nothing can be weighed on a promoted standby")
                finally:
                    load.kill()
            self.wrong += [f"a standby: {one}" for one in faults(other.dsn, other.log, BAD_WORDS)]

    def make_extensions_anew(self) -> None:
        """While they are in use."""
        for database in ("postgres", DATABASE):
            with self.cluster.connect(database) as connection:
                for name in PRELOAD_ORDER:
                    quoted = sql.Identifier(name)
                    connection.execute(sql.SQL("DROP EXTENSION IF EXISTS {}").format(quoted))
                    connection.execute(loadable(self.cluster.binaries, name).create_sql.encode())

    def kill_the_agent(self) -> None:
        """Another takes over its spool."""
        os.kill(self.agent.pid, signal.SIGKILL)
        time.sleep(1)
        self.agent.__exit__()
        self.agent.__enter__()

    def kill_a_weighing(self) -> None:
        """In the middle of its trial."""
        weighing = self._weigh(60)
        time.sleep(self.chance.uniform(5, 25))
        if weighing.poll() is not None:
            self.wrong.append("the weighing that was to be killed ended by itself")
        weighing.kill()
        weighing.wait()

    def _weigh(self, seconds: int, dsn: str = "") -> subprocess.Popen[bytes]:
        dsn, quiet = dsn or self.cluster.dsn(DATABASE), subprocess.DEVNULL
        return subprocess.Popen(
            weigh_command(dsn, "track_io_timing", seconds=seconds),
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )

    def must_work(self, after: str) -> None:
        """Within two minutes it answers, has its modules, is watched, and a trial can be made."""
        deadline, why = time.monotonic() + _ANSWERS_S, ""
        while time.monotonic() < deadline:
            try:
                self.wrong += [
                    f"after {after}: {one}"
                    for one in faults(self.cluster.dsn(), self.cluster.log_path, ())
                ]
                self.keep_loads()
                time.sleep(2)
                if self._weigh(3).wait(_ANSWERS_S) == 0:
                    break
                why = "nothing can be weighed"
            except (psycopg.Error, subprocess.TimeoutExpired) as ex:
                why = str(ex).strip().splitlines()[0]
            time.sleep(0.5)
        else:
            self.wrong.append(f"after {after} the server does not work: {why}")
            with contextlib.suppress(PgtareError):
                self.kill_postmaster()
        try:
            _ = self.agent.pid
        except MeasurementError as ex:
            self.wrong.append(f"after {after}: {ex}")
            self.agent.__enter__()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=60.0, help="between two events, in s")


def main(args: argparse.Namespace) -> int:
    """Play the storm, print what happened and what went wrong; 1 if anything did."""
    known = frozenset(os.listdir(SHM))
    with (
        tempfile.TemporaryDirectory(prefix="pgtare-storm-", dir="/var/tmp") as name,
        asked_to_stop() as stop,
        _storm(Path(name), args.seed) as storm,
    ):
        try:
            _play(storm, args.minutes, args.pause, stop)
            _look_back(storm)
        except (PgtareError, psycopg.Error, OSError) as ex:
            storm.wrong.append(str(ex).strip())
        storm.end_loads()
        storm.restart()  # says how it stopped
        storm.cluster.stop()
        storm.wrong += [f"left in shared memory: {one.name}" for one in new_segments(known)]
    print("; ".join(f"{what}: {times}" for what, times in storm.happened.most_common()))
    for line in storm.wrong:
        print(f"WRONG: {line}")
    return int(bool(storm.wrong))


@contextlib.contextmanager
def _storm(directory: Path, seed: int) -> Iterator[Storm]:
    binaries = from_wheel()
    with with_everything(binaries, SETTINGS) as cluster:
        cluster.start_seconds = _ANSWERS_S
        make_database(cluster)
        with watching(cluster, directory) as agent:
            storm = Storm(cluster, directory, random.Random(seed), agent)
            try:
                yield storm
            finally:
                storm.end_loads()


def _play(storm: Storm, minutes: float, pause_s: float, stop: StopRequest) -> None:
    events: list[Callable[[], None]] = [
        *(storm.kill_a_process, storm.flip_settings, storm.restart, storm.kill_postmaster),
        *(storm.make_extensions_anew, storm.kill_the_agent, storm.kill_a_weighing),
        storm.fail_over,
    ]
    began, queue = time.monotonic(), events[:0]
    while time.monotonic() < began + 60 * minutes:
        until = time.monotonic() + pause_s * storm.chance.uniform(0.5, 1.5)
        while time.monotonic() < until:
            if stop.made:
                return
            storm.keep_loads()
            time.sleep(1)
        queue = queue or storm.chance.sample(events, len(events))
        event = queue.pop()
        what = event.__name__.replace("_", " ")
        say(what)
        try:
            event()
        except (PgtareError, psycopg.Error, psutil.Error, OSError) as ex:
            storm.wrong.append(f"{what}: {str(ex).strip()}")
        storm.happened[what] += 1
        storm.must_work(what)


def _look_back(storm: Storm) -> None:
    """What log and spool have of the whole time."""
    text = storm.cluster.log_path.read_text(errors="replace")
    ended = Counter(re.findall(r"was terminated by signal (\d+)", text))
    say(f"processes that ended by a signal, by its number: {dict(ended)}")
    storm.wrong += [f"{n} ended by signal {one}" for one, n in ended.items() if one not in _SENT]
    storm.wrong += [f"the log has {word}" for word in ("PANIC", "TRAP: ") if word in text]
    storm.agent.wait_connected()
    since = time.time()
    time.sleep(30)
    with reader.connect(storm.directory / "spool") as spool:
        ((ticks, latest),) = spool.execute(
            "SELECT count(*), epoch(max(ts)) FROM ticks WHERE source = 'waits'"
        ).fetchall()
    say(f"{ticks} readings were kept by the agent")
    if not latest or latest < since:
        storm.wrong.append("the agent reads nothing any more")
