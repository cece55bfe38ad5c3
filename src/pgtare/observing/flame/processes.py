"""Processes: what is known of one, and whose samples are wanted.

By psutil where it knows it. It raises nothing here: of what has ended, nothing is known.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg

from pgtare.errors import UsageError
from pgtare.kit.terminal_text import plain
from pgtare.observing.flame import frames
from pgtare.observing.flame.frames import Stack
from pgtare.postgres import pooler
from pgtare.postgres.backend_types import BACKGROUND

PROGRAMS = frozenset({"postgres", "postmaster"})
#: The inode of the machine's own pid namespace.
_MACHINE = "pid:[4026531836]"
# What titles call otherwise than stacks do.
_KINDS = {
    "startup": "startup process",
    "logical replication worker": "apply worker",
    "logical replication apply worker": "apply worker",
    "logical replication parallel apply worker": "apply worker",
}
_BACKGROUND = re.compile(f": ({'|'.join((*BACKGROUND, *_KINDS))})\\b[^:]*?({frames.LOCK_STATE})?$")
# Only a session's title names a client; user and database before it may be called anything.
_CLIENT = re.compile(r".* (?:\[local\]|\S+\(\d+\))(?: |$)")
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_SLEEPING = (psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP)
_T = TypeVar("_T")
_KERNEL_FRAME = re.compile(r"^\[<[0-9a-f]*>\] ([^+\s]+)", re.MULTILINE)
#: For so long it is believed that a process is none of the server's, in s.
_FORGET_S = 1.0
#: How often a server's processes are compared with those that it lists.
_LOOKS = 5


def read(pid: int, name: str) -> str:
    """A file of /proc/PID, empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""


def _ask(pid: int, question: Callable[[psutil.Process], _T], otherwise: _T) -> _T:
    """What psutil says of a process."""
    try:
        return question(psutil.Process(pid))
    except (psutil.Error, ValueError):  # the latter: of no number that a process can have
        return otherwise


