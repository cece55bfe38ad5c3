"""The clocks that can be read, and which of them this machine has."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Literal

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


def of_machine(leaves: Leaves, machine: str = platform.machine()) -> tuple[Clock, ...]:
    """The clocks that a machine has."""
    return tuple(
        clock
        for clock in CLOCKS
        if clock.architecture in (None, machine) and (clock.name != "tscp" or leaves.has_rdtscp)
    )
