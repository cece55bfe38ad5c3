"""Loads whose waits are known, and flame graphs recorded of them by the command."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.seeing.flame import permission
from pgtare.seeing.flame.profile import Profile, parse_folded
from pgtare.server.cluster import Cluster
from tests.commands import pgtare

#: Frames in which nearly every wait lies, whatever it is for.
ROOTS = frozenset(
    {"backend", "PostgresMain", "exec_simple_query", "exec_execute_message", "PortalRun",
     "PortalRunMulti", "PortalRunSelect", "ProcessQuery", "standard_ExecutorRun"}
)  # fmt: skip


def needs_perf(mode: str = "off") -> None:
    """Skip, with the reason, where perf cannot do this here."""
    try:
        permission.find_perf()
        permission.check(mode, [os.getpid()])  # type: ignore[arg-type]
    except Exception as ex:
        pytest.skip(str(ex))


@contextlib.contextmanager
def repeating(
    cluster: Cluster, sessions: int, work: Callable[[psycopg.Connection, int], None]
) -> Iterator[None]:
    """Sessions that each do `work(connection, number)` over and over."""
    stop = threading.Event()

    def run(number: int) -> None:
        with contextlib.suppress(psycopg.Error), cluster.connect() as connection:
            connection.prepare_threshold = None
            while not stop.is_set():
                work(connection, number)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(sessions)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


def flame(mode: str, cluster: Cluster, path: Path, *more: str, seconds: float = 2.0) -> Profile:
    """The folded stacks of a recording of the whole server, as written by the command."""
    done = pgtare(
        "flame", mode, "--postmaster", str(cluster.postmaster_pid), "--duration", f"{seconds}s",
        "--folded", path, *more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return parse_folded(path)


def shares(profile: Profile, *names: str) -> list[float]:
    """The share of all time that passes through each of these frames."""
    whole = sum(profile.values())
    return [
        sum(ns for stack, ns in profile.items() if name in stack) / whole if whole else 0.0
        for name in names
    ]