def exists(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    return _ask(pid, psutil.Process.status, _ENDED[0]) not in _ENDED


def parent(pid: int) -> int:
    """The parent's pid; 0 if it is not known."""
    return _ask(pid, psutil.Process.ppid, 0)


def sleeps(pid: int) -> bool:
    """Whether the process is off the processor and waits."""
    return _ask(pid, psutil.Process.status, "") in _SLEEPING


def switches(pid: int) -> int:
    """How often it has left the processor to wait."""
    return _ask(pid, lambda process: process.num_ctx_switches().voluntary, 0)


def is_server(pid: int) -> bool:
    """Whether it is one of PostgreSQL's processes."""
    return _ask(pid, psutil.Process.name, "") in PROGRAMS


def children(pid: int) -> list[int]:
    """Its child processes, by the kernel's list: psutil would look at every process."""
    return [int(word) for word in read(pid, f"task/{pid}/children").split()]


def owner(pid: int) -> int | None:
    """The user id that it runs under.

    That of root if the process cannot be looked at by its owner either, which psutil does not tell.
    """
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return None


def inner_pid(pid: int) -> int:
    """Its number in its own pid namespace, which is what the server calls it."""
    return next(reversed(_numbers(pid)), pid)


def _numbers(pid: int) -> list[int]:
    """Its numbers in pid namespaces, from ours to its own; none if it has ended."""
    found = re.search(r"^NSpid:\s+(.*)$", read(pid, "status"), re.MULTILINE)
    return [int(word) for word in found[1].split()] if found else []


def servers() -> Iterator[int]:
    """Every process of PostgreSQL that can be seen."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] in PROGRAMS:
            yield process.pid


def in_machine_namespace() -> bool:
    """Whether our process numbers are the kernel's own, as in scheduler events."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == _MACHINE
    return False


def program(pid: int) -> str:
    """The path at which its program can be read, in its own file system; empty if it cannot."""
    with contextlib.suppress(OSError):
        found = os.readlink(f"/proc/{pid}/exe")
        return f"/proc/{pid}/root{found.removesuffix(' (deleted)')}"
    return ""


def libc(pid: int) -> str:
    """The path at which the C library that it has loaded can be read; empty if it cannot."""
    for line in read(pid, "maps").splitlines():
        path = line.partition("/")[2]
        if re.search(r"/(libc\.so\.6|libc-[\d.]+\.so|ld-musl[^/]*)$", f"/{path}"):
            return f"/proc/{pid}/root/{path}"
    return ""


def activity(pid: int) -> tuple[str, str]:
    """What the process says that it does, by its title, and what kind of process it is.

    As in `UPDATE waiting`, `idle`, `checkpointer`; the postmaster has no title.
    """
    title = plain(" ".join(read(pid, "cmdline").replace("\0", " ").split()))
    if not title.startswith(("postgres: ", "postmaster: ")):
        return "postmaster", "postmaster"
    client = _CLIENT.match(title)
    if client is not None:
        what = title[client.end() :] or title
        return what, "walsender" if what.startswith("streaming ") else "backend"
    background = _BACKGROUND.search(title)
    if background is not None:
        return background[1] + (background[2] or ""), _KINDS.get(background[1], background[1])
    return title.partition(": ")[2], "backend"


def standing(pid: int) -> Stack | None:
    """The stack of a process that waits, the kernel's part of it: its own is not known.

    None if it does not wait.
    """
    if not sleeps(pid):
        return None
    kernel = [name + frames.KERNEL for name in _KERNEL_FRAME.findall(read(pid, "stack"))]
    what, kind = activity(pid)
    what = what.replace(";", ":")
    return (kind, f"{frames.THROUGHOUT}: {what}", *reversed(kernel))


@dataclass
class FlameTarget:
    """Processes wanted. postmaster: all of its children as well, those to come included."""

    pids: list[int]
    postmaster: int | None
    name: str
    #: events of the server's program, of processes that ended before anything was known of them
    unknown: int = 0
    _known: set[int] = field(default_factory=set)
    _others: dict[int, float] = field(default_factory=dict)
    #: never wanted
    _left_out: set[int] = field(default_factory=set)
    #: the server's own number of each process, if its pid namespace is another
    _inner: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: whether the server numbers its processes otherwise than we do
        self.foreign = len(_numbers(self.pids[0])) > 1
        for pid in self.pids:
            self._learn(pid)

    def _learn(self, pid: int) -> None:
        self._known.add(pid)
        self._others.pop(pid, None)
        if self.foreign and (numbers := _numbers(pid)):
            self._inner[pid] = numbers[-1]

    def leave_out(self, pid: int) -> None:
        """Never want this process."""
        self._left_out.add(pid)
        self._known.discard(pid)
        self.pids = [other for other in self.pids if other != pid]

    def forked(self, task: int, pid: int, parent: int) -> None:
        """A task has begun, as perf says: a process of this parent, or a thread of its own."""
        if pid in self._left_out or pid == self.postmaster != parent:
            return
        if pid == parent:
            if pid in self._known:
                self._known.add(task)
        elif self.postmaster is not None:
            if parent == self.postmaster:
                self._learn(pid)
            else:  # also if a session had this number before
                self._known.discard(pid)
                self._others[pid] = math.inf

    def wants(self, pid: int, program: str | None = None, *, descends: bool = False) -> bool:
        """Whether this process is one of them; new children of the postmaster are found out.

        program: as perf names it, None if it is the server's. descends: whether no other server's
        processes can be among those that perf follows.
        """
        if pid in self._known:
            return True
        # a process outside our pid namespace has no number
        if self.postmaster is None or pid in self._left_out or pid <= 0:
            return False
        now = time.monotonic()
        if now < self._others.get(pid, 0.0):
            return False
        above = parent(pid)
        ended = not above and (program is None or program in PROGRAMS)
        if above == self.postmaster or (descends and (ended or program == f":{pid}")):
            self._learn(pid)
            return True
        if ended:
            self.unknown += 1
        else:
            self._others[pid] = now + _FORGET_S
        return False

    def refresh(self) -> None:
        """Forget processes that have ended, and take in children that the server has got since."""
        there = [pid for pid in self.pids if exists(pid)]
        if self.postmaster is not None:
            there += self.newcomers(there)
        if there:
            self.pids = there
            for pid in there:
                self._learn(pid)

    def newcomers(self, pids: Iterable[int]) -> list[int]:
        """Children that the server has got that are none of these."""
        if self.postmaster is None:
            return []
        passed = self._left_out.union(pids)
        return [pid for pid in children(self.postmaster) if pid not in passed]

    @property
    def lives(self) -> bool:
        """Whether there is anything left to record."""
        if self.postmaster is not None:
            return exists(self.postmaster)
        return any(exists(pid) for pid in self.pids)

    @property
    def alone(self) -> bool:
        """Whether no other server's processes are to be seen here."""
        return all(pid == self.postmaster or parent(pid) == self.postmaster for pid in servers())

    def by_server_pid(self) -> dict[int, int]:
        """The machine's number of each process by the server's own number for it.

        Without those that ended before it was looked up.
        """
        if not self.foreign:
            return {pid: pid for pid in self._known}
        return {self._inner[pid]: pid for pid in self._known if pid in self._inner}

    @property
    def unnumbered(self) -> int:
        """How many ended before the server's own number of them was looked up."""
        return len(self._known - self._inner.keys()) if self.foreign else 0


def of_pid(pid: int) -> FlameTarget:
    """One process. Raises UsageError if there is none, or it is not PostgreSQL's."""
    if not exists(pid):
        raise UsageError(
            f"there is no process {pid} here (by the server's own number: give --dsn as well)"
        )
    if not is_server(pid):
        name = plain(read(pid, "comm").strip())
        raise UsageError(f"process {pid} is {name or 'hidden from us'}, not one of PostgreSQL's")
    return FlameTarget([pid], None, f"process {pid} ({activity(pid)[0]})")


def of_postmaster(pid: int) -> FlameTarget:
    """A postmaster and all its children. Raises UsageError if it is none."""
    of_pid(pid)
    above = parent(pid)
    if above and is_server(above) and pid in children(above):
        raise UsageError(
            f"process {pid} is a child of postmaster {above}: use --postmaster {above}"
        )
    return FlameTarget([pid, *children(pid)], pid, f"server of postmaster {pid}")


def of_connection(conn: psycopg.Connection[Any], pid: int | None = None) -> FlameTarget:
    """The server at the other end, or one of its processes by the server's number for it.

    Raises UsageError if its processes are not on this machine, or not to be seen from here.
    """
    own = pooler.backend_pid(conn)
    postmaster = _by_socket(conn) or _by_processes(conn)
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
        target.leave_out(mine)
    return target


def _by_socket(conn: psycopg.Connection[Any]) -> int | None:
    """The process that listens on the Unix socket, as numbered here."""
    try:
        with socket.socket(fileno=os.dup(conn.fileno())) as end:
            if end.family != socket.AF_UNIX:
                return None
            raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None
    pid: int = struct.unpack("3i", raw)[0]
    return pid if pid > 0 and is_server(pid) else None


def _by_processes(conn: psycopg.Connection[Any]) -> int | None:
    """The parent of ours there: a process with its number and client, whose siblings all fit.

    No clock is compared: a wall clock may have been set since the server started.
    """
    missing: dict[int, set[int]] = {}
    for _ in range(_LOOKS):  # what is listed may have ended by now, but not again and again
        row = conn.execute(
            "SELECT pg_catalog.pg_backend_pid(), pg_catalog.inet_client_port(), "
            "pg_catalog.array_agg(pid) FROM pg_catalog.pg_stat_activity"
        ).fetchone()
        if row is None:
            return None
        own, port, listed = row
        client = "[local]" if port is None else f"({port})"
        for pid in servers():
            above = parent(pid)
            if inner_pid(pid) != own or not is_server(above) or client not in read(pid, "cmdline"):
                continue
            unseen = set(listed) - {inner_pid(child) for child in children(above)}
            missing[above] = missing.get(above, unseen) & unseen
            if not missing[above]:
                return above
    return None
