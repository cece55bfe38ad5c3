"""Orders to trace a session are heard by that session alone, not by one that takes its place."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from pgtare.observing.trace.capture import recorder_locks
from pgtare.observing.trace.capture.server import open_server
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import source_dir
from pgtare.postgres.cluster import Cluster
from tests.servers import tracing
from tests.sessions import Connection, one, session, set_search_path
from tests.trace_recorder import level_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

WRITE = "pg_atomic_write_u32(&slot->asked_level"


def test_levels_are_given_back_to_whom_they_were_lent(
    tracer: Cluster, client: Connection, onlooker: Connection
) -> None:
    """Another session that has the same number keeps what was asked of it."""
    pid = client.info.backend_pid
    began = one(onlooker, "SELECT backend_start FROM pg_stat_activity WHERE pid = %s", pid)
    one(onlooker, "SELECT sql_trace_set(%s, 1)", pid)
    with open_server(tracer.dsn()) as server:
        for start, level in ((began - timedelta(seconds=1), 1), (began, 0)):
            recorder_locks.give_back(server, {pid: start}, recorder=0)
            client.execute("SELECT 1")
            assert level_of(onlooker, pid) == level


@contextlib.contextmanager
def halted(pid: int, place: str) -> Iterator[threading.Event]:
    """Let a process stop there, the first time that it comes by; set when it has."""
    debugger = subprocess.Popen(
        ["gdb", "-q", "-nx", "-p", str(pid), "-iex", "set pagination off"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert debugger.stdin
    assert debugger.stdout
    ready, there = threading.Event(), threading.Event()
    lines: list[str] = []

    def listen() -> None:
        for line in debugger.stdout or ():
            lines.append(line)
            for words, event in (("Continuing.", ready), ("Breakpoint 1, ", there)):
                if words in line:
                    event.set()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        for command in (
            "set confirm off",
            "handle SIGUSR1 SIGURG nostop noprint pass",
            f"break {place}",
            "continue",
        ):
            debugger.stdin.write(command + "\n")
        debugger.stdin.flush()
        assert ready.wait(60), lines
        yield there
        debugger.stdin.write("delete\ndetach\nquit\n")
        debugger.stdin.flush()
        debugger.wait(30)
    finally:
        debugger.kill()
        listener.join(10)


@pytest.mark.slow
@pytest.mark.debian
@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb, to stop a session in a race")
def test_order_for_a_session_that_ends_meanwhile(debian15: Binaries) -> None:
    """It is asked between the look at whose a place is and the order; another takes the place."""
    text = (source_dir() / "sql_trace" / "core" / "sessions.c").read_text().splitlines()
    (line,) = [n for n, found in enumerate(text, 1) if WRITE in found]
    arrived: list[Connection] = []

    def connect() -> None:
        arrived.append(psycopg.connect(cluster.dsn(), autocommit=True))

    with (
        tracing(debian15, others=()) as cluster,
        session(cluster) as asker,
        session(cluster) as onlooker,
        session(cluster) as goes,
    ):
        pid = goes.info.backend_pid
        one(asker, "SELECT sql_trace_set(0, 0)")  # its library is loaded
        asks = threading.Thread(target=one, args=(asker, f"SELECT sql_trace_set({pid}, 4)"))
        comes = threading.Thread(target=connect)
        with halted(asker.info.backend_pid, f"sessions.c:{line}") as there:
            asks.start()
            assert there.wait(20)
            goes.close()
            comes.start()
            comes.join(2)
        asks.join(20)
        comes.join(20)
        with arrived[0] as new:
            set_search_path(new)
            for _ in range(3):
                one(new, "SELECT 1")
            assert level_of(onlooker, new.info.backend_pid) == 0
