"""How clocks are surveyed: their frequency, how far processors' are apart, and their costs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import MeasurementError
from pgtare.observing.clock import cores, counter_frequency, probe, show
from pgtare.observing.clock.diagnosis import diagnose
from pgtare.observing.clock.distribution import NS, Distribution, cost_of
from pgtare.observing.clock.probe import Pair
from pgtare.observing.clock.schema import ClockReport, Trust
from pgtare.observing.clock.show import setup
from pgtare.observing.clock.survey import advanced_pct, survey, weigh
from tests.own_mounts import kernel_clock
from tests.unit.sample_clock_report import (
    BY_NAME,
    even,
    needs_tsc,
    replay,
    sample_clock,
    sample_setup,
)

HZ = 2_500_000_000


def test_a_frequency_has_the_bound_that_its_brackets_give() -> None:
    # brackets of 50 ticks at both ends and a whole ns: 50 + 2.5 ticks in 5 million
    first, last = Pair(0, 0, 50), Pair(5_000_000, 2_000_000, 50)
    assert counter_frequency.between(first, last) == HZ
    assert counter_frequency.bound_ppm(first, last) == pytest.approx(10.5)
    # a clock that moves by 4 ms at a time can be 10 million ticks off
    assert counter_frequency.bound_ppm(first, last, 4_000_000) == pytest.approx(2_000_010)


@pytest.mark.parametrize(
    ("step_s", "said"),
    [(-385.0, "back by 385 s"), (-0.5, "back by 500 ms"), (0.5, "ahead by 500 ms")],
)
def test_a_step_of_the_counter_is_named_and_is_no_part_of_its_frequency(
    step_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the calibrations at the beginning and the last reading."""
    honest, hz = probe.pair, counter_frequency.between(*probe.calibrate(1_900_000))
    pairs = iter([0, round(step_s * hz)])
    monkeypatch.setattr(
        probe, "pair", lambda: dataclasses.replace(p := honest(), ticks=p.ticks + next(pairs))
    )
    report = survey(None, ["test"])
    assert report.frequency is not None
    assert report.frequency.hz == pytest.approx(hz, rel=1e-3)
    assert 0 < report.frequency.error_ppm < 10_000
    assert report.diagnosis.verdict == "faulty"
    assert f"the counter stepped {said} against CLOCK_MONOTONIC" in report.diagnosis.sentence
    assert all((one.p50_ns or 0) > 0 for one in report.clocks if "coarse" not in one.name)


def test_a_clock_that_is_slewed_and_read_coarsely_has_no_step() -> None:
    """By 500 ppm at once, and a CLOCK_MONOTONIC that tells whole ticks of 4 ms."""
    first, last = Pair(0, 0, 40), Pair(2 * HZ, 2 * NS, 40)
    assert counter_frequency.step_ns(first, last, [HZ * 1.0005] * 20) == 0
    assert counter_frequency.step_ns(first, last, [HZ / 2.0] * 20, 4e6) == 0
    assert counter_frequency.step_ns(first, last, [HZ * 1.1] * 20) < 0


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
    assert counter_frequency.repeat(3) == [HZ] * 3
    monkeypatch.setattr(probe, "cost", lambda clock, n, reads: (np.zeros(n), np.zeros(n)))
    monkeypatch.setattr(probe, "calibrate", lambda ns: (Pair(0, 0, 50), Pair(ns, 0, 50)))
    with pytest.raises(MeasurementError, match="does not move"):
        weigh(BY_NAME["monotonic"])
    with pytest.raises(MeasurementError, match="does not move"):
        counter_frequency.repeat(3)


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
    assert (diagnose(sample_setup(), [clock], None, None).verdict == "faulty") is faulty


@needs_tsc
def test_a_counter_that_is_not_invariant_is_converted_by_its_average_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaves = dataclasses.replace(probe.leaves(), invariant=False, has_rdtscp=True)
    monkeypatch.setattr(probe, "leaves", lambda: leaves)
    monkeypatch.setattr(probe, "counter_usable", lambda: False)
    trust = Trust(counter=False, reason="it has no constant rate")
    monkeypatch.setattr(probe, "counter_trust", lambda: trust)
    report = survey(None, ["pgtare", "clock"])
    (tsc,) = (clock for clock in report.clocks if clock.name == "tsc")
    assert tsc.advanced_pct == pytest.approx(100, abs=2)
    assert "tsc advanced" not in report.diagnosis.sentence
    assert report.frequency is None
    assert any("average rate during this run" in text for _, text in show.facts(report))
    waits = [one.clock for one in report.meaning if one.what.startswith("wait_event_timing")]
    assert waits == ["monotonic"]  # as the module, which takes no counter that is not invariant


def test_a_stall_beside_a_look_at_the_time_is_not_the_clocks_fault() -> None:
    recording = replay(even(1_001, step=1_000_000))  # 1,000 ms pass
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
def test_an_offset_between_processors_is_found_and_reported() -> None:
    counter = probe.counter_usable()
    hz = round(counter_frequency.between(*probe.calibrate(1_900_000))) if counter else NS
    found = cores.compare(counter, hz, offset=-hz)
    if not found.pairs:
        pytest.skip("the processors are too busy")
    worst = min(found.pairs, key=lambda pair: pair.hi_ns)
    assert worst.lo_ns < -1e9 < worst.hi_ns < 0
    assert worst.backward in (worst.rounds, worst.rounds + 1)  # the last one may be half a round
    verdict = diagnose(sample_setup(), [], None, found)
    assert verdict.verdict == "faulty"
    assert f"processor {worst.second} is behind processor {worst.first}" in verdict.sentence


@needs_tsc
def test_where_the_kernel_reads_another_clock_so_do_the_modules(open_directory: Path) -> None:
    """What a wait costs is by that clock, which is compared across processors as well."""
    with kernel_clock(open_directory) as kernel:
        trusted = survey(None, ["test"])
        kernel("hpet")
        found = survey(None, ["test"])

    def of_a_wait(report: ClockReport) -> list[str]:
        return [one.clock for one in report.meaning if one.what == "wait_event_timing, a wait"]

    assert (of_a_wait(trusted), trusted.system_cores) == (["tsc"], None)
    assert "modules read the counter (the kernel reads the time by tsc)" in setup(trusted)
    assert of_a_wait(found) == ["monotonic"]
    reason = "the kernel reads the time by hpet, not by the processor's counter"
    assert f"modules read CLOCK_MONOTONIC ({reason})" in setup(found)
    assert found.system_cores is not None
    assert found.system_cores.clock in ("monotonic", None)  # None: one processor, or too busy


def test_a_stall_does_not_move_the_cost_of_a_reading() -> None:
    only = np.full(40, 10.0)
    only[3] = 1e6
    groups = [(only, only + 2), (only * 1.1, only * 1.1 + 2)]
    found = cost_of(groups)
    assert found.read_ns == pytest.approx(10.5)
    assert found.loop_ns == pytest.approx(2.0)
