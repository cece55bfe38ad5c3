"""Servers with wait_event_timing, and how tests ask them."""

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import psycopg

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable
from pgtare.server.settings import Value

Connection = psycopg.Connection[tuple[Any, ...]]

CAPTURING: dict[str, Value] = {
    "wait_event_timing.capture": "stats",
    "compute_query_id": True,
    "deadlock_timeout": "50ms",
    "shared_buffers": "1MB",
}


def rows(connection: Connection, query: str, *values: object) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), values or None).fetchall()


def one(connection: Connection, query: str, *values: object) -> Any:
    """The only row's only value."""
    ((value,),) = rows(connection, query, *values)
    return value


def names(connection: Connection) -> Connection:
    """Let the module's views be found, wherever they were made."""
    connection.execute("SET search_path = public, wait_event_timing")
    return connection


@contextlib.contextmanager
def serving(
    binaries: Binaries,
    settings: Mapping[str, Value] | None = None,
    preload: list[str] | None = None,
) -> Iterator[Cluster]:
    """A server that preloads the module, its functions in database postgres."""
    module = loadable(binaries, "wait_event_timing")
    libraries = [module.library, *(preload or [])]
    with Cluster(binaries, {**CAPTURING, **(settings or {})}, preload=libraries) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        yield cluster


@contextlib.contextmanager
def session(cluster: Cluster, **parameters: str) -> Iterator[Connection]:
    with psycopg.connect(cluster.dsn(**parameters), autocommit=True) as connection:
        yield names(connection)


def waits(connection: Connection, event: str, pid: int) -> tuple[int, int, float, float]:
    """Waits, calls, total ms and longest ms of one process for one event, 0 where it has none."""
    found = rows(
        connection,
        "SELECT waits, calls, total_time, max_time FROM pg_stat_wait_event_timing "
        "WHERE wait_event = %s AND pid = %s",
        event,
        pid,
    )
    return cast(tuple[int, int, float, float], found[0]) if found else (0, 0, 0.0, 0.0)


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> Any:
    """What the condition returned as soon as that was true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def crash(cluster: Cluster, pid: int) -> None:
    """Kill a server process by signal 9, and wait until the server has restarted for that.

    It lets sessions in for a moment longer, and ends them then.
    """

    def restarts() -> int:
        return cluster.log_path.read_text(errors="replace").count("reinitializing")

    before = restarts()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: restarts() > before)
    eventually(lambda: reachable(cluster), 60)


def reachable(cluster: Cluster) -> bool:
    """Whether a session begins."""
    try:
        with cluster.connect():
            return True
    except psycopg.Error:
        return False


def limit_files(cluster: Cluster, pid: int, mebibytes: int | None) -> None:
    """Let a process write no larger file, dynamic shared memory among them; None: no limit."""
    _limit(cluster, pid, "fsize", None if mebibytes is None else mebibytes << 20)


def limit_memory(cluster: Cluster, pid: int, more: int | None) -> None:
    """Let a process map no more than it has and so many bytes more; None: no limit."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    has = pages * resource.getpagesize()
    _limit(cluster, pid, "as", None if more is None else has + more)


def _limit(cluster: Cluster, pid: int, what: str, size: int | None) -> None:
    # the soft limit only: it can be lifted again
    command = ["prlimit", "--pid", str(pid), f"--{what}={'unlimited' if size is None else size}:"]
    subprocess.run(command, check=True, **cluster.run_as)
