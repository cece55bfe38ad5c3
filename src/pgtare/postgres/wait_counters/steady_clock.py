"""A clock of this machine that nobody sets, and which run of the machine it belongs to."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

# where there is one, it goes on while the machine is suspended: servers count on meanwhile
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """The time since this machine started."""
    return time.clock_gettime_ns(_CLOCK)


def boot() -> str | None:
    """Which start of this machine that is; None if the system does not say."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None
