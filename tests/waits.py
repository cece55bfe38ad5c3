"""Waits that the module has counted, and a load that raises some of every class."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests.servers import run_program
from tests.sessions import Connection, eventually, one, rows, session, until_it_waits

#: Parts of the table of statements that are busy.
SKIPPED = "SELECT skipped FROM wait_event_timing_statements() WHERE wait_event IS NULL"
CLASS_SETTINGS: dict[str, Value] = {
    "pg_prewarm.autoprewarm_interval": "1s",
    "max_parallel_workers_per_gather": 2,
}


#: For what is a command's own doing, whatever the server's version.
on_one_server = pytest.mark.parametrize("timed", ["waits18"], indirect=True)
#: For what both servers do alike: PostgreSQL 18, and 15 where there is time.
slowly_on_15 = pytest.mark.parametrize(
    "timed",
    ["waits18", pytest.param("waits15", marks=[pytest.mark.debian, pytest.mark.slow])],
    indirect=True,
)


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


def sync_reads(binaries: Binaries) -> dict[str, Value]:
    """Settings with which a process reads by itself, as all did before 18."""
    return {"io_method": "sync"} if binaries.major >= 18 else {}


def see_every_class(cluster: Cluster, directory: Path) -> None:
    """LWLock, Lock, BufferPin (Buffer on 19), Activity, Client, Extension, IPC, Timeout and IO.

    The server has CLASS_SETTINGS and preloads pg_prewarm; it can read what is in `directory`.
    """
    buffer = "Buffer" if cluster.binaries.major >= 19 else "BufferPin"
    with (
        session(cluster) as first,
        session(cluster) as second,
        session(cluster) as onlooker,
    ):
        first.execute("CREATE TABLE t AS SELECT generate_series(1, 200000) AS i")
        first.execute(
            "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;"
            "SET parallel_tuple_cost = 0"
        )
        first.execute("SELECT count(*) FROM t")
        first.execute("CHECKPOINT; SELECT pg_sleep(0.01)")
        # BufferPin: a freezing vacuum wants the page that a cursor is on
        first.execute("CREATE TABLE pinned AS SELECT generate_series(1, 10) AS i")
        first.execute("BEGIN; DECLARE c CURSOR FOR SELECT i FROM pinned; FETCH c")
        vacuum = threading.Thread(target=second.execute, args=("VACUUM (FREEZE) pinned",))
        vacuum.start()
        until_it_waits(onlooker, second, buffer)
        first.execute("COMMIT")
        vacuum.join()
        # Lock
        first.execute("SELECT pg_advisory_lock(1)")
        waiter = threading.Thread(target=second.execute, args=("SELECT pg_advisory_lock(1)",))
        waiter.start()
        until_it_waits(onlooker, second, "Lock")
        first.execute("SELECT pg_advisory_unlock(1)")
        waiter.join()
        script = directory / "insert.sql"
        script.write_text("INSERT INTO t VALUES (1);\n")
        # LWLock: commits of several sessions queue for the WAL
        options = ("-n", "-c", 8, "-j", 2, "-t", 100)
        run_program(cluster, "pgbench", *options, "-f", script, cluster.dsn())
        others = {buffer, "Activity", "Client", "Extension", "IPC", "Timeout", "IO"}
        wanted = others | {"LWLock", "Lock"}
        query = "SELECT DISTINCT wait_event_type FROM pg_stat_wait_event_timing_system"
        eventually(lambda: wanted <= {name for (name,) in rows(first, query)})


def stop_as_it_counts(pid: int, observer: Connection) -> None:
    """Stop a process that counts all the time in the midst of a change."""
    for _ in range(500):
        time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        if one(observer, SKIPPED) > 0:
            break
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def counting(connection: Connection, observer: Connection) -> Iterator[int]:
    """A session that counts waits all the time, until the end or a cancel; its process."""
    pid = connection.info.backend_pid

    def count() -> None:
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            connection.execute("SELECT wait_event_timing_benchmark(400000000)")

    load = threading.Thread(target=count)
    load.start()
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)
        observer.execute("SELECT pg_cancel_backend(%s)", (pid,))
        load.join()


@contextlib.contextmanager
def stopped_as_it_counts(cluster: Cluster, observer: Connection) -> Iterator[int]:
    """A process that is stopped while it adds its waits to the tables."""
    with session(cluster) as connection:
        connection.execute("SET compute_query_id = on")
        with counting(connection, observer) as pid:
            stop_as_it_counts(pid, observer)
            yield pid
