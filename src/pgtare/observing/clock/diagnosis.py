"""What the set-up is, whether its clock is cheap and sane, and what to do if it is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtare.kit import numbers
from pgtare.observing.clock.cpuid import Leaves
from pgtare.observing.clock.schema import (
    Choice,
    ClockResult,
    Cores,
    Diagnosis,
    Frequency,
    Trust,
    Verdict,
)

_CLOCKSOURCES = Path("/sys/devices/system/clocksource/clocksource0")
#: Clock sources that are the processor's counter itself, on x86 and on aarch64.
_COUNTERS = ("tsc", "arch_sys_counter")
#: A reading that costs more shows in EXPLAIN ANALYZE and in track_io_timing.
SLOW_NS = 100.0
#: Bounds this wide say nothing of clocks that are in step.
VAGUE_NS = 10_000
#: A call by the vDSO costs less than this share of the same by system call.
_VDSO_SHARE = 0.6

_USE_TSC = "`echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource` as root"
_REMEDIES = {
    "xen": "The clock source xen makes every reading a system call: if tsc is available, "
    f"{_USE_TSC}, and clocksource=tsc on the kernel's command line keeps it (AWS advises the same "
    "for Xen instances).",
    "hpet": "The clock source hpet reads a slow device at every call: the kernel found the TSC "
    "unstable (see `dmesg | grep -i tsc`); update firmware or hypervisor, and if the counter "
    "is sound boot with tsc=reliable clocksource=tsc.",
    "acpi_pm": "The clock source acpi_pm reads a device port at about 1 µs a call: the kernel "
    "found the TSC unusable (see `dmesg | grep -i tsc`); give the virtual machine an invariant "
    "TSC, and if the counter is sound boot with tsc=reliable clocksource=tsc.",
    "kvm-clock": "The clock source kvm-clock is read by system call here, because the host's own "
    "clock is not the TSC: make the host use tsc, or give the guest an invariant TSC (QEMU: -cpu "
    f"host,+invtsc) and then {_USE_TSC}.",
    "jiffies": "The clock source jiffies moves with the kernel's tick only: no device that counts "
    "was found; give the machine a TSC, or boot without clocksource=jiffies.",
    "hyperv_clocksource_msr": "This Hyper-V clock source traps into the hypervisor at every "
    "reading: a newer host offers the TSC page, which needs no trap.",
}
_REMEDIES["refined-jiffies"] = _REMEDIES["jiffies"]
_NO_VDSO = (
    "CLOCK_MONOTONIC is read by system call: the clock source {source} has no vDSO reading here; "
    "if tsc is available, " + _USE_TSC + "."
)

_VDSO_OFF = (
    "The clock source is tsc, yet CLOCK_MONOTONIC is read by system call: the vDSO is off (vdso=0 "
    "on the kernel's command line) or a sandbox such as gVisor is in between: switch it on, or "
    "leave the sandbox."
)


@dataclass(frozen=True)
class Setup:
    """What kernel and processor say; clock sources None or empty if they cannot be read.

    counter: it runs at a constant rate. trust: whether the server modules take it as a clock.
    """

    clocksource: str | None
    available: tuple[str, ...]
    leaves: Leaves
    counter: bool
    architecture: str
    trust: Trust

    @property
    def system_apart(self) -> bool:
        """Whether counters in step say nothing of CLOCK_MONOTONIC, which is another clock then."""
        return self.counter and self.clocksource not in _COUNTERS


def clocksources(folder: Path = _CLOCKSOURCES) -> tuple[str | None, tuple[str, ...]]:
    """The kernel's clock source, and those it could use."""
    try:
        current = (folder / "current_clocksource").read_text().strip()
        return current, tuple((folder / "available_clocksource").read_text().split())
    except OSError:
        return None, ()


def vdso(clocks: Iterable[ClockResult]) -> bool | None:
    """Whether CLOCK_MONOTONIC is read without a system call; None if that was not measured."""
    cost = {clock.name: clock.read_ns for clock in clocks}
    if "monotonic" not in cost or "monotonic_syscall" not in cost:
        return None
    return cost["monotonic"] < _VDSO_SHARE * cost["monotonic_syscall"]


