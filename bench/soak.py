"""Hours of 64 clients with every module on and an agent: what grows that should not.

Prepared selects, transactions that write, subtransactions that abort, parallel queries, and
connections that come and go; the flight recorder is on, waits are timed, an agent watches, and
`pgtare weigh` weighs again and again. Nothing is killed, so what grows is a leak. Memory,
descriptors, segments of shared memory and lines of the log are read all the time; the first third
is left out, and what is left is cut into blocks. The slope of the blocks' means is shown with its
99 % interval. The exit status is 1 if an interval reaches above what a series may grow in an hour.
No other PostgreSQL may run on the machine: its segments of shared memory would be counted.

`--out` keeps the series as JSON; `python -m bench gate` draws them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
import psycopg
import scipy
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table
from tests.servers import with_everything

from bench.agent_runs import AgentProcess
from bench.harness import say
from pgtare.errors import PgtareError
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import find_pgbench, initialise
from pgtare.postgres.modules import PRELOAD_ORDER, loadable
from pgtare.postgres.settings import Value
from pgtare.postgres.signals import StopRequest, asked_to_stop

TAKES = "three hours (--minutes)"

DATABASE, SCALE, BLOCKS, LEVEL = "pgbench", 20, 12, 0.99
_READINGS = 600
#: Processes that began so lately come and go, and what they have is no leak, in s.
YOUNG_S = 5.0
SHM = Path("/dev/shm")  # noqa: S108
SETTINGS: dict[str, Value] = {
    "compute_query_id": True,
    "max_connections": 120,
    "wait_event_timing.capture": "stats",
    "sql_trace.recorder": True,
    "sql_trace.recorder_memory": "64MB",
    "sql_trace.keep_slower_than": "200ms",
    # sessions that come and go make rings and leave them
    "sql_trace.application": "soak-short=12",
    "sql_trace.ring_size": "1MB",
    "log_checkpoints": False,
    "checkpoint_warning": 0,
    "log_autovacuum_min_duration": -1,
}
#: Scripts by name: clients, arguments of pgbench, and the script if it is not built in.
LOADS: dict[str, tuple[int, tuple[str, ...], str]] = {
    "selects": (24, ("-S", "-M", "prepared"), ""),
    "writes": (20, ("-b", "tpcb-like"), ""),
    "short connections": (4, ("-C", "-S"), ""),
    "aborts": (
        12,
        (),
        "BEGIN;\nSAVEPOINT a;\nDO $$ BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN NULL; "
        "END $$;\nROLLBACK TO a;\nINSERT INTO pgbench_history (tid, bid, aid, delta) "
        "VALUES (1, 1, 1, 1);\nROLLBACK;\n",
    ),
    "parallel queries": (
        4,
        (),
        "SET parallel_setup_cost = 0;\nSELECT count(*), max(abalance) FROM pgbench_accounts;\n"
        "\\sleep 2 s\n",
    ),
}


@dataclass(frozen=True)
class Series:
    """What is read all the time. may_grow: in an hour, in its unit, for good reasons."""

    name: str
    unit: str
    may_grow: float


SERIES = (
    Series("private memory of lasting processes", "MB", 20.0),
    Series("shared memory in segments", "MB", 20.0),
    Series("segments", "", 5.0),
    Series("descriptors of lasting processes", "", 40.0),
    Series("lines of the server's log", "", 10.0),
    Series("memory of the agent", "MB", 20.0),
    Series("descriptors of the agent", "", 5.0),
)


@dataclass
class Soak:
    """What was read: minutes since the start, and a row of values, in the order of SERIES."""

    minutes: list[float] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    weighed: int = 0


@dataclass(frozen=True)
class Slope:
    """How a series grows, in its unit an hour, with the interval of `LEVEL`."""

    estimate: float
    low: float
    high: float


def slope(minutes: Sequence[float], values: Sequence[float]) -> Slope:
    """The slope of the means of `BLOCKS` blocks, after the first third was left out.

    Readings that follow each other are alike, whole blocks much less. Needs three readings a block.
    """
    x, y = (np.asarray(one, dtype=float)[len(minutes) // 3 :] for one in (minutes, values))
    whole = len(x) // BLOCKS * BLOCKS
    x, y = (one[-whole:].reshape(BLOCKS, -1).mean(axis=1) for one in (x / 60, y))
    fit = scipy.stats.linregress(x, y)
    width = float(scipy.stats.t.ppf((1 + LEVEL) / 2, BLOCKS - 2) * np.nan_to_num(fit.stderr))
    return Slope(float(fit.slope), float(fit.slope) - width, float(fit.slope) + width)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--out", type=Path, help="write the series as JSON")


def main(args: argparse.Namespace) -> int:
    """Print the slopes, and what went wrong; 1 if something did or may grow too fast."""
    soak = Soak()
    with (
        tempfile.TemporaryDirectory(prefix="pgtare-soak-", dir="/var/tmp") as name,
        asked_to_stop() as stop,
    ):
        try:
            with running(Path(name)) as (cluster, agent, known), _weighing(cluster, soak):
                _read(soak, cluster, agent, known, 60 * args.minutes, stop)
                soak.wrong += faults(cluster.dsn(), cluster.log_path)
                if not stop.made:
                    soak.wrong += idle(cluster)
        except (PgtareError, psycopg.Error, psutil.Error) as ex:
            soak.wrong.append(str(ex).strip())
    if not soak.weighed and not stop.made:
        soak.wrong.append("nothing was weighed")
    if args.out is not None:
        series = [asdict(one) for one in SERIES]
        args.out.write_text(json.dumps({"series": series, **asdict(soak)}), encoding="utf-8")
    soak.wrong += _show(soak)
    for line in soak.wrong:
        print(f"WRONG: {line}")
    return int(bool(soak.wrong))


@contextlib.contextmanager
def running(directory: Path) -> Iterator[tuple[Cluster, AgentProcess, frozenset[str]]]:
    """The server under its loads, an agent, and the segments that were there before them."""
    known = frozenset(os.listdir(SHM))
    binaries = from_wheel()
    with with_everything(binaries, SETTINGS) as cluster, contextlib.ExitStack() as stack:
        make_database(cluster)
        for name in LOADS:
            load = start_load(cluster, directory, name)
            stack.callback(load.wait)
            stack.callback(load.kill)
        agent = stack.enter_context(watching(cluster, directory))
        say(f"{sum(clients for clients, *_ in LOADS.values())} clients and an agent are there")
        yield cluster, agent, known


@contextlib.contextmanager
def watching(cluster: Cluster, directory: Path) -> Iterator[AgentProcess]:
    """An agent that watches the server, with its spool in the directory."""
    options = ("--dsn", cluster.dsn(), "--spool", directory / "spool")
    with AgentProcess(directory / "agent.log", *options) as agent:
        agent.wait_connected()
        yield agent


def make_database(cluster: Cluster) -> None:
    """The database of the loads, with the extensions."""
    initialise(cluster.binaries, cluster.dsn(), SCALE, DATABASE)
    with cluster.connect(DATABASE) as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements")
        for name in PRELOAD_ORDER:
            connection.execute(loadable(cluster.binaries, name).create_sql.encode())


def start_load(cluster: Cluster, directory: Path, name: str) -> subprocess.Popen[bytes]:
    """One of the loads; it ends if the server throws its sessions out."""
    clients, words, script = LOADS[name]
    path = directory / f"{name}.sql"
    path.write_text(script)
    command = [str(find_pgbench(cluster.binaries)), "-n", "-T", "999999", "-c", str(clients)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [*command, *words, *(("-f", str(path)) if script else ()), cluster.dsn(DATABASE)],
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        env={**os.environ, "PGAPPNAME": "soak-short" if "-C" in words else "pgbench"},
        start_new_session=True,  # Ctrl-C is ours
    )


def weigh_command(dsn: str, *instruments: str, seconds: int) -> list[str]:
    """What weighs instruments on the traffic of a database."""
    words = [sys.executable, "-m", "pgtare", "weigh", *instruments]
    return [*words, "--dsn", dsn, "--duration", str(seconds)]


@contextlib.contextmanager
def _weighing(cluster: Cluster, soak: Soak) -> Iterator[None]:
    """Weigh two instruments, again and again, on the traffic that is there."""
    over = threading.Event()

    def weigh() -> None:
        command = weigh_command(
            cluster.dsn(DATABASE), "track_io_timing", "pg_stat_statements", seconds=30
        )
        while not over.is_set():
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=600,
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired as ex:
                soak.wrong.append(str(ex))
                continue
            soak.weighed += 1
            if done.returncode:
                soak.wrong.append(f"weigh ended with {done.returncode}: {done.stderr[-300:]}")
            over.wait(5)

    thread = threading.Thread(target=weigh)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _read(
    soak: Soak,
    cluster: Cluster,
    agent: AgentProcess,
    known: frozenset[str],
    seconds: float,
    stop: StopRequest,
) -> None:
    began, pause = time.monotonic(), max(1.0, seconds / _READINGS)
    for number in itertools.count(1):
        if stop.made or time.monotonic() > began + seconds:
            return
        soak.minutes.append((time.monotonic() - began) / 60)
        soak.values.append(reading(cluster, agent, known))
        if number % 20 == 0:
            pairs = zip(SERIES, soak.values[-1], strict=True)
            left = (began + seconds - time.monotonic()) / 60
            say("; ".join(f"{one.name} {v:.0f} {one.unit}".strip() for one, v in pairs))
            say(f"{left:.0f} minutes are left; weighed {soak.weighed} times")
        time.sleep(max(0.0, began + number * pause - time.monotonic()))


def reading(cluster: Cluster, agent: AgentProcess, known: frozenset[str]) -> list[float]:
    """One row of values, in the order of SERIES."""
    private = descriptors = 0
    postmaster = psutil.Process(cluster.postmaster_pid)
    for process in (postmaster, *postmaster.children(recursive=True)):
        with contextlib.suppress(psutil.Error, OSError):
            if time.time() - process.create_time() < YOUNG_S:
                continue
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            private += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
            descriptors += process.num_fds()
    sizes = [size for size in map(_size, new_segments(known)) if size is not None]
    watcher = psutil.Process(agent.pid)
    with cluster.log_path.open("rb") as log:
        lines_of_log = sum(1 for _ in log)
    return [
        private / 1e3,
        sum(sizes) / 1e6,
        len(sizes),
        descriptors,
        lines_of_log,
        watcher.memory_info().rss / 1e6,
        watcher.num_fds(),
    ]


def new_segments(known: frozenset[str]) -> list[Path]:
    """The servers' segments of shared memory that were not known."""
    names = set(os.listdir(SHM)) - known
    return [SHM / name for name in sorted(names) if name.startswith(("PostgreSQL.", "pgtare"))]


