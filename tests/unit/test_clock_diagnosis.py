"""What is made of CPUID and of costs: verdicts on set-ups that this machine does not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.observing.clock import cores, show
from pgtare.observing.clock.consequences import meaning
from pgtare.observing.clock.cpuid import Leaves, read
from pgtare.observing.clock.diagnosis import clocksources, diagnose, postgres19
from pgtare.observing.clock.schema import Cores, Diagnosis
from tests.unit.sample_clock_report import GOOD_LEAVES, sample, sample_clock, sample_setup

HZ = 2_500_000_000
Registers = tuple[int, int, int, int]


def table(leaves: dict[int, Registers]) -> Callable[[int, int], Registers | None]:
    return lambda leaf, subleaf: leaves.get(leaf)


def test_leaves_of_bare_metal() -> None:
    found = read(
        table(
            {
                1: (0, 0, 0, 0),
                7: (0, 2, 0, 0),
                0x15: (2, 200, 25_000_000, 0),
                0x16: (2500, 0, 0, 0),
                0x80000001: (0, 0, 0, 1 << 27),
                0x80000007: (0, 0, 0, 1 << 8),
            }
        )
    )
    assert found == Leaves(
        there=True, invariant=True, tsc_adjust=True, has_rdtscp=True, crystal_hz=HZ, nominal_hz=HZ
    )


def test_leaf_0x15_without_a_crystal_says_nothing() -> None:
    assert read(table({1: (0, 0, 0, 0), 0x15: (2, 200, 0, 0)})).crystal_hz is None


@pytest.mark.parametrize(
    ("name", "highest", "hypervisor", "hz"),
    [
        (b"KVMKVMKVM\0\0\0", 0x40000010, "KVM", HZ),
        (b"KVMKVMKVM\0\0\0", 0x40000001, "KVM", None),  # beyond the highest leaf anything may be
        (b"Microsoft Hv", 0x40000000, "Hyper-V", None),
        (b"\0" * 12, 0, "unknown hypervisor", None),
    ],
)
def test_leaves_under_a_hypervisor(
    name: bytes, highest: int, hypervisor: str, hz: int | None
) -> None:
    words = [int.from_bytes(name[i : i + 4], "little") for i in (0, 4, 8)]
    found = read(
        table(
            {
                1: (0, 0, 1 << 31, 0),
                0x40000000: (highest, words[0], words[1], words[2]),
                0x40000010: (HZ // 1000, 0, 0, 0),
            }
        )
    )
    assert (found.hypervisor, found.hypervisor_hz) == (hypervisor, hz)


def test_without_cpuid_the_choice_is_reported_in_a_sentence() -> None:
    leaves = read(table({}))
    assert leaves == Leaves(there=False)
    choice = postgres19(sample_setup(leaves, architecture="aarch64"), None)
    assert (choice.clock, choice.usable) == ("system", False)
    assert choice.why == "without CPUID (aarch64) it cannot tell that the counter is sound"


@pytest.mark.parametrize(
    ("leaves", "clocksource", "clock", "why"),
    [
        (GOOD_LEAVES, "hpet", "tsc", "TSC_ADJUST"),
        (Leaves(True, True, False, True), "tsc", "tsc", "kernel's clock source is tsc"),
        (Leaves(True, True, False, True), "kvm-clock", "system", "lacks TSC_ADJUST"),
        (Leaves(True, False, True, True), "tsc", "system", "not invariant"),
        (Leaves(True, True, True, False), "tsc", "system", "no RDTSCP"),
    ],
)
def test_the_default_of_19_and_why(leaves: Leaves, clocksource: str, clock: str, why: str) -> None:
    found = postgres19(sample_setup(leaves, clocksource), HZ)
    assert found.clock == clock
    assert why in found.why


@pytest.mark.parametrize(
    ("clocksource", "remedy"),
    [
        ("xen", "clocksource=tsc on the kernel's command line"),
        ("hpet", "tsc=reliable"),
        ("acpi_pm", "invariant TSC"),
        ("kvm-clock", "+invtsc"),
        ("jiffies", "boot without clocksource=jiffies"),
        ("odd", "the clock source odd has no vDSO"),
        ("tsc", "vdso=0"),
    ],
)
def test_a_slow_set_up_has_a_remedy(clocksource: str, remedy: str) -> None:
    clocks = [sample_clock("monotonic", 700.0), sample_clock("monotonic_syscall", 750.0)]
    found = diagnose(sample_setup(clocksource=clocksource), clocks, None, None)
    assert (found.verdict, found.vdso) == ("slow", False)
    assert "700 ns" in found.sentence
    (advice,) = found.remedies
    assert remedy in advice


def test_a_step_back_a_standstill_and_an_offset_are_faults() -> None:
    back, still = sample_clock(), sample_clock("tscp")
    back.backward, back.backward_largest_ns = 3, -1_000_000.0
    still.advanced_pct = 40.0
    apart = sample().cores
    assert apart is not None
    apart.pairs[0].lo_ns, apart.pairs[0].hi_ns = -900.0, -700.0
    found = diagnose(sample_setup(), [back, still], None, apart)
    assert found.verdict == "faulty"
    assert found.sentence == (
        "The clock cannot be trusted: tsc stepped back 3 times, by 1,000,000.0 ns at most; tscp "
        "advanced 40.0 % of the time; processor 1 is behind processor 0 by 700 ns at least."
    )
    (remedy,) = found.remedies
    assert "wait_event_timing.clock = monotonic" in remedy


def test_where_the_kernels_clock_is_at_fault_no_setting_is_advised() -> None:
    clock = sample_clock("monotonic", 20.0)
    clock.source, clock.backward, clock.backward_largest_ns = "vDSO", 1, -5.0
    (remedy,) = diagnose(sample_setup(), [clock], None, None).remedies
    assert "No setting of PostgreSQL avoids this" in remedy


def test_an_ordinary_clock_is_good_without_a_remedy() -> None:
    clocks = [
        sample_clock("monotonic", 20.0),
        sample_clock("monotonic_syscall", 150.0),
        sample_clock("tsc", 8.0),
    ]
    report = sample()
    found = diagnose(sample_setup(), clocks, report.frequency, report.cores)
    assert (found.verdict, found.vdso, found.remedies) == ("good", True, [])
    assert "20.0 ns (PostgreSQL up to 18) and 8.0 ns (RDTSC)" in found.sentence
    assert "Not checked" not in found.sentence


def test_a_good_verdict_says_what_was_not_checked() -> None:
    report = sample()
    assert report.cores is not None

    def verdict(found: Cores | None) -> str:
        return diagnose(sample_setup(), report.clocks, report.frequency, found).sentence

    alone = cores.compare(False, 1, cpus=[0])
    assert " Not checked: whether the processors' clocks agree (only processor" in verdict(alone)
    assert "as the measurement ended before." in verdict(None)
    (pair,) = report.cores.pairs
    failed = report.cores.model_copy(update={"possible": 3})
    assert verdict(failed).endswith(" Not checked: whether 2 of 3 pairs of processors agree.")
    busy = pair.model_copy(update={"hi_ns": 20_000.0, "rounds": 1})
    vague = report.cores.model_copy(update={"pairs": [busy]})
    assert verdict(vague).endswith(
        " Not checked: whether 1 pair of processors agrees closely, as they were busy."
    )
    assert "no step back in 1 round;" in next(show.cores(vague))


def test_clock_monotonic_is_judged_by_itself_where_it_is_another_clock() -> None:
    report = sample()
    assert report.cores is not None
    system = report.cores.model_copy(deep=True, update={"clock": "monotonic"})

    def found(system: Cores | None, clocksource: str = "kvm-clock") -> Diagnosis:
        setup = sample_setup(clocksource=clocksource)
        return diagnose(setup, report.clocks, report.frequency, report.cores, system)

    assert "Not checked" not in found(system).sentence
    assert "Not checked: whether the processors' clocks agree" in found(None).sentence
    assert "Not checked" not in found(None, "tsc").sentence
    system.pairs[0].lo_ns, system.pairs[0].hi_ns = 700.0, 900.0
    apart = found(system)
    assert "is ahead of processor 0 by 700 ns at least (CLOCK_MONOTONIC)" in apart.sentence
    assert "No setting of PostgreSQL avoids this" in apart.remedies[0]


def test_clock_sources_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    assert clocksources(tmp_path) == (None, ())
    (tmp_path / "current_clocksource").write_text("tsc\n")
    (tmp_path / "available_clocksource").write_text("tsc hpet \n")
    assert clocksources(tmp_path) == ("tsc", ("tsc", "hpet"))


def test_the_meaning_is_what_is_predicted_of_the_clock_that_the_version_takes() -> None:
    clocks = [sample_clock("monotonic", 20.0), sample_clock("tsc", 8.0), sample_clock("tscp", 13.0)]
    found = {
        (m.what.split(",")[0].split(" (")[0], m.server): (m.clock, m.cost_ns)
        for m in meaning(clocks, postgres19(sample_setup(), HZ))
    }
    bounds = {
        key: (clock, pytest.approx((cost.lo, cost.likely, cost.hi)))
        for key, (clock, cost) in found.items()
    }
    assert bounds == {
        ("EXPLAIN", "15-18"): ("monotonic", (39, 46, 58)),
        ("track_io_timing", "15-17"): ("monotonic", (40, 50, 60)),
        ("track_io_timing", "18"): ("monotonic", (40, 90, 100)),
        ("wait_event_timing", "15-18"): ("tsc", (22.5, 23.2, 24.5)),
        ("EXPLAIN", "19"): ("tsc", (15, 20.8, 28.4)),
        ("track_io_timing", "19"): ("tscp", (26, 62, 72)),
    }
