"""Which processes are watched where not all can be, and how often they are sampled."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import cast

import pytest

from pgtare.observing.flame import perf, processes
from pgtare.observing.flame.perf import Collector
from pgtare.observing.flame.processes import FlameTarget
from pgtare.observing.flame.record import FlameRecorder, choose, wall_clock_offset_ns


def test_all_are_watched_where_that_can_be_read() -> None:
    found = choose({1: 100.0, 2: 0.0, 3: 800.0}, 1000, 150, random.Random(1))
    assert found == {1: 1, 2: 1, 3: 1}


def test_quiet_ones_are_all_watched_and_some_of_the_busy_stand_for_the_rest() -> None:
    quiet = dict.fromkeys(range(10), 5.0)
    busy = dict.fromkeys(range(100, 116), 2000.0)
    found = choose(quiet | busy, 5000, 150, random.Random(1))
    assert set(quiet) <= set(found)
    chosen = [pid for pid in found if pid in busy]
    assert len(chosen) == 2
    assert sum(found[pid] for pid in chosen) == pytest.approx(16)
    assert all(found[pid] == 1 for pid in quiet)


def test_who_is_drawn_differs() -> None:
    busy = dict.fromkeys(range(16), 2000.0)
    drawn = {tuple(choose(busy, 2000, 150, random.Random(seed))) for seed in range(20)}
    assert len(drawn) > 5


def test_no_more_than_can_be_distinguished() -> None:
    many = dict.fromkeys(range(1000), 0.0) | dict.fromkeys(range(2000, 2500), 100.0)
    found = choose(many, 10_000, 150, random.Random(1))
    assert len(found) == 150
    assert sum(found.values()) == pytest.approx(1500)


class _OneSample:
    """What perf prints of one sample of this process."""

    def lines(self) -> list[str]:
        pid = os.getpid()
        return [f"postgres  {pid}/{pid}  10.000001000: cpu-clock: \n", "\t    1 f (/x)\n", "\n"]


@pytest.mark.parametrize(("allowed", "rate", "notes"), [("100", 100, 1), ("5000", 499, 0)])
def test_a_sample_counts_as_long_as_the_kernel_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allowed: str, rate: int, notes: int
) -> None:
    """perf lowers a rate that is too high, and then each sample represents more time."""
    setting = tmp_path / "perf_event_max_sample_rate"
    setting.write_text(f"{allowed}\n")
    monkeypatch.setattr(perf, "_MOST_RATE", setting)
    monkeypatch.setattr(perf, "find_perf", lambda: "perf")
    monkeypatch.setattr(perf, "check_allowed", lambda mode, pids: None)
    target = FlameTarget([os.getpid()], None, "this process")
    recorder = FlameRecorder("on", target, 499, perf.FRAME_POINTERS)
    arguments = recorder._arguments()
    assert arguments[arguments.index("-F") + 1] == str(rate)
    recorder._consume(cast(Collector, _OneSample()))
    assert recorder.failure is None
    assert recorder.collected.samples().weight_ns.tolist() == [10**9 // rate]
    assert len([n for n in recorder._notes("time", "") if "max_sample_rate" in n]) == notes


@pytest.fixture
def one_of_several(monkeypatch: pytest.MonkeyPatch) -> FlameTarget:
    """One server of several on this machine; we are the postmaster."""
    monkeypatch.setattr(perf, "find_perf", lambda: "perf")
    monkeypatch.setattr(perf, "check_allowed", lambda mode, pids: None)
    monkeypatch.setattr(processes, "in_machine_namespace", lambda: True)
    monkeypatch.setattr(FlameTarget, "alone", False)
    return FlameTarget([os.getpid(), 1, 2], os.getpid(), "this process")


def test_none_are_drawn_by_lot_whose_numbers_the_kernel_does_not_know(
    monkeypatch: pytest.MonkeyPatch, one_of_several: FlameTarget
) -> None:
    """In a container it would compare them with its own numbers of other processes."""
    switched = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(processes, "switches", lambda pid: next(switched))
    monkeypatch.setattr(processes, "in_machine_namespace", lambda: False)
    recorder = FlameRecorder("off", one_of_several, walk=perf.FRAME_POINTERS)
    recorder._choose()
    assert not recorder._by_lot
    arguments = recorder._arguments()
    assert arguments[arguments.index("--filter") + 1].startswith("prev_comm ==")


def test_sessions_to_come_are_missing_only_where_the_kernel_sifts_by_number(
    one_of_several: FlameTarget,
) -> None:
    for number, name, note in (
        (perf.FILTERED, "prev_pid ==", "Sessions that connected"),
        (perf.FILTERED + 1, "prev_comm ==", "Events of other servers"),
    ):
        one_of_several.pids = list(range(number))
        recorder = FlameRecorder("off", one_of_several, walk=perf.FRAME_POINTERS)
        arguments = recorder._arguments()
        assert arguments[arguments.index("--filter") + 1].startswith(name)
        assert any(n.startswith(note) for n in recorder._notes("time", ""))


def test_clocks_are_read_together_although_the_processor_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times of a trace, 20 ms late, would fall into the next wait."""
    wall, lost, expected = time.time_ns, iter([0.02] * 5), wall_clock_offset_ns()

    def late() -> int:
        read = wall()
        time.sleep(next(lost, 0))
        return read

    monkeypatch.setattr(time, "time_ns", late)
    assert abs(wall_clock_offset_ns() - expected) < 10_000_000