def _size(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_blocks * 512
    return None


BAD_WORDS = ("PANIC", "TRAP: ", "was terminated by")


def faults(dsn: str, log: Path, words: Sequence[str] = BAD_WORDS) -> list[str]:
    """What a server says of itself that must not be. words: those that its log must not have."""
    found = []
    bounded = make_conninfo(dsn, options="-c statement_timeout=60s")
    with psycopg.connect(bounded, autocommit=True) as connection:
        for function in ("pgtare.info()", "wait_event_timing_info()"):
            query = f"SELECT slots_installed, slots_intact FROM {function}"
            ((slots, intact),) = connection.execute(query.encode()).fetchall()
            if not slots or slots != intact:
                found.append(f"{intact} of {slots} call slots of {function} are intact")
    text = log.read_text(errors="replace")
    return found + [f"the log has {word}" for word in words if word in text]


def idle(cluster: Cluster) -> list[str]:
    """Whether sessions of the loads have gone: a server without load leaks nothing."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'"
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        ((sessions,),) = connection.execute(query).fetchall()
    wanted = sum(clients for clients, words, _ in LOADS.values() if "-C" not in words)
    return [f"{sessions} of {wanted} sessions are left"] if sessions < wanted else []


def _show(soak: Soak) -> list[str]:
    """Print the table; returns which series grow too fast."""
    if len(soak.minutes) < 5 * BLOCKS:
        return [f"only {len(soak.minutes)} readings: too few for a slope"]
    table = Table(title=f"{soak.minutes[-1]:.0f} minutes, weighed {soak.weighed} times")
    for heading in ("", "first", "last", "an hour, with 99 % interval", "limit"):
        table.add_column(heading, justify="left" if not heading else "right")
    found = []
    for number, one in enumerate(SERIES):
        values = [row[number] for row in soak.values]
        grows = slope(soak.minutes, values)
        text = f"{grows.estimate:+.1f} [{grows.low:+.1f}, {grows.high:+.1f}]"
        ends = (f"{value:,.0f} {one.unit}".strip() for value in (values[0], values[-1]))
        # by a short soak less can be shown: the warm-up of twelve minutes is multiplied
        limit = one.may_grow * max(1.0, 90 / soak.minutes[-1])
        table.add_row(one.name, *ends, text, f"{limit:.3g}")
        if grows.high > limit:
            found.append(f"{one.name}: {text} {one.unit} an hour, where {limit:.3g} is the limit")
    Console(width=110).print(table)
    return found
