"""What the machine under a measurement is: processor, clock, load, and time stolen by others."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def describe() -> dict[str, Any]:
    """Facts that decide how far a result carries; what cannot be read is None."""
    return {
        "host_os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu_model": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "hypervisor": "hypervisor" in _cpu_flags(),
        "clocksource": clock_source(),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def clock_source() -> str | None:
    """What the kernel takes the time from, such as tsc; None if it does not say."""
    return _read(_CLOCKSOURCE)


def has_cpu_flag(name: str) -> bool:
    """Whether the kernel lists a property of the processor."""
    return name in _cpu_flags()


def run_delay_ns(pids: Iterable[int]) -> tuple[int, int]:
    """Time on a processor, and time ready but waiting for one, of these processes, in ns.

    From the scheduler's own statistics; processes that have gone, or that we may not see, count
    as zero.
    """
    found = [schedstat(pid) or (0, 0) for pid in pids]
    return sum(ran for ran, _ in found), sum(waited for _, waited in found)


def schedstat(pid: int) -> tuple[int, int] | None:
    """Time of a process's first thread on a processor, and ready but waiting for one, in ns.

    None where the kernel does not tell. psutil has the former only, in ticks of 10 ms.
    """
    fields = (_read(Path(f"/proc/{pid}/schedstat")) or "").split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 3 else None


def cpu_ns(pid: int) -> int | None:
    """Processor time of a process, of all its threads and those that have ended, in ns.

    None if it has gone. What `schedstat` has is of its first thread only.
    """
    with contextlib.suppress(OSError):
        return time.clock_gettime_ns(~pid << 3 | 2)  # as clock_getcpuclockid makes it
    return None


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()  # a process may have any name
    return None


def _cpuinfo(key: str) -> str:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _cpu_model() -> str | None:
    return _cpuinfo("model name") or None


def _cpu_flags() -> list[str]:
    return _cpuinfo("flags").split()


def _memory_gib() -> float:
    return round(psutil.virtual_memory().total / 1024**3, 1)


@dataclass(frozen=True)
class Usage:
    """One reading of what the machine has done since boot, CPU time in ticks of 10 ms or so.

    kernel: CPU time of the kernel's own threads, which write pages back and serve the disks.
    """

    busy: int
    idle: int
    steal: int
    total: int
    kernel: int
    swapped_pages: int
    throttled: int
    monotonic_s: float
    wall_s: float


def usage() -> Usage:
    """Read the machine's counters; what the kernel does not tell counts as 0."""
    # not psutil: its seconds are ticks by a float, and differences of ticks are to be exact
    fields = [int(f) for f in (_read(Path("/proc/stat")) or "cpu 0").splitlines()[0].split()[1:]]
    user, nice, system, idle, iowait, _, _, steal = (fields + [0] * 8)[:8]
    return Usage(
        busy=user + nice + system,
        idle=idle + iowait,
        steal=steal,
        total=sum(fields[:8]),
        kernel=sum(each.own for each in processes().values() if each.parent == _KTHREADD),
        swapped_pages=_swapped_pages(),
        throttled=_throttled(),
        monotonic_s=time.monotonic(),
        wall_s=time.time(),
    )


def tree_ticks(pid: int) -> int:
    """CPU time in ticks of a process, of its children, and of those it has outlived."""
    found = processes()
    if pid not in found:
        return 0
    mine = found[pid]
    children = sum(each.own for each in found.values() if each.parent == pid)
    return mine.own + mine.outlived + children


def tick_s() -> float:
    """The length of a tick in s."""
    return 1.0 / os.sysconf("SC_CLK_TCK")


def maps(pid: int, name: str) -> bool:
    """Whether a process has a file of this name in its memory."""
    # not psutil, which reads smaps: of a server with large shared buffers that takes long
    return f"/{name}" in (_read(Path(f"/proc/{pid}/maps")) or "")


_KTHREADD = 2


class ProcessTimes(NamedTuple):
    """A process. session: of processes; own: CPU ticks; outlived: those of children it outlived.

    has_outlived: whether there were any. Ticks are whole ones of each of two counters.
    """

    parent: int
    session: int
    own: int
    outlived: int
    has_outlived: bool


def processes() -> dict[int, ProcessTimes]:
    """All processes of this machine, by their number.

    One file of each is read, where psutil would read several; this is done within a measurement.
    """
    found = {}
    for pid in psutil.pids():
        if text := _read(Path(f"/proc/{pid}/stat")):
            # the name in parentheses may hold blanks and parentheses
            fields = text[text.rindex(")") + 2 :].split()
            own = int(fields[11]) + int(fields[12])
            outlived = int(fields[13]) + int(fields[14])
            has_outlived = int(fields[8]) > 0  # page faults of children
            found[pid] = ProcessTimes(int(fields[1]), int(fields[3]), own, outlived, has_outlived)
    return found


def _swapped_pages() -> int:
    lines = (_read(Path("/proc/vmstat")) or "").splitlines()
    return sum(int(n.split()[1]) for n in lines if n.startswith(("pswpin ", "pswpout ")))


def _throttled() -> int:
    """How often the processor was too hot, or our group of processes out of its share of it."""
    hot = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    counts = [int(text) for path in hot if (text := _read(path)) and text.isdigit()]
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        group = line.split(":", 2)
        if len(group) == 3 and group[0] == "0":
            statistics = _read(Path("/sys/fs/cgroup") / group[2].lstrip("/") / "cpu.stat") or ""
            counts += [
                int(n.split()[1]) for n in statistics.splitlines() if n.startswith("nr_throttled")
            ]
    return sum(counts)
