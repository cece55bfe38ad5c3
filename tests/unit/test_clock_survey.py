"""What is made of CPUID, the kernel's files and costs: set-ups that this machine does not have."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pgtare.errors import MeasurementError
from pgtare.seeing.clock import cores, frequency, gaps, probe, show
from pgtare.seeing.clock.clocks import BY_NAME
from pgtare.seeing.clock.consequences import meaning, span
from pgtare.seeing.clock.cpuid import Leaves, read
from pgtare.seeing.clock.diagnosis import Setup, clocksources, diagnose, postgres19
from pgtare.seeing.clock.distribution import NS, Distribution, cost_of
from pgtare.seeing.clock.predict import Clock, call_cost, io_cost, wait_cost
from pgtare.seeing.clock.probe import Pair
from pgtare.seeing.clock.schema import Gaps
from pgtare.seeing.clock.survey import Request, advanced_pct, survey, weigh
from tests.unit.sample_clock_report import even, needs_tsc, sample, sample_clock

HZ = 2_500_000_000
GOOD = Leaves(there=True, invariant=True, tsc_adjust=True, has_rdtscp=True)
Registers = tuple[int, int, int, int]


def table(leaves: dict[int, Registers]) -> Callable[[int, int], Registers | None]:
    return lambda leaf, subleaf: leaves.get(leaf)


def setup(
    leaves: Leaves = GOOD, clocksource: str | None = "tsc", architecture: str = "x86_64"
) -> Setup:
    return Setup(clocksource, ("tsc",), leaves, leaves.invariant, architecture)


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
        (b"KVMKVMKVM\0\0\0", 0x40000001, "KVM", None),  # beyond the highest leaf stands anything
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


def test_without_cpuid_everything_is_told_in_a_sentence() -> None:
    leaves = read(table({}))
    assert leaves == Leaves(there=False)
    choice = postgres19(setup(leaves, architecture="aarch64"), None)
    assert (choice.clock, choice.usable) == ("system", False)
    assert choice.why == "without CPUID (aarch64) it cannot tell that the counter is sound"
    first, last = Pair(0, 0, 60), Pair(HZ, NS, 60)
    found = frequency.frequency(first, last, [], leaves, bare_metal=True)
    assert any("no CPUID" in stated.note for stated in found.stated)
    assert found.hz == HZ


@pytest.mark.parametrize(
    ("leaves", "clocksource", "clock", "why"),
    [
        (GOOD, "hpet", "tsc", "TSC_ADJUST"),
        (Leaves(True, True, False, True), "tsc", "tsc", "kernel's clock source is tsc"),
        (Leaves(True, True, False, True), "kvm-clock", "system", "lacks TSC_ADJUST"),
        (Leaves(True, False, True, True), "tsc", "system", "not invariant"),
        (Leaves(True, True, True, False), "tsc", "system", "no RDTSCP"),
    ],
)
def test_the_default_of_19_and_why(leaves: Leaves, clocksource: str, clock: str, why: str) -> None:
    found = postgres19(setup(leaves, clocksource), HZ)
    assert found.clock == clock
    assert why in found.why


@pytest.mark.parametrize(
    ("leaves", "source", "hz"),
    [
        (Leaves(True, crystal_hz=1, nominal_hz=2), "x86, cpuid 0x15", 1),
        (Leaves(True, nominal_hz=2), "x86, cpuid 0x16", 2),
        (Leaves(True), "x86, calibration", 9),
        (Leaves(True, hypervisor="KVM", hypervisor_hz=3), "x86, hypervisor, cpuid 0x40000010", 3),
        (Leaves(True, hypervisor="KVM", crystal_hz=1), "x86, hypervisor, calibration", 9),
    ],
)
def test_where_19_takes_the_frequency_from(leaves: Leaves, source: str, hz: int) -> None:
    found = postgres19(setup(leaves), 9)
    assert (found.frequency_source, found.frequency_hz) == (source, hz)


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
    found = diagnose(setup(clocksource=clocksource), clocks, None, None)
    assert (found.verdict, found.vdso) == ("slow", False)
    assert "700 ns" in found.sentence
    (told,) = found.remedies
    assert remedy in told


def test_a_step_back_a_standstill_and_an_offset_are_faults() -> None:
    back, still = sample_clock(), sample_clock("tscp")
    back.backward, back.backward_largest_ns = 3, -1_000_000.0
    still.advanced_pct = 40.0
    apart = sample().cores
    assert apart is not None
    apart.pairs[0].lower_ns, apart.pairs[0].upper_ns = -900.0, -700.0
    found = diagnose(setup(), [back, still], None, apart)
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
    (remedy,) = diagnose(setup(), [clock], None, None).remedies
    assert "No setting of PostgreSQL avoids this" in remedy


def test_an_ordinary_clock_is_good_without_a_remedy() -> None:
    clocks = [
        sample_clock("monotonic", 20.0),
        sample_clock("monotonic_syscall", 150.0),
        sample_clock("tsc", 8.0),
    ]
    report = sample()
    found = diagnose(setup(), clocks, report.frequency, report.cores)
    assert (found.verdict, found.vdso, found.remedies) == ("good", True, [])
    assert "20.0 ns (PostgreSQL up to 18) and 8.0 ns (RDTSC)" in found.sentence


def test_clock_sources_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    assert clocksources(tmp_path) == (None, ())
    (tmp_path / "current_clocksource").write_text("tsc\n")
    (tmp_path / "available_clocksource").write_text("tsc hpet \n")
    assert clocksources(tmp_path) == ("tsc", ("tsc", "hpet"))


def test_the_meaning_is_what_is_predicted_of_the_clock_that_the_version_takes() -> None:
    clocks = [sample_clock("monotonic", 20.0), sample_clock("tsc", 8.0), sample_clock("tscp", 13.0)]
    found = {
        (m.what.split(",")[0].split(" (")[0], m.server): (m.clock, m.ns, m.cost_ns)
        for m in meaning(clocks, postgres19(setup(), HZ))
    }
    system, tsc, tscp = Clock(20), Clock(8), Clock(13)
    row = span(call_cost(system, 18)).model_copy(update={"high": call_cost(system, 15).high})
    assert found == {
        ("EXPLAIN", "15-18"): ("monotonic", 40.0, row),
        ("track_io_timing", "15-17"): ("monotonic", 40.0, span(io_cost(system, 17).io_ns)),
        ("track_io_timing", "18"): ("monotonic", 80.0, span(io_cost(system, 18).io_ns)),
        ("wait_event_timing", "15-18"): ("tsc", 16.0, span(wait_cost(tsc)["stats"])),
        ("EXPLAIN", "19"): ("tsc", 16.0, span(call_cost(tsc, 19))),
        ("track_io_timing", "19"): ("tscp", 52.0, span(io_cost(tscp, 19).io_ns)),
    }
    for _, ns, cost in found.values():
        assert cost is not None
        assert ns < cost.likely < cost.high


def test_a_frequency_has_the_bound_that_its_brackets_give() -> None:
    # brackets of 50 ticks at both ends and a whole ns: 50 + 2.5 ticks in 5 million
    first, last = Pair(0, 0, 50), Pair(5_000_000, 2_000_000, 50)
    assert frequency.between(first, last) == HZ
    assert frequency.bound_ppm(first, last) == pytest.approx(10.5)
    # a clock that moves by 4 ms at a time can be 10 million ticks off
    assert frequency.bound_ppm(first, last, 4_000_000) == pytest.approx(2_000_010)


def test_a_frequency_that_is_stated_is_trusted_only_near_the_calibration() -> None:
    first, last = Pair(0, 0, 50), Pair(HZ, NS, 50)
    near = Leaves(True, crystal_hz=HZ + 25_000)
    found = frequency.frequency(first, last, [HZ * (1 + 2e-6)], near, bare_metal=True)
    assert any(s.by == "CPUID leaf 0x15" and s.note == "agrees" for s in found.stated)
    assert found.repeated_ppm == pytest.approx(2.0, rel=1e-3)
    far = Leaves(True, crystal_hz=HZ + 2_500_000)
    found = frequency.frequency(first, last, [], far, bare_metal=True)
    assert any("not trusted" in s.note and s.by.startswith("CPUID") for s in found.stated)
    assert found.hz == HZ


@pytest.mark.parametrize(
    ("ppm", "confirmed"), [(45, True), (-45, True), (60, False), (-400, False)]
)
def test_a_frequency_that_is_stated_confirms_only_within_what_clocks_are_slewed_by(
    monkeypatch: pytest.MonkeyPatch, ppm: int, confirmed: bool
) -> None:
    monkeypatch.setattr(probe, "kernel_rate", lambda: errno.EACCES)
    stated = Leaves(True, crystal_hz=HZ + HZ * ppm // 1_000_000)
    found = frequency.frequency(Pair(0, 0, 50), Pair(HZ, NS, 50), [], stated, bare_metal=True)
    assert found.source == "calibration" + ", confirmed by CPUID leaf 0x15" * confirmed
    (leaf,) = [s for s in found.stated if s.by == "CPUID leaf 0x15"]
    assert leaf.note.startswith("agrees" if confirmed else "not confirmed")


def test_bogomips_are_twice_the_mhz_of_an_x86_and_nothing_elsewhere() -> None:
    assert frequency.bogomips_hz("flags\t: fpu\nflags : x\nbogomips\t: 5200.00\n") == 2_600_000_000
    assert frequency.bogomips_hz("Features : fp\nBogoMIPS : 50.00\n") is None


@pytest.mark.parametrize(
    ("hz", "told"), [(2_600_002_000, "agrees within"), (2_600_100_000, "further off than")]
)
def test_bogomips_agree_only_within_their_steps(
    monkeypatch: pytest.MonkeyPatch, hz: int, told: str
) -> None:
    monkeypatch.setattr(probe, "kernel_rate", lambda: errno.EACCES)
    monkeypatch.setattr(frequency, "bogomips_hz", lambda text: 2_600_000_000)
    found = frequency.frequency(Pair(0, 0, 50), Pair(hz, NS, 50), [], Leaves(True), False)
    assert found.stated[0].note == f"{told} its steps of 1.9 ppm"


def test_a_clock_that_moves_with_the_kernels_tick_is_weighed_in_longer_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cost(clock: object, batches: int, reads: int) -> tuple[np.ndarray, np.ndarray]:
        seen = 20.0 * reads // 4_000_000 * 4_000_000 / reads  # 20 ns, by a clock of 4 ms
        return np.full(batches, seen), np.full(batches, seen)

    def calibrate(duration_ns: int) -> tuple[Pair, Pair]:
        seen = duration_ns // 4_000_000 * 4_000_000
        return Pair(0, 0, 50), Pair(seen * HZ // NS, seen, 50)

    monkeypatch.setattr(probe, "cost", cost)
    monkeypatch.setattr(probe, "calibrate", calibrate)
    assert weigh(BY_NAME["monotonic"]).read_ns == pytest.approx(20, rel=0.25)
    assert frequency.repeat(3) == [HZ] * 3
    monkeypatch.setattr(probe, "cost", lambda clock, n, reads: (np.zeros(n), np.zeros(n)))
    monkeypatch.setattr(probe, "calibrate", lambda ns: (Pair(0, 0, 50), Pair(ns, 0, 50)))
    with pytest.raises(MeasurementError, match="stands still"):
        weigh(BY_NAME["monotonic"])
    with pytest.raises(MeasurementError, match="stands still"):
        frequency.repeat(3)


def test_all_pairs_of_few_processors_and_a_stated_sample_of_many() -> None:
    pairs, note = cores.sample(range(4))
    assert (len(pairs), note) == (6, None)
    pairs, note = cores.sample(range(256))
    assert len(pairs) == len(set(pairs)) == cores.MOST_PAIRS
    assert {first for first, _ in pairs} == {0}
    assert note == "a sample: processor 0 with 64 others, of 32,640 pairs"
    pairs, note = cores.sample(range(40))
    assert len(pairs) == 39


@pytest.mark.parametrize(
    ("name", "advanced_pct", "seconds", "faulty"),
    [
        ("tsc", 95.0, 1.0, False),
        ("tsc", 85.0, 1.0, True),
        ("tsc", 0.0, 0.06, True),
        ("monotonic_coarse", 70.0, 0.06, False),  # 18 ms behind
        ("monotonic_coarse", 70.0, 1.0, True),
        ("thread_cpu", 20.0, 1.0, False),
    ],
)
def test_a_clock_that_goes_at_another_rate_is_a_fault(
    name: str, advanced_pct: float, seconds: float, faulty: bool
) -> None:
    clock = sample_clock(name)
    clock.advanced_pct, clock.duration_s = advanced_pct, seconds
    assert (diagnose(setup(), [clock], None, None).verdict == "faulty") is faulty


@needs_tsc
def test_a_counter_that_is_not_invariant_is_converted_by_its_average_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaves = dataclasses.replace(probe.leaves(), invariant=False, has_rdtscp=True)
    monkeypatch.setattr(probe, "leaves", lambda: leaves)
    monkeypatch.setattr(probe, "counter_usable", lambda: False)
    report = survey(Request(("monotonic", "tsc")), ["pgtare", "clock"])
    tsc = report.clock("tsc")
    assert tsc is not None
    assert tsc.advanced_pct == pytest.approx(100, abs=2)
    assert "tsc advanced" not in report.diagnosis.sentence
    assert report.frequency is None
    assert any("average rate during this run" in told for _, told in show.facts(report))
    waits = [one.clock for one in report.meaning if one.what.startswith("wait_event_timing")]
    assert waits == ["monotonic"]  # as the module, which takes no counter that is not invariant


def test_a_stall_beside_a_look_at_the_time_is_not_the_clocks_fault() -> None:
    recording = probe.replay(even(1_001, step=1_000_000))  # 1,000 ms pass
    seen = Distribution.of(recording, NS)

    def advanced(elapsed_ms: int, opened_ms: int = 0, closed_ms: int = 0) -> float:
        changed = dataclasses.replace(
            recording,
            elapsed_ns=elapsed_ms * 1_000_000,
            opened=recording.first - opened_ms * 1_000_000,
            closed=recording.last + closed_ms * 1_000_000,
        )
        return advanced_pct(changed, seen)

    assert advanced(1000) == 100.0
    assert advanced(1500, closed_ms=500) == 100.0
    assert advanced(1500, opened_ms=400, closed_ms=200) == 100.0
    assert advanced(2000, closed_ms=500) == 75.0
    assert advanced(500) == 200.0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_an_offset_between_processors_is_found_and_told() -> None:
    counter = probe.counter_usable()
    hz = round(frequency.between(*probe.calibrate(1_900_000))) if counter else NS
    found = cores.compare(counter, hz, offset=-hz)
    if not found.pairs:
        pytest.skip("the processors are too busy")
    worst = min(found.pairs, key=lambda pair: pair.upper_ns)
    assert worst.lower_ns < -1e9 < worst.upper_ns < 0
    assert worst.backward in (worst.rounds, worst.rounds + 1)  # the last one may be half a round
    verdict = diagnose(setup(), [], None, found)
    assert verdict.verdict == "faulty"
    assert f"processor {worst.second} is behind processor {worst.first}" in verdict.sentence


def test_one_processor_alone_says_why_there_is_no_comparison() -> None:
    found = cores.compare(False, NS, cpus=[sorted(os.sched_getaffinity(0))[0]])
    assert (found.clock, found.pairs, found.possible) == (None, [], 0)
    assert found.note is not None
    assert "only processor" in found.note


INTERRUPTS = """           CPU0       CPU1
 24:          1          7  IO-APIC   5-edge      ACPI:Ged
