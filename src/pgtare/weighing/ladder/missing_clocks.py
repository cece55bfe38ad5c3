"""Clocks that this machine cannot offer, and so the variants that are left out of a study.

Asked of the machine, before anything is planned: a server would refuse the setting, or, worse, read
another clock under its name.
"""

from __future__ import annotations

from pgtare.kit import machine
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Variant

#: Settings that name a clock.
SETTINGS = ("sql_trace.clock", "wait_event_timing.clock")
#: Clock sources that the kernel does not read without a system call.
_SLOW_SOURCES = ("acpi_pm", "hpet", "jiffies", "refined-jiffies", "xen")


def left_out(study: Study) -> dict[str, str]:
    """Variants that name a clock that this machine does not have, with the reason."""
    found = {v.name: _why(v) for v in study.variant}
    return {name: why for name, why in found.items() if why}


def _why(variant: Variant) -> str:
    named = {**variant.settings, **variant.runtime}
    for setting in SETTINGS:
        if why := lacking(str(named.get(setting, "")), machine.describe()["architecture"]):
            return why
    return ""


def lacking(clock: str, architecture: str) -> str:
    """Why a clock is not available on this machine; empty if it is."""
    source = machine.clock_source() or ""
    if clock == "monotonic" and source in _SLOW_SOURCES:
        return f"clock monotonic is no vDSO reading: the kernel's clock source is {source}"
    if architecture not in ("x86_64", "AMD64"):
        return "clock tscp is the same as tsc on this processor" if clock == "tscp" else ""
    if clock in ("tsc", "tscp") and not machine.has_cpu_flag("nonstop_tsc"):
        return "the processor's counter does not run at a constant rate here (no nonstop_tsc)"
    if clock == "tscp" and not machine.has_cpu_flag("rdtscp"):
        return "the processor lacks RDTSCP"
    return ""
