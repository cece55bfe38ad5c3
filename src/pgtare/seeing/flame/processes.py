"""What is known of processes: children, names, namespaces, where one is in the kernel.

By psutil where it knows it. It raises nothing here: of what has ended, nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from pgtare.kit.terminal_text import plain
from pgtare.seeing.flame import frames
from pgtare.seeing.flame.samples import Stack

PROGRAMS = frozenset({"postgres", "postmaster"})
#: The inode of the machine's own pid namespace.
_MACHINE = "pid:[4026531836]"
# The title of a process that mostly waits for something to do.
_BACKGROUND = re.compile(
    r": (checkpointer|background writer|walwriter|autovacuum launcher|archiver|io worker|logger"
    r"|logical replication launcher|stats collector|walsummarizer)\b[^:]*$"
)
# Only a session's title names a client; user and database before it may be called anything.
_CLIENT = re.compile(r".* (?:\[local\]|\S+\(\d+\))(?: |$)")
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_SLEEPING = (psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP)
_T = TypeVar("_T")
_KERNEL_FRAME = re.compile(r"^\[<[0-9a-f]*>\] ([^+\s]+)")


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
    found = re.search(r"^NSpid:\s+(.*)$", read(pid, "status"), re.MULTILINE)
    return int(found[1].split()[-1]) if found else pid


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


def activity(pid: int) -> tuple[str, bool]:
    """What the process says that it does, by its title, and whether it is a client's session.

    As in `UPDATE waiting`, `idle`, `checkpointer`; the postmaster has no title.
    """
    title = plain(" ".join(read(pid, "cmdline").replace("\0", " ").split()))
    if not title.startswith(("postgres: ", "postmaster: ")):
        return "postmaster", False
    client = _CLIENT.match(title)
    if client is not None:
        return title[client.end() :] or title, True
    background = _BACKGROUND.search(title)
    if background is not None:
        return background[1], False
    return title.partition(": ")[2], True


def standing(pid: int) -> Stack:
    """The stack of a process that waits, the kernel's part of it: its own is not known."""
    lines = [_KERNEL_FRAME.match(line) for line in read(pid, "stack").splitlines()]
    kernel = [found[1] + frames.KERNEL for found in lines if found is not None]
    what, session = activity(pid)
    label = f"{frames.THROUGHOUT}: {what.replace(';', ':')}"
    return ("backend" if session else what.replace(";", ":"), label, *reversed(kernel))
