"""Whose samples are wanted: one process, or all of a server, found by pid or by connection."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgtare.errors import UsageError
from pgtare.kit.terminal_text import plain
from pgtare.seeing.flame import processes
from pgtare.server import pooler

#: For so long it is believed that a process is none of the server's, in s.
_FORGET_S = 1.0
#: A postmaster's start by the kernel's clock and by its own may differ by this much, in s.
_START_S = 5.0


@dataclass
class FlameTarget:
    """Processes wanted. postmaster: all of its children as well, those to come included."""

    pids: list[int]
    postmaster: int | None
    name: str
    _known: set[int] = field(default_factory=set)
    _others: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known.update(self.pids)

    def wants(self, pid: int) -> bool:
        """Whether this process is one of them; new children of the postmaster are found out."""
        if pid in self._known:
            return True
        if self.postmaster is None:
            return False
        now = time.monotonic()
        if now < self._others.get(pid, 0.0):
            return False
        if processes.parent(pid) == self.postmaster:
            self._known.add(pid)
            return True
        self._others[pid] = now + _FORGET_S
        return False

    def refresh(self) -> None:
        """Forget processes that have ended, and take in children that the server has got since."""
        there = [pid for pid in self.pids if processes.exists(pid)]
        if self.postmaster is not None:
            there += [
                pid
                for pid in processes.children(self.postmaster)
                if pid not in there and self._others.get(pid) != float("inf")
            ]
        if there:
            self.pids = there
            self._known.update(there)

    @property
    def lives(self) -> bool:
        """Whether there is anything left to record."""
        if self.postmaster is not None:
            return processes.exists(self.postmaster)
        return any(processes.exists(pid) for pid in self.pids)

    @property
    def alone(self) -> bool:
        """Whether no other server's processes are to be seen here."""
        return all(
            pid == self.postmaster or processes.parent(pid) == self.postmaster
            for pid in processes.servers()
        )

    def by_server_pid(self) -> dict[int, int]:
        """The machine's number of each process by the server's own number for it."""
        return {processes.inner_pid(pid): pid for pid in self._known}


def of_pid(pid: int) -> FlameTarget:
    """One process. Raises UsageError if there is none, or it is not PostgreSQL's."""
    if not processes.exists(pid):
        raise UsageError(_no_such(pid))
    if not processes.is_server(pid):
        name = plain(processes.read(pid, "comm").strip())
        raise UsageError(f"process {pid} is {name or 'hidden from us'}, not one of PostgreSQL's")
    return FlameTarget([pid], None, f"process {pid} ({processes.activity(pid)[0]})")


def of_postmaster(pid: int) -> FlameTarget:
    """A postmaster and all its children. Raises UsageError if it is none."""
    of_pid(pid)
    above = processes.parent(pid)
    if above and processes.is_server(above) and pid in processes.children(above):
        raise UsageError(
            f"process {pid} is a child of postmaster {above}: use --postmaster {above}"
        )
    return FlameTarget([pid, *processes.children(pid)], pid, f"server of postmaster {pid}")


def of_connection(conn: psycopg.Connection[Any], pid: int | None = None) -> FlameTarget:
    """The server at the other end, or one of its processes by the server's number for it.

    Raises UsageError if its processes are not on this machine, or not to be seen from here.
    """
    own = pooler.backend_pid(conn)
    postmaster = _by_socket(conn) or _by_start(conn, own)
    if postmaster is None:
        raise UsageError(
            "that server's processes are not to be seen from here (another host, or a container "
            "whose processes are hidden): run pgtare where they are, or give --postmaster PID"
        )
    target = of_postmaster(postmaster)
    if pid is not None:
        found = target.by_server_pid().get(pid)
        if found is None:
            raise UsageError(f"that server has no process {pid}")
        return of_pid(found)
    # behind a pooler, what serves us serves the application as well
    mine = None if pooler.is_pooled(conn) else target.by_server_pid().get(own)
    if mine is not None:  # what we ask is no part of the picture
        target.pids.remove(mine)
        target._known.discard(mine)
        target._others[mine] = float("inf")
    return target


def _by_socket(conn: psycopg.Connection[Any]) -> int | None:
    """The process that listens on the Unix socket, as numbered here."""
    try:
        with socket.socket(fileno=_duplicate(conn)) as end:
            if end.family != socket.AF_UNIX:
                return None
            raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None
    pid: int = struct.unpack("3i", raw)[0]
    return pid if pid > 0 and processes.is_server(pid) else None


def _duplicate(conn: psycopg.Connection[Any]) -> int:
    return os.dup(conn.fileno())


def _by_start(conn: psycopg.Connection[Any], own: int) -> int | None:
    """The parent of a process that is numbered like ours there and began when the server did."""
    row = conn.execute(
        "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8"
    ).fetchone()
    age = float(row[0]) if row else -1.0
    for pid in processes.servers():
        above = processes.parent(pid)
        if (
            processes.inner_pid(pid) == own
            and processes.is_server(above)
            and abs(_age_s(above) - age) < _START_S
        ):
            return above
    return None


def _age_s(pid: int) -> float:
    # not psutil: it adds the kernel's time of boot, in whole seconds
    fields = processes.read(pid, "stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return -1.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _no_such(pid: int) -> str:
    elsewhere = [other for other in processes.servers() if processes.inner_pid(other) == pid]
    if elsewhere:
        return (
            f"there is no process {pid} here; in a container one of PostgreSQL's is numbered so: "
            f"use --pid {elsewhere[0]}"
        )
    return f"there is no process {pid}"