def postgres19(setup: Setup, calibrated_hz: int | None) -> Choice:
    """The default of PostgreSQL 19: TSC_ADJUST, else the kernel's choice of tsc, else system."""
    leaves = setup.leaves
    if not leaves.there:
        why = f"without CPUID ({setup.architecture}) it cannot tell that the counter is sound"
        return Choice(clock="system", why=why, usable=False)
    # under a hypervisor it reads that one's own leaf only
    stated = [leaves.hypervisor_hz] if leaves.hypervisor else [leaves.crystal_hz, leaves.nominal_hz]
    known = any(hz is not None for hz in (*stated, calibrated_hz))
    lacks = [
        text
        for there, text in (
            (leaves.invariant, "the TSC is not invariant"),
            (leaves.has_rdtscp, "there is no RDTSCP"),
            (known, "the TSC's frequency is not known"),
        )
        if not there
    ]
    if lacks:
        return Choice(clock="system", why=" and ".join(lacks), usable=False)
    if leaves.tsc_adjust:
        return Choice(clock="tsc", why="CPUID says TSC_ADJUST", usable=True)
    if setup.clocksource == "tsc":
        return Choice(clock="tsc", why="the kernel's clock source is tsc", usable=True)
    why = f"CPUID lacks TSC_ADJUST and the kernel's clock source is {setup.clocksource}"
    return Choice(clock="system", why=why, usable=True)


def diagnose(
    setup: Setup,
    clocks: Sequence[ClockResult],
    frequency: Frequency | None,
    cores: Cores | None,
    system_cores: Cores | None = None,
) -> Diagnosis:
    """The verdict: faulty before slow, slow before good.

    system_cores: processors by CLOCK_MONOTONIC, if `cores` has their counters and that is apart.
    """
    by_vdso = vdso(clocks)
    choice = postgres19(setup, frequency.hz if frequency else None)
    compared = [cores, system_cores] if setup.system_apart else [cores]
    faults = [
        *_faults(clocks),
        *_step(frequency),
        *(fault for one in compared for fault in _apart(one)),
    ]
    slow = _slow(clocks)
    remedies: list[str] = []
    if faults:
        verdict: Verdict = "faulty"
        sentence = f"The clock cannot be trusted: {_few(faults)}."
        remedies.append(_mend(clocks, compared))
    elif slow is not None:
        verdict, sentence = "slow", slow
    else:
        verdict, sentence = "good", _good(clocks, choice) + _unchecked(compared)
    if by_vdso is False or slow is not None:
        remedies += _remedies(setup, by_vdso)
    return Diagnosis(
        verdict=verdict,
        sentence=sentence,
        remedies=remedies,
        clocksource=setup.clocksource,
        available=list(setup.available),
        vdso=by_vdso,
        cpuid=setup.leaves.there,
        invariant=setup.leaves.invariant,
        tsc_adjust=setup.leaves.tsc_adjust,
        hypervisor=setup.leaves.hypervisor,
        postgres19=choice,
        modules=setup.trust,
    )


def _few(faults: Sequence[str]) -> str:
    """The first faults, and how many more there are: many processors can have many."""
    more = len(faults) - _NAMED
    return "; ".join(
        [*faults[:_NAMED], *([f"and {numbers.counted(more, 'more fault')}"] if more > 0 else [])]
    )


_NAMED = 4


def _mend(clocks: Iterable[ClockResult], compared: Iterable[Cores | None]) -> str:
    """What to do about a fault; if the kernel's own clock has it, no setting helps."""
    kernels = [c for c in clocks if c.source != "processor"]
    if _faults(kernels) or any(_apart(one) for one in compared if one and one.clock == "monotonic"):
        return (
            "No setting of PostgreSQL avoids this: the kernel's own clock is at fault; choose "
            "another clock source, or update kernel and hypervisor."
        )
    return (
        "Keep PostgreSQL off the processor's counter (timing_clock_source = system on 19, "
        "wait_event_timing.clock = monotonic), and update firmware or hypervisor."
    )


