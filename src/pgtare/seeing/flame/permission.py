"""Whether perf can do here what a recording needs; if not, one sentence says what is missing."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.seeing.flame import processes
from pgtare.seeing.flame.samples import Mode

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_TRACING = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
# capabilities by number: CAP_SYS_ADMIN, CAP_PERFMON
_ENOUGH = (1 << 21) | (1 << 38)


def find_perf() -> str:
    """The path of perf. Raises UsageError if it is not installed."""
    found = shutil.which("perf")
    if found is None:
        raise UsageError(
            "perf is not installed, and collects the samples: install it (Debian: apt-get install "
            "linux-perf; Ubuntu: linux-tools-generic; Fedora: perf)"
        )
    return found


def check(mode: Mode, pids: list[int]) -> None:
    """Raise UsageError if these processes cannot be recorded in this mode."""
    if capable():
        if mode != "on" and not _has_scheduler_events():
            raise UsageError(
                "the kernel's scheduler events are not there: mount tracefs "
                "(mount -t tracefs nodev /sys/kernel/tracing)"
            )
        return
    level = paranoid()
    if mode != "on":
        if level > -1 or not _has_scheduler_events():
            raise UsageError(
                "waits are seen through scheduler events of the whole machine, which needs root, "
                f"or CAP_PERFMON and a readable tracefs (perf_event_paranoid is {level})"
            )
        return
    if level > 2:
        raise UsageError(
            f"perf_event_paranoid is {level}, so only root may sample: run pgtare as root, or let "
            "root run sysctl kernel.perf_event_paranoid=2"
        )
    for pid in pids:
        uid = processes.owner(pid)
        if uid is not None and uid != os.geteuid():
            raise UsageError(
                f"process {pid} belongs to {_name(uid)}, and with perf_event_paranoid at {level} "
                "only root and its owner may sample it: run pgtare as one of them"
            )


def sees_kernel() -> bool:
    """Whether the kernel's part of stacks can be recorded."""
    return capable() or paranoid() < 2


def capable() -> bool:
    """Whether we hold CAP_PERFMON or CAP_SYS_ADMIN."""
    for line in processes.read(os.getpid(), "status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _ENOUGH)
    return False


def paranoid() -> int:
    """The kernel's setting; 4 (nothing allowed) if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return int(PARANOID.read_text())
    return 4


def _has_scheduler_events() -> bool:
    return any(os.access(place / "events/sched/sched_switch/id", os.R_OK) for place in _TRACING)


def _name(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"
