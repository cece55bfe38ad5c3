"""One `pgtare agent` for many small real servers.

Each server is a PostgreSQL of its own with few processes and 1 MB of shared buffers, each with its
own pgbench of a few transactions a second. The agent first watches a quarter of the servers, then
half, then all of them: it takes servers in by SIGHUP. So the table shows what one more server
costs. Lateness is from the time at which a look is due to the time of its reading, by the wall
clock: looks are due at round times, spread by the servers' names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from psycopg.conninfo import make_conninfo

from bench.agent_runs import MODULE, ROLE, AgentProcess
from bench.harness import say
from pgtare.errors import MeasurementError
from pgtare.keeping.agent.grid import stagger
from pgtare.keeping.spool import reader
from pgtare.postgres.binaries import Binaries, from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench, initialise
from pgtare.postgres.modules import loadable

TAKES = "20 minutes, 60 MB of memory and 50 MB of disk a server; the machine should be idle"

INTERVALS_S = {"waits": 10.0, "sessions": 1.0}
SETTINGS = {
    "shared_buffers": "1MB",
    "max_connections": "10",
    "max_wal_senders": "0",
    "max_worker_processes": "0",
    "max_logical_replication_workers": "0",
    "io_method": "sync",
    "wal_level": "minimal",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "fsync": "off",
    "compute_query_id": "on",
    "wait_event_timing.capture": "stats",
}
#: The memory that each server and its pgbench may take, in bytes: more are refused beforehand.
_SERVER_BYTES = 60_000_000
_SETTLES_S = 40.0


@dataclass(frozen=True)
class FleetStage:
    """What the agent took while it watched a number of servers.

    late_ms: of looks at waits, the median, the 99th percentile and the longest. missed: looks that
    should have been made, by look.
    """

    servers: int
    seconds: float
    cpu_share: float
    rss_bytes: int
    most_bytes: int
    late_ms: tuple[float, float, float]
    sessions_late_ms: tuple[float, float, float]
    missed: dict[str, int]


def start_servers(stack: contextlib.ExitStack, number: int, rate: float) -> list[Cluster]:
    """Start servers one after the other, each with its load if rate is over 0."""
    free = psutil.virtual_memory().available
    if number * _SERVER_BYTES > free:
        raise SystemExit(
            f"{number} servers may need {number * _SERVER_BYTES / 1e9:.1f} GB and "
            f"{free / 1e9:.1f} GB are free: give fewer --servers"
        )
    binaries = from_wheel()
    module = loadable(binaries, MODULE)
    found = []
    for index in range(number):
        cluster = stack.enter_context(Cluster(binaries, SETTINGS, [module.library]))
        with cluster.connect() as conn:
            conn.execute(f"CREATE ROLE {ROLE} LOGIN IN ROLE pg_monitor".encode())
        dsn = initialise(binaries, cluster.dsn(), 1, name="shop").dsn
        with cluster.connect("shop") as conn:
            conn.execute(module.create_sql.encode())
        if rate > 0:
            stack.enter_context(_load(binaries, dsn, rate))
        found.append(cluster)
        if (index + 1) % 10 == 0:
            say(f"{index + 1} servers run")
    return found


def _load(binaries: Binaries, dsn: str, rate: float) -> PgbenchLoad:
    spec = LoadSpec("tpcb-like", clients=2, jobs=1, rate=rate, seed=1)
    return PgbenchLoad(find_pgbench(binaries), dsn, spec)


def name_of(index: int) -> str:
    """A server's name in agent.toml."""
    return f"server-{index + 1:03}"


def write_config(path: Path, spool: Path, servers: Sequence[Cluster]) -> None:
    """agent.toml for these servers."""
    lines = ["[spool]", f'directory = "{spool}"']
    for index, cluster in enumerate(servers):
        dsn = make_conninfo(cluster.dsn("shop"), user=ROLE)
        lines += [f"[servers.{name_of(index)}]", f"dsn = {json.dumps(dsn)}"]
    path.write_text("\n".join(lines) + "\n")


