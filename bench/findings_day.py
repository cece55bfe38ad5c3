"""A day of findings in time-lapse: an agent with four servers, and no finding lost or doubled.

Every third "hour" somebody holds up three others at each real server. One server is restarted
twice, one cannot be reached for an hour, one stays well, and a stand-in answers without end. The
exit status is 1 if a queue was not one finding that opened once and ended once, if the agent needs
more than RETURN_S to come back to a server that is back, or if its memory grows by more than
MOST_MB from the fourth hour on.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo
from tests.hostile_server import HostileServer

from bench.agent_runs import ROLE, AgentProcess
from bench.harness import say
from pgtare.keeping.spool import reader
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster

TAKES = "26 minutes (--hour SECONDS, 40 at least)"

HOURS, EVERY, HELD_S = 24, 3, 25.0
RESTARTS, UNREACHABLE = (8, 16), 10
RETURN_S, MOST_MB = 20.0, 15.0
#: So long after its last sample a finding ends.
_ENDS_S = 75.0
_FINDINGS = """
SELECT server, key, count(*) FILTER (event = 'open'), count(*) FILTER (event = 'close'),
  any_value(title)
FROM findings WHERE kind = 'lock' GROUP BY ALL
"""
_FIRST_TICK = "SELECT min(ts) FROM ticks WHERE server = 'away' AND ts > to_timestamp({})"


@dataclass
class Watched:
    """A server with its door: the directory that the agent finds its socket in."""

    cluster: Cluster
    door: Path
    held: list[int] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return make_conninfo(self.cluster.dsn(user=ROLE), host=str(self.door))

    def open(self) -> None:
        self.door.symlink_to(self.cluster.socket_directory)

    def shut(self) -> None:
        """Nobody comes in, and the agent is put out."""
        self.door.unlink()
        with self.cluster.connect(autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (ROLE,)
            )


@contextlib.contextmanager
def watched(name: str, directory: Path) -> Iterator[Watched]:
    """A server as it comes, without any module."""
    with Cluster(from_wheel()) as cluster:
        with cluster.connect() as conn:
            conn.execute(f"CREATE ROLE {ROLE} LOGIN IN ROLE pg_monitor".encode())
            conn.execute("CREATE TABLE hot AS SELECT 1 AS id, 0 AS sold")
        made = Watched(cluster, directory / name)
        made.open()
        yield made


def hold_up(one: Watched) -> None:
    """A session keeps a row that three others want."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(one.cluster.dsn(application_name="holder")))
        holder.execute("UPDATE hot SET sold = sold")
        pool = stack.enter_context(ThreadPoolExecutor(3))
        for _ in range(3):
            dsn = one.cluster.dsn(application_name="waiter")
            waiter = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            pool.submit(waiter.execute, b"UPDATE hot SET sold = sold + 1")
        time.sleep(HELD_S)
        one.held.append(holder.info.backend_pid)
        holder.rollback()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hour", type=float, default=60.0, metavar="SECONDS")


def main(given: argparse.Namespace) -> int:
    """Play the day, print memory and what went wrong; 1 if anything did."""
    wrong: list[str] = []
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="pgtare-day-", dir="/var/tmp"))
        )
        directory.chmod(0o755)
        servers = {
            name: stack.enter_context(watched(name, directory))
            for name in ("well", "restarted", "away")
        }
        hostile = stack.enter_context(HostileServer("trickle"))
        dsns = {name: one.dsn for name, one in servers.items()} | {"hostile": hostile.dsn}
        config, spool = directory / "agent.toml", directory / "spool"
        config.write_text("".join(f'[servers.{n}]\ndsn = "{dsn}"\n' for n, dsn in dsns.items()))
        with AgentProcess(directory / "log", "--config", config, "--spool", spool) as agent:
            agent.wait_connected(len(servers))
            back_at, memory = _play(servers, agent, given.hour)
            time.sleep(_ENDS_S)
        found = reader.query(spool, _FINDINGS).rows
        ((first,),) = reader.query(spool, _FIRST_TICK.format(back_at)).rows
    for name, one in servers.items():
        theirs = [row for row in found if row[0] == name]
        print(f"{name}: {len(one.held)} queues, {len(theirs)} findings")
        if len(theirs) != len(one.held):
            wrong.append(f"{name} has {len(theirs)} findings of {len(one.held)} queues")
        wrong += [
            f"{name}: opened {row[2]} times, ended {row[3]} times: {row[4]}"
            for row in theirs
            if (row[2], row[3]) != (1, 1) or not any(f"(pid {pid})" in row[4] for pid in one.held)
        ]
    away_s = None if first is None else first.timestamp() - back_at
    print(f"back {away_s} s after the server was")
    if away_s is None or away_s > RETURN_S:
        wrong.append("the agent did not come back in time")
    grown = memory[-1] - memory[4]
    print(f"memory: {memory[4]:.0f} MB in the fourth hour, {memory[-1]:.0f} MB at the end")
    if grown > MOST_MB:
        wrong.append(f"memory grew by {grown:.0f} MB")
    for line in wrong:
        print(f"WRONG: {line}")
    return int(bool(wrong))


def _play(
    servers: dict[str, Watched], agent: AgentProcess, hour_s: float
) -> tuple[float, list[float]]:
    """When the server that was away came back, and the agent's memory by hour, in MB."""
    back_at, memory, began = 0.0, [], time.monotonic()
    for hour in range(HOURS):
        say(f"{hour:02d}:00")
        if hour in RESTARTS:
            servers["restarted"].cluster.restart()
        if hour == UNREACHABLE:
            servers["away"].shut()
        elif hour == UNREACHABLE + 1:
            servers["away"].open()
            back_at = time.time()
        if hour % EVERY == 0:
            with ThreadPoolExecutor(len(servers)) as pool:
                list(pool.map(hold_up, servers.values()))
        memory.append(agent.memory_bytes()[0] / 1e6)
        time.sleep(max(0.0, began + (hour + 1) * hour_s - time.monotonic()))
    return back_at, memory
