"""The clocks that can be read, which of them this machine has, and why it lacks the others."""

from __future__ import annotations

import difflib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pgtare.errors import UsageError
from pgtare.observing.clock.cpuid import Leaves

Source = Literal["vDSO or system call", "system call", "processor"]


@dataclass(frozen=True)
class Clock:
    """A clock: `number` is the probe's (server/clock/probe.h), `counter` that it gives ticks."""

    name: str
    number: int
    title: str
    source: Source
    counter: bool = False
    architecture: str | None = None


_X86, _ARM = "x86_64", "aarch64"

CLOCKS = (
    Clock("monotonic", 0, "clock_gettime (CLOCK_MONOTONIC)", "vDSO or system call"),
    Clock("monotonic_raw", 1, "clock_gettime (CLOCK_MONOTONIC_RAW)", "vDSO or system call"),
    Clock("monotonic_coarse", 2, "clock_gettime (CLOCK_MONOTONIC_COARSE)", "vDSO or system call"),
    Clock("monotonic_syscall", 3, "CLOCK_MONOTONIC by system call", "system call"),
    Clock("monotonic_raw_syscall", 4, "CLOCK_MONOTONIC_RAW by system call", "system call"),
    Clock("monotonic_coarse_syscall", 5, "CLOCK_MONOTONIC_COARSE by system call", "system call"),
    Clock("tsc", 6, "RDTSC", "processor", True, _X86),
    Clock("tscp", 7, "RDTSCP", "processor", True, _X86),
    Clock("lfence_tsc", 8, "LFENCE; RDTSC", "processor", True, _X86),
    Clock("counter", 6, "CNTVCT_EL0", "processor", True, _ARM),
    Clock("counter_ordered", 8, "ISB; CNTVCT_EL0", "processor", True, _ARM),
    Clock("thread_cpu", 9, "clock_gettime (CLOCK_THREAD_CPUTIME_ID)", "system call"),
)
BY_NAME = {clock.name: clock for clock in CLOCKS}


def choose(
    names: Sequence[str], leaves: Leaves, machine: str = platform.machine()
) -> tuple[Clock, ...]:
    """The clocks of these names, or all that the machine has if none is named.

    Raises UsageError for a name that no clock has, or no clock of this machine.
    """
    for name in names:
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, BY_NAME, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(f"there is no clock {name!r}{hint}; clocks: {', '.join(BY_NAME)}")
    asked = [BY_NAME[name] for name in dict.fromkeys(names)] or list(CLOCKS)
    reasons = {clock.name: _why_not(clock, leaves, machine) for clock in asked}
    lacking = [f"{name}: {why}" for name, why in reasons.items() if why is not None]
    if names and lacking:
        raise UsageError("; ".join(lacking))
    return tuple(clock for clock in asked if reasons[clock.name] is None)


def _why_not(clock: Clock, leaves: Leaves, machine: str) -> str | None:
    if clock.architecture is not None and clock.architecture != machine:
        return f"{clock.title} is an instruction of {clock.architecture}, this is {machine}"
    if clock.name == "tscp" and not leaves.has_rdtscp:
        return "this processor has no RDTSCP"
    return None