def lateness(
    spool: Path, source: str, servers: int, from_us: int, to_us: int
) -> tuple[tuple[float, float, float], int]:
    """How late looks were, in ms (median, 99th percentile, longest), and how many are missing."""
    interval_s = INTERVALS_S[source]
    sql = (
        f"SELECT server, epoch_us(ts) FROM ticks WHERE source = '{source}'"
        f" AND epoch_us(ts) > {from_us} AND epoch_us(ts) <= {to_us}"
    )
    rows = reader.query(spool, sql).rows
    if not rows:
        raise MeasurementError("the agent has committed no look: is the spool on a full disk?")
    spread = INTERVALS_S["waits"]
    phase = {name: stagger(name) * spread for name in map(name_of, range(servers))}
    if servers == 1:
        phase = dict.fromkeys(phase, 0.0)
    late = np.array([(us / 1e6 - phase[name] % interval_s) % interval_s for name, us in rows])
    expected = servers * int((to_us - from_us) / 1e6 / interval_s)
    ms = 1000 * np.array([*np.quantile(late, [0.5, 0.99]), late.max()])
    return (float(ms[0]), float(ms[1]), float(ms[2])), max(0, expected - len(rows))


def measure(agent: AgentProcess, spool: Path, servers: int, seconds: float) -> FleetStage:
    """Watch for a while."""
    began_us, began, cpu_s = round(time.time() * 1e6), time.monotonic(), agent.cpu_s()
    time.sleep(seconds)
    took, spent = time.monotonic() - began, agent.cpu_s() - cpu_s
    ended_us = round(time.time() * 1e6)
    rss, most = agent.memory_bytes()
    time.sleep(INTERVALS_S["waits"] + 3)  # the last looks are committed with the next tick
    waits, missed_waits = lateness(spool, "waits", servers, began_us, ended_us)
    sessions, missed_sessions = lateness(spool, "sessions", servers, began_us, ended_us)
    return FleetStage(
        servers,
        took,
        spent / took,
        rss,
        most,
        waits,
        sessions,
        {"waits": missed_waits, "sessions": missed_sessions},
    )


def print_table(stages: Sequence[FleetStage]) -> None:
    """One row a stage, and what one more server costs."""
    print(
        "| servers | CPU, of one processor | a server | RSS, MB | at most "
        "| waits late, ms: median, 99 %, most | sessions late, ms | looks missed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for stage in stages:
        late, sampled = (
            ", ".join(f"{ms:.0f}" for ms in each)
            for each in (stage.late_ms, stage.sessions_late_ms)
        )
        print(
            f"| {stage.servers} | {100 * stage.cpu_share:.2f} % "
            f"| {100 * stage.cpu_share / stage.servers:.3f} % | {stage.rss_bytes / 1e6:.0f} "
            f"| {stage.most_bytes / 1e6:.0f} | {late} | {sampled} "
            f"| {stage.missed['waits']} waits, {stage.missed['sessions']} sessions |"
        )
    if len(stages) > 1:
        servers = [stage.servers for stage in stages]
        cpu = np.polyfit(servers, [stage.cpu_share for stage in stages], 1)
        memory = np.polyfit(servers, [stage.rss_bytes for stage in stages], 1)
        print(
            f"one more server: {100 * cpu[0]:.3f} % of a processor, {memory[0] / 1e6:.2f} MB; "
            f"without any: {100 * cpu[1]:.2f} %, {memory[1] / 1e6:.0f} MB"
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=2.0, help="transactions a second, each")
    parser.add_argument("--minutes", type=float, default=3.0, help="of each stage")


def main(given: argparse.Namespace) -> int:
    """Print a table of the stages; 1 if the agent could not watch all servers throughout."""
    numbers = sorted({max(1, given.servers // part) for part in (4, 2, 1)})
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = start_servers(stack, given.servers, given.rate)
        spool, config = directory / "spool", directory / "agent.toml"
        write_config(config, spool, servers[: numbers[0]])
        agent = stack.enter_context(AgentProcess(directory / "log", "--config", config))
        stages: list[FleetStage] = []
        for number in numbers:
            if stages:
                write_config(config, spool, servers[:number])
                agent.send(signal.SIGHUP)
            agent.wait_connected(number)
            say(f"the agent watches {number} servers")
            time.sleep(_SETTLES_S)  # the doctor's look at the new ones
            stages.append(measure(agent, spool, number, 60 * given.minutes))
        trouble = [line for line in agent.log.splitlines() if "level=info" not in line]
        print_table(stages)
        say("the servers stop")
    for line in trouble[:10]:
        print(line)
    return 1 if any("level=error" in line for line in trouble) else 0
