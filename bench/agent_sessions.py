"""What `pgtare agent` takes by the number of sessions, calm and while all wait for one of them.

pgbench offers a steady load, and the agent runs. After a calm window a session locks the table and
stays idle in transaction, until all clients wait for it. Processor time is that of the agent, and
of the server's process that answers it. The exit status is 1 if that takes more than 10 ms a second
in an incident, if the agent takes more than a hundredth of a processor, or if it did not find who
held up the others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.agent_runs import AgentProcess, WatchedLoad, cpu_s, watched_load
from bench.harness import say
from pgtare.errors import MeasurementError
from pgtare.keeping.spool import reader

TAKES = "a quarter of an hour (--seconds, --sessions)"

MOST_CPU_SHARE, MOST_SERVER_MS = 0.01, 10.0
RATE, STATEMENTS, SCALE = 200.0, 20, 1
#: The agent's first minute has the doctor's look and all texts of statements.
WARM_UP_S = 70.0
_ROOTS = """
SELECT count(*) FROM findings
WHERE kind = 'lock' AND event = 'open' AND json_extract_string(root, '$.application') = 'holder'
"""


@dataclass(frozen=True)
class Taken:
    """In one window: server_ms: a second, of the agent's backend; agent_share: of a processor."""

    sessions: int
    incident: bool
    waiting: int
    server_ms: float
    agent_share: float
    memory_bytes: int


def window(load: WatchedLoad, agent: AgentProcess, seconds: float, sessions: int) -> Taken:
    """Let it run for a while."""
    backend = load.agent_backend()
    if backend is None:
        raise MeasurementError(f"the agent has lost its session: {agent.log[-500:]}")
    waiting = _waiting(load)
    began, server_s, agent_s = time.monotonic(), cpu_s([backend]), agent.cpu_s()
    time.sleep(seconds)
    took = time.monotonic() - began
    return Taken(
        sessions,
        waiting > 0,
        waiting,
        1e3 * (cpu_s([backend]) - server_s) / took,
        (agent.cpu_s() - agent_s) / took,
        agent.memory_bytes()[0],
    )


def _waiting(load: WatchedLoad) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    row = load.conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def measure(sessions: int, seconds: float) -> tuple[list[Taken], bool]:
    """A calm window and one in an incident, and whether the holder was found."""
    with (
        tempfile.TemporaryDirectory(prefix="pgtare-bench-") as name,
        watched_load(
            Path(name), clients=sessions, rate=RATE, statements=STATEMENTS, scale=SCALE
        ) as load,
    ):
        spool = Path(name, "spool")
        with AgentProcess(Path(name, "log"), "--dsn", load.agent_dsn, "--spool", spool) as agent:
            agent.wait_connected()
            time.sleep(WARM_UP_S)
            found = [window(load, agent, seconds, sessions)]
            with psycopg.connect(load.target.dsn, application_name="holder") as holder:
                holder.execute("LOCK TABLE pgbench_accounts")
                deadline = time.monotonic() + 60
                while _waiting(load) < sessions and time.monotonic() < deadline:
                    time.sleep(0.5)
                found.append(window(load, agent, seconds, sessions))
                holder.rollback()
        return found, reader.query(spool, _ROOTS).rows == [(1,)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=120.0, help="of a window")
    parser.add_argument("--sessions", type=int, nargs="+", default=[10, 100, 500])


def main(given: argparse.Namespace) -> int:
    """Measure, print and judge."""
    taken, wrong = [], 0
    for sessions in given.sessions:
        say(f"{sessions} sessions")
        found, is_found = measure(sessions, given.seconds)
        taken += found
        if not is_found:
            say(f"with {sessions} sessions the holder was not found once")
            wrong = 1
    print("\nsessions  waiting  server, ms/s  agent, % of a processor  memory, MB")
    for one in taken:
        print(
            f"{one.sessions:8d}  {one.waiting:7d}  {one.server_ms:12.2f}"
            f"  {100 * one.agent_share:23.2f}  {one.memory_bytes / 1e6:10.0f}"
        )
        if one.agent_share > MOST_CPU_SHARE or (one.incident and one.server_ms > MOST_SERVER_MS):
            wrong = 1
    return wrong
