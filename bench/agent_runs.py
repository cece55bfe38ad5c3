"""What the benchmarks of the agent share: a server with many sessions, and an agent that runs.

A process is charged by its own processor clock: nanoseconds, of all its threads, ended ones as
well.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from bench import harness
from pgtare.errors import MeasurementError
from pgtare.keeping.agent import queries
from pgtare.postgres import own_session
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.load import LoadSpec, PgbenchLoad, Script, find_pgbench
from pgtare.postgres.modules import loadable

MODULE = "wait_event_timing"
ROLE = "watcher"
#: Columns of pgbench_accounts; statements differ by the columns that they select.
_COLUMNS = ("aid", "bid", "abalance", "filler")
_STARTS_S, _ENDS_S = 180.0, 20.0
_PID = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s
AND objsubid = 2 AND granted
"""


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time that running processes have used, in s."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


@dataclass(frozen=True)
class WatchedLoad:
    """A load on a server that an agent can watch."""

    target: harness.Server
    agent_dsn: str
    running: PgbenchLoad
    conn: psycopg.Connection[Any]

    def backends(self) -> list[int]:
        """The server's processes of the load's sessions."""
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        return [pid for (pid,) in self.conn.execute(query, (self.running.application_name,))]

    def agent_backend(self) -> int | None:
        """The server's process that answers the agent; None if none does."""
        row = self.conn.execute(_PID, (queries.LOCK_CLASS, queries.LOCK_OBJECT)).fetchone()
        return None if row is None else int(row[0])

    def transactions(self) -> int:
        """Transactions of the load's database so far, as far as its sessions have reported them."""
        query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        row = self.conn.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def write_scripts(directory: Path, number: int, scale: int) -> tuple[Script, ...]:
    """Write scripts of single-row look-ups, each a statement of its own to the server."""
    found = []
    for index in range(number):
        digits, left = [], index + len(_COLUMNS)
        while left:
            digits.append(_COLUMNS[left % len(_COLUMNS)])
            left //= len(_COLUMNS)
        path = directory / f"look-up-{index}.sql"
        path.write_text(
            f"\\set aid random(1, {100_000 * scale})\n"
            f"SELECT {', '.join(digits)} FROM pgbench_accounts WHERE aid = :aid;\n"
        )
        found.append(Script(path))
    return tuple(found)


@contextlib.contextmanager
def watched_load(
    directory: Path, *, clients: int, rate: float, statements: int, scale: int
) -> Iterator[WatchedLoad]:
    """An embedded server that captures waits, and pgbench with a rate over all clients."""
    library = loadable(from_wheel(), MODULE)
    settings = {
        "max_connections": str(clients + 20),
        "compute_query_id": "on",
        "wait_event_timing.capture": "stats",
    }
    libraries = ["pg_stat_statements", library.library]
    spec = LoadSpec(
        scripts=write_scripts(directory, statements, scale), clients=clients, rate=rate, seed=1
    )
    with harness.server(libraries, settings, scale=scale) as target:
        with own_session.connect(target.dsn) as conn:
            conn.execute(library.create_sql.encode())
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute(f"CREATE ROLE {ROLE} LOGIN IN ROLE pg_monitor".encode())
        with (
            own_session.connect(target.dsn) as conn,
            PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as running,
        ):
            running.wait_ready()
            yield WatchedLoad(target, make_conninfo(target.dsn, user=ROLE), running, conn)


class AgentProcess:
    """`pgtare agent` as users start it, for `with`. words: its options. Its log is in a file."""

    def __init__(self, log: Path, *words: object) -> None:
        self._log, self._words = log, [str(word) for word in words]
        self._popen: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> AgentProcess:
        command = [sys.executable, "-m", "pgtare", "agent", *self._words]
        with self._log.open("wb") as log:
            self._popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._popen is not None
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGCONT)
            self._popen.terminate()
            try:
                self._popen.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()

    @property
    def pid(self) -> int:
        """Its process. Raises MeasurementError, with the end of its log, if it has ended."""
        assert self._popen is not None
        if self._popen.poll() is not None:
            raise MeasurementError(f"the agent ended: {self.log[-500:]}")
        return self._popen.pid

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace")

    def wait_connected(self, servers: int = 1, timeout_s: float = _STARTS_S) -> None:
        """Wait until it watches this many servers."""
        deadline = time.monotonic() + timeout_s
        while self.log.count("event=connected") < servers:
            if time.monotonic() > deadline:
                raise MeasurementError(f"the agent does not connect: {self.log[-500:]}")
            _ = self.pid
            time.sleep(0.2)

    def cpu_s(self) -> float:
        """Processor time of all its threads, in s."""
        return cpu_s([self.pid])

    def memory_bytes(self) -> tuple[int, int]:
        """Its memory now and at most, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        kib = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
        return int(kib["VmRSS"]) << 10, int(kib["VmHWM"]) << 10

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._popen is not None
        self._popen.send_signal(number)