def _faults(clocks: Iterable[ClockResult]) -> list[str]:
    found = []
    for clock in clocks:
        if clock.backward:
            times = "once" if clock.backward == 1 else f"{clock.backward:,} times"
            largest = -clock.backward_largest_ns
            found.append(f"{clock.name} stepped back {times}, by {largest:,.1f} ns at most")
        # a thread's CPU time rightly does not move while another thread runs
        if clock.name != "thread_cpu" and _astray(clock):
            found.append(f"{clock.name} advanced {clock.advanced_pct:.1f} % of the time")
    return found


def _astray(clock: ClockResult) -> bool:
    """Whether the clock went at another rate, beyond what a coarse one is behind by nature."""
    off = abs(clock.advanced_pct - 100) / 100
    behind_s = _COARSE_S if "coarse" in clock.name else 0.0
    return off > _ADVANCED and off * clock.duration_s > behind_s


_ADVANCED = 0.10
#: The tick is 1 to 10 ms, and may be late if a hypervisor holds it up.
_COARSE_S = 0.05


def _step(frequency: Frequency | None) -> list[str]:
    if frequency is None or not frequency.step_ns:
        return []
    way = "back" if frequency.step_ns < 0 else "ahead"
    length = numbers.duration(abs(frequency.step_ns) / 1000)
    return [f"the counter stepped {way} by {length} against CLOCK_MONOTONIC"]


def _apart(cores: Cores | None) -> list[str]:
    """Pairs of processors whose clocks are apart for certain."""
    return [
        f"processor {p.second} is {'ahead of' if p.lo_ns > 0 else 'behind'} processor {p.first} "
        f"by {min(abs(p.lo_ns), abs(p.hi_ns)):,.0f} ns at least"
        + (" (CLOCK_MONOTONIC)" if cores and cores.clock == "monotonic" else "")
        for p in (cores.pairs if cores else ())
        if p.lo_ns > 0 or p.hi_ns < 0
    ]


def _slow(clocks: Iterable[ClockResult]) -> str | None:
    for clock in clocks:
        if clock.name == "monotonic" and clock.read_ns > SLOW_NS:
            return (
                f"The clock is slow: PostgreSQL up to 18 pays {clock.read_ns:,.0f} ns for each "
                f"reading ({clock.title})."
            )
    return None


def _good(clocks: Sequence[ClockResult], choice: Choice) -> str:
    cost = {clock.name: clock.read_ns for clock in clocks}
    costs = [
        f"{cost[name]:.1f} ns ({what})"
        for name, what in (
            ("monotonic", "PostgreSQL up to 18"),
            ("tsc", "RDTSC"),
            ("counter", "counter"),
        )
        if name in cost and (name == "monotonic" or choice.clock == "tsc" or name == "counter")
    ]
    readings = f"a reading costs {' and '.join(costs)}" if costs else "no step back"
    return f"The clock is cheap and sane: {readings}."


def _unchecked(compared: Iterable[Cores | None]) -> str:
    """What was not looked at although the verdict is good; the same of two clocks is said once."""
    lacks = dict.fromkeys(lack for cores in compared for lack in _lacks(cores))
    return f" Not checked: {'; '.join(lacks)}." if lacks else ""


def _lacks(cores: Cores | None) -> list[str]:
    whether = "whether the processors' clocks agree"
    if cores is None:
        return [f"{whether}, as the measurement ended before"]
    if not cores.pairs:
        return [f"{whether} ({cores.note})"]
    left = cores.possible - len(cores.pairs)
    vague = sum(pair.hi_ns - pair.lo_ns > VAGUE_NS for pair in cores.pairs)
    some = numbers.counted(vague, "pair")
    agree = "agrees" if vague == 1 else "agree"
    return [
        *([f"whether {left:,} of {cores.possible:,} pairs of processors agree"] if left else ()),
        *([f"whether {some} of processors {agree} closely, as they were busy"] if vague else ()),
    ]


def _remedies(setup: Setup, by_vdso: bool | None) -> list[str]:
    known = _REMEDIES.get(setup.clocksource or "")
    if known is not None:
        return [known]
    if by_vdso is False and setup.clocksource == "tsc":
        return [_VDSO_OFF]
    if by_vdso is False:
        return [_NO_VDSO.format(source=setup.clocksource or "(unknown)")]
    return ["The machine was busy, or its processor is slow: repeat the measurement when idle."]
