"""What the machine under a measurement is: processor, clock, load, and time stolen by others."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
        "clocksource": _read(_CLOCKSOURCE),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def steal_ticks() -> tuple[int, int] | None:
    """CPU time since boot that other guests took, and all CPU time, in clock ticks."""
    text = _read(Path("/proc/stat"))
    if text is None:
        return None
    fields = [int(f) for f in text.splitlines()[0].split()[1:]]
    return (fields[7] if len(fields) > 7 else 0), sum(fields[:8])


def steal_pct(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Share of CPU time taken by other guests between two readings of `steal_ticks`, in %."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return 100.0 * (after[0] - before[0]) / (after[1] - before[1])


def run_delay_ns(pids: Iterable[int]) -> tuple[int, int]:
    """Time on a processor, and time ready but waiting for one, of these processes, in ns.

    From the scheduler's own statistics; processes that have gone, or that we may not see, count
    as zero.
    """
    running = waiting = 0
    for pid in pids:
        fields = (_read(Path(f"/proc/{pid}/schedstat")) or "0 0 0").split()
        running += int(fields[0])
        waiting += int(fields[1])
    return running, waiting


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
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


def _memory_gib() -> float | None:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / 1024**2, 1)
    return None