LOC:        100        250   Local timer interrupts
ERR:          3
"""


def test_interrupts_of_one_processor_and_of_all() -> None:
    assert gaps.interrupts(INTERRUPTS, 1) == {"24 ACPI:Ged": 7, "LOC Local timer interrupts": 250}
    assert gaps.interrupts(INTERRUPTS, None)["LOC Local timer interrupts"] == 350
    assert gaps.interrupts(INTERRUPTS, 9) == {"24 ACPI:Ged": 0, "LOC Local timer interrupts": 0}
    assert gaps.interrupts("", 0) == {}


def test_stolen_time_of_one_processor() -> None:
    text = "cpu  1 2 3 4 5 6 7 30 0 0\ncpu0 1 2 3 4 5 6 7 10 0 0\ncpu1 1 2 3 4 5 6 7 20 0 0\n"
    assert gaps.stolen_ms(text, 1) == 20_000 // os.sysconf("SC_CLK_TCK")
    assert gaps.stolen_ms(text, 7) is None


def test_time_lost_is_what_gaps_took_beyond_a_reading() -> None:
    # 10,000 readings of 10 ns and one gap of 100 µs: half the time
    deltas = np.full(10_001, 10, np.int64)
    deltas[5_000] = 100_010
    recording = probe.replay(np.concatenate([[0], np.cumsum(deltas)]).astype(np.uint64))
    seen = Distribution.of(recording, NS)
    nothing = gaps.Kernel({"LOC timer": 5}, 0)
    later = gaps.Kernel({"LOC timer": 9}, 10)
    found = gaps.gaps("tsc", recording, seen, nothing, later, hypervisor=True)
    assert found is not None
    assert found.count == 1
    assert found.lost_pct == pytest.approx(50.0, abs=0.01)
    assert found.longest[0].ns == 100_010
    assert found.interrupts == {"LOC timer": 4}
    assert found.causes[1].evidence.startswith("4 interrupts on this processor, 10 ms stolen")


def gaps_of(recording: probe.ProbeRun) -> Gaps:
    empty = gaps.Kernel({}, None)
    seen = Distribution.of(recording, NS)
    found = gaps.gaps("monotonic", recording, seen, empty, empty, hypervisor=False)
    assert found is not None
    return found


def readings(*deltas: tuple[int, int]) -> NDArray[np.uint64]:
    """Readings with so many differences of each length, in this order."""
    steps = np.repeat([ticks for ticks, _ in deltas], [n for _, n in deltas])
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.uint64)


def test_gaps_too_short_for_the_kernel_to_be_asked_are_told_apart() -> None:
    found = gaps_of(probe.replay(readings((10, 10_000), (3_000, 4), (100_010, 1))))
    assert [(c.cause, c.count) for c in found.causes] == [
        ("context switches", 0),
        ("interrupts", 1),
        ("too short to tell", 4),
    ]
    assert found.causes[1].lost_pct == pytest.approx(100_000 * found.causes[2].lost_pct / 11_960)
    assert sum(cause.lost_pct for cause in found.causes) == pytest.approx(found.lost_pct)
    assert "from 16.4 µs on" in found.causes[2].evidence


def test_a_switch_in_what_is_no_gap_makes_no_cause_negative() -> None:
    """Of a clock so slow that five of its readings take longer than what the kernel is asked of."""
    recording = probe.replay(readings((5_000, 10_000), (20_000, 3), (30_000, 2)))
    switched = np.where(recording.ticks == 20_000, 3, recording.ticks == 30_000).astype(np.uint64)
    found = gaps_of(replace(recording, switched=switched))
    assert (found.count, [cause.count for cause in found.causes]) == (2, [1, 1])


def test_a_thread_that_is_kept_from_running_shows_as_a_context_switch() -> None:
    cpu = sorted(os.sched_getaffinity(0))[-1]
    rival = os.fork()
    if rival == 0:
        os.sched_setaffinity(0, {cpu})
        while True:
            pass
    try:
        recording = probe.record(BY_NAME["monotonic"], 0.5, cpu)
    finally:
        os.kill(rival, 9)
        os.waitpid(rival, 0)
    found = gaps_of(recording)
    assert (recording.switched <= recording.counts).all()
    assert set(recording.switched[recording.ticks < probe.DIRECT]) <= {0}
    assert found.causes[0].count == recording.switched.sum() > 0
    assert found.causes[0].lost_pct > 10
    assert any(gap.cause == "context switch" for gap in found.longest)
    assert any((gap.waited_ns or 0) > 500_000 for gap in found.longest)


def test_a_clock_that_never_moved_has_no_gaps() -> None:
    recording = probe.replay(np.full(100, 7, np.uint64))
    empty = gaps.Kernel({}, None)
    seen = Distribution.of(recording, NS)
    assert gaps.gaps("tsc", recording, seen, empty, empty, hypervisor=False) is None
    assert recording.still_longest == 99
    assert probe.replay(even(1)).differences == 0


def test_a_stall_does_not_move_the_cost_of_a_reading() -> None:
    only = np.full(40, 10.0)
    only[3] = 1e6
    groups = [(only, only + 2), (only * 1.1, only * 1.1 + 2)]
    found = cost_of(groups)
    assert found.read_ns == pytest.approx(10.5)
    assert found.loop_ns == pytest.approx(2.0)
    assert found.noise_pct == pytest.approx(100 * 0.5 / 10.5)
