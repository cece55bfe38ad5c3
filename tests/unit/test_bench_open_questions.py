"""The arithmetic behind the open questions: slices as a client sees them, lines, drained traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.client_side import Schedule, median_of, per_slice
from bench.latency_puzzle import line
from bench.observer_effect import NOTHING, READ, effect, windows

from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.design import Arm, Design, Slices, block_layout, slice_ends, slice_order
from pgtare.estimate.trial.observations import OBSERVATION
from pgtare.load import TransactionLog


def design() -> Design:
    arms = (Arm("a", "base"), Arm("b", "control"), Arm("c", "injected", inject_ns=1))
    return Design(arms, block_layout(3), 5, Slices((0, 1, 2), 20_000, 40_000, 1_000))


def test_a_schedule_holds_whole_blocks_in_the_order_of_the_seed() -> None:
    made = design()
    ends = [end for _, end in zip(range(8), slice_ends(made), strict=False)]
    schedule = Schedule.of(made, ends[7])
    assert list(schedule.end_ns) == ends[:6]
    assert list(schedule.begin_ns) == [0, *ends[:5]]
    assert list(schedule.arm) == [*slice_order(made, 0), *slice_order(made, 1)]
    assert list(schedule.block) == [0, 0, 0, 1, 1, 1]


def test_times_near_a_switch_are_in_no_slice() -> None:
    schedule = Schedule.of(design(), 10**9)
    first, last = int(schedule.end_ns[0]), int(schedule.end_ns[-1])
    at = np.array([-5, 99, 100, first - 101, first - 100, first, first + 100, last + 1])
    assert list(schedule.place(at, 100)) == [-1, -1, 0, 0, -1, -1, 1, -1]


def test_differences_are_those_of_blocks() -> None:
    block = np.repeat(np.arange(3), 2)
    schedule = Schedule(np.zeros(6, int), np.ones(6, int), np.array([0, 1, 1, 0, 0, 1]), block)
    found = schedule.difference(np.array([10.0, 11.0, 23.0, 20.0, 30.0, np.nan]), 1, 0)
    assert found.estimate == 2.0  # of 1 and 3; the last block lacks the arm
    assert found.se == pytest.approx(1.0)


def test_means_of_slices_leave_out_what_is_in_none() -> None:
    means = per_slice(np.array([0, 0, 2, -1]), np.array([1.0, 3.0, 5.0, 99.0]), 3)
    assert means[0] == 2.0
    assert np.isnan(means[1])
    assert means[2] == 5.0


def test_medians_of_slices() -> None:
    number = np.array([1, 0, 1, -1, 1, 0, 3])
    values = np.array([9.0, 4.0, 1.0, 99.0, 5.0, 6.0, 7.0])
    found = median_of(number, values, 4)
    assert list(found[[0, 1, 3]]) == [6.0, 5.0, 7.0]
    assert np.isnan(found[2])
    assert np.isnan(median_of(np.array([-1]), np.array([1.0]), 1))


def test_a_line_through_known_costs() -> None:
    costs = [Estimate(0.5 + 0.03 * n, se, 0, 0) for n, se in ((1, 0.1), (4, 0.2), (64, 0.1))]
    fitted = line([1, 4, 64], costs)
    assert fitted.fixed_us == pytest.approx(0.5)
    assert fitted.wait_ns == pytest.approx(30)
    assert 0 < fitted.wait_half < 1000


def test_a_log_tells_when_transactions_were_due(tmp_path: Path) -> None:
    with TransactionLog(parent=tmp_path) as log:
        assert log._directory is not None
        (log._directory / "transactions.1").write_text(
            "0 1 250 0 1700000000 500 20\n0 2 skipped 0 1700000000 600 0\n"
            "1 1 100 0 1700000001 7 0\n1 2 failed 0 1700000001 8\n"
        )
        logged = log.transactions()
    assert sorted(logged.latency_us) == [100, 250]
    assert sorted(logged.due_us) == [1_700_000_000_000_250, 1_700_000_000_999_907]


def test_an_empty_log_has_no_transactions(tmp_path: Path) -> None:
    with TransactionLog(parent=tmp_path) as log:
        assert len(log.transactions().due_us) == 0
        assert len(log.latencies_us()) == 0


def test_windows_see_what_an_observer_costs() -> None:
    at_ns = np.arange(1, 401, dtype=np.int64) * 15_000_000
    kind = np.tile([NOTHING, READ], 200)
    start, service = [], []
    clock = 0
    while clock < 6_100_000_000:
        event = int(np.searchsorted(at_ns, clock, side="right")) - 1
        watched = event >= 0 and kind[event] == READ and clock < at_ns[event] + 1_000_000
        took = 100_000 if watched else 50_000  # 20 transactions a ms, or 10 in one
        start.append(clock)
        service.append(took)
        clock += took
    data = np.zeros(len(start), dtype=OBSERVATION)
    data["start_ns"], data["service_ns"], data["cpu_ns"] = start, service, service
    found = effect(windows(data, at_ns), kind, READ)
    assert found.transactions.estimate == pytest.approx(-10, abs=0.5)
    assert found.service_us.estimate == pytest.approx(10 / 90 * 50, abs=0.5)
