"""Find and end the processes of one data directory, without ever signalling a reused pid."""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
PROGRAMS = ("postgres", "postmaster", "initdb")
IMMEDIATE_SECONDS = 10.0
KILL_SECONDS = 5.0


class Process:
    """A process held by its pidfd: signals reach this process or none."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd

    @classmethod
    def hold(cls, pid: int) -> "Process | None":
        """The process with this pid, or None if there is none."""
        try:
            return cls(pid, os.pidfd_open(pid))
        except OSError:
            return None

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signum)

    def wait(self, seconds: float) -> bool:
        """Whether the process has ended, after at most this many seconds."""
        poll = select.poll()  # select() fails for descriptors above 1023
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(max(0, int(seconds * 1000))))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_pid_file(data: Path) -> list[str]:
    """The lines of postmaster.pid; empty if there is none.

    The directory belongs to the server's account, so neither links nor pipes are followed.
    """
    try:
        fd = os.open(data / "postmaster.pid", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    with os.fdopen(fd, errors="replace") as file:
        return file.read(4096).splitlines()


def hold_postmaster(data: Path) -> Process | None:
    """The running postmaster of a data directory, held; None if there is none."""
    lines = read_pid_file(data)
    if not lines or not lines[0].strip().isdigit():
        return None
    process = Process.hold(int(lines[0]))
    if process is not None and _works_in(process.pid, data):
        return process
    if process is not None:
        process.close()
    return None


def stop_postmaster(postmaster: Process, data: Path, mode: StopMode, seconds: float) -> str:
    """Stop a server and return how: the requested mode, "immediate", or "killed" as a last resort.

    Waits `seconds` for the requested mode before it becomes more insistent.
    """
    postmaster.signal(_SIGNALS[mode])
    if postmaster.wait(seconds):
        return mode
    if mode != "immediate":
        postmaster.signal(signal.SIGQUIT)
        if postmaster.wait(IMMEDIATE_SECONDS):
            return "immediate"
    postmaster.signal(signal.SIGKILL)
    postmaster.wait(KILL_SECONDS)
    kill_leftovers(data)
    return "killed"


def kill_leftovers(data: Path) -> None:
    """Kill what a dead postmaster left running in its data directory."""
    for process in _servers_in(data):
        process.signal(signal.SIGKILL)
        process.wait(KILL_SECONDS)
        process.close()


def _servers_in(data: Path) -> Iterator[Process]:
    for pid in psutil.pids():
        if _works_in(pid, data):
            process = Process.hold(pid)
            # Asked again, now that the pid can no longer be given to another process.
            if process is not None and _works_in(process.pid, data):
                yield process


def _works_in(pid: int, data: Path) -> bool:
    """Whether a process is one of PostgreSQL's in this data directory.

    The program is checked as well: somebody may be looking at the directory with a shell.
    """
    try:
        process = psutil.Process(pid)
        return process.cwd() == str(data) and os.path.basename(process.exe()) in PROGRAMS
    except psutil.Error:
        return False
