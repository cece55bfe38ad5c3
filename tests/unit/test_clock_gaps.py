"""Gaps in a clock's readings, and what the kernel tells of them."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pgtare.observing.clock import gaps, probe
from pgtare.observing.clock.distribution import NS, Distribution
from pgtare.observing.clock.schema import Gaps
from tests.unit.sample_clock_report import BY_NAME, even, replay


def test_time_lost_is_what_gaps_took_beyond_a_reading() -> None:
    # 10,000 readings of 10 ns and one gap of 100 µs: half the time
    deltas = np.full(10_001, 10, np.int64)
    deltas[5_000] = 100_010
    recording = replay(np.concatenate([[0], np.cumsum(deltas)]).astype(np.uint64))
    seen = Distribution.of(recording, NS)
    found = gaps.gaps("tsc", recording, seen, hypervisor=True)
    assert found is not None
    assert found.count == 1
    assert found.lost_pct == pytest.approx(50.0, abs=0.01)
    assert found.longest[0].duration_ns == 100_010


def gaps_of(recording: probe.ProbeRun) -> Gaps:
    seen = Distribution.of(recording, NS)
    found = gaps.gaps("monotonic", recording, seen, hypervisor=False)
    assert found is not None
    return found


def readings(*deltas: tuple[int, int]) -> NDArray[np.uint64]:
    """Readings whose differences have these lengths, each as often as given, in this order."""
    steps = np.repeat([ticks for ticks, _ in deltas], [n for _, n in deltas])
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.uint64)


def test_gaps_too_short_for_the_kernel_to_be_asked_are_distinguished() -> None:
    recording = replay(readings((10, 10_000), (3_000, 4), (100_010, 1)))
    # the kernel is asked for the switches of the thread that replays, which may be switched out
    switched = np.zeros_like(recording.switched)
    found = gaps_of(replace(recording, switched=switched))
    assert [(c.cause, c.count) for c in found.causes] == [
        ("context switches", 0),
        ("interrupts", 1),
        ("too short to tell", 4),
    ]
    assert found.causes[1].lost_pct == pytest.approx(100_000 * found.causes[2].lost_pct / 11_960)
    assert sum(cause.lost_pct for cause in found.causes) == pytest.approx(found.lost_pct)


def test_a_switch_in_what_is_no_gap_makes_no_cause_negative() -> None:
    """Of a clock so slow that five of its readings take longer than what the kernel is asked of."""
    recording = replay(readings((5_000, 10_000), (20_000, 3), (30_000, 2)))
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
    recording = replay(np.full(100, 7, np.uint64))
    seen = Distribution.of(recording, NS)
    assert gaps.gaps("tsc", recording, seen, hypervisor=False) is None
    assert recording.still_longest == 99
    assert replay(even(1)).differences == 0
