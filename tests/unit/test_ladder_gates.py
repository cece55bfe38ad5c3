"""Gates of a run, from two readings of the machine, and profiles of waits."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime
from typing import Literal
from unittest.mock import MagicMock, Mock

import pytest

from pgtare.errors import MeasurementError
from pgtare.kit.machine import Usage, usage
from pgtare.kit.window import processor_shares
from pgtare.postgres.wait_counters.model import Counters, Event, EventRow
from pgtare.postgres.wait_counters.reader import Moment
from pgtare.weighing.ladder import evidence, gates, run
from pgtare.weighing.ladder.records import Run, Step
from pgtare.weighing.ladder.study_sections import Expected, Gates, Workload
from tests.unit.simulated_study import STUDY, WAITS, study

BEFORE = Usage(
    busy=10_000,
    idle=50_000,
    steal=100,
    total=60_100,
    kernel=10,
    swapped_pages=0,
    throttled=0,
    monotonic_s=1000.0,
    wall_s=1_700_000_000.0,
)
AFTER = dataclasses.replace(
    BEFORE,
    busy=11_900,
    idle=50_090,
    steal=110,
    total=62_100,
    monotonic_s=1010.0,
    wall_s=1_700_000_010.0,
)


def judged(after: Usage, own_ticks: int = 1_890) -> list[str]:
    shares = processor_shares(BEFORE, after, own_ticks)
    return gates.judge(BEFORE, after, shares, Gates())


def test_a_calm_run_passes() -> None:
    assert judged(AFTER) == []


@pytest.mark.parametrize(
    ("change", "own", "expected"),
    [
        ({"wall_s": AFTER.wall_s + 0.4}, 1_890, "the clock stepped by +400 ms"),
        ({"wall_s": AFTER.wall_s - 3600}, 1_890, "the clock stepped by -3600000 ms"),
        ({"steal": 100 + 400}, 1_890, "other guests took 20 % of the processors"),
        ({"swapped_pages": 7}, 1_890, "7 pages were swapped"),
        ({"throttled": 1}, 1_890, "throttled"),
        ({}, 1_500, "another load on the machine took 20 % of the processors"),
    ],
)
def test_each_gate_speaks_up(change: dict[str, float], own: int, expected: str) -> None:
    (message,) = judged(dataclasses.replace(AFTER, **change), own)  # type: ignore[arg-type]
    assert expected in message


def test_the_kernels_own_threads_are_no_other_load() -> None:
    assert judged(dataclasses.replace(AFTER, kernel=410), own_ticks=1_490) == []


def test_no_other_load_takes_more_than_all_processors() -> None:
    """Busy time can grow by more than all time: what waits for the disk is counted back and forth.

    A gate of 100 % is open.
    """
    after = dataclasses.replace(BEFORE, busy=12_056, total=62_100, monotonic_s=1010.0)
    shares = processor_shares(BEFORE, after, 0)
    assert shares.other == 1
    assert (
        gates.disturbed(
            shares.steal, shares.other, Gates.model_validate({"other_load_at_most": "100%"})
        )
        == []
    )


def test_the_machine_is_read() -> None:
    first, second = usage(), usage()
    assert second.monotonic_s > first.monotonic_s
    assert second.total >= first.total > 0
    assert second.busy + second.idle <= second.total


def test_a_profile_is_held_against_its_bounds() -> None:
    def missed(**bounds: object) -> list[str]:
        expected = Expected.model_validate({"event": "IO/DataFileRead", **bounds})
        return evidence.missed(Workload(name="W", profile=(expected,)), WAITS)

    assert missed(at_least="90%") == []
    assert missed(at_least="96%") == ["IO/DataFileRead: 95 % of the time waited, not 96 %"]
    assert missed(at_most="50%", of="sessions") == [
        "IO/DataFileRead: 90 % of the sessions' time, more than 50 %"
    ]
    assert missed(waits_per_transaction_at_least=2.5) == [
        "IO/DataFileRead: 1.90 waits a transaction, not 2.5"
    ]
    assert missed(mean_us_at_least=200) == ["IO/DataFileRead: 100.0 µs on average, not 200 µs"]


def test_the_mean_of_a_profile_is_that_of_waits_that_ended() -> None:
    before, after = (
        (EventRow(backend_type="client backend", event=Event("Lock", "tuple", False), counters=c),)
        for c in (Counters(), Counters(waits=1, total_ms=1, running_ms=20_000))
    )
    waits = evidence.profile(before, after, seconds=2, clients=20, transactions=1)
    expected = Expected.model_validate({"event": "*", "of": "sessions", "at_least": "1%"})
    share, _, mean_us = evidence.measured(expected, waits)
    assert share == pytest.approx(0.5, rel=1e-3)
    assert (mean_us, waits[0].mean_ms) == (1000, 1)


def test_waits_are_read_again_while_a_session_is_in_the_midst_of_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it, what it waited before the run would count as waits of the run."""
    row = EventRow(
        backend_type="client backend",
        event=Event("Lock", "tuple", False),
        counters=Counters(waits=1, total_ms=1),
    )
    lacking = Moment(datetime.now(UTC), (), {}, ("client backend",))
    whole = Moment(datetime.now(UTC), (row,), {}, ("checkpointer",))
    reader, opened = Mock(), MagicMock()
    opened.return_value.__enter__.return_value = reader
    monkeypatch.setattr(evidence, "open_reader", opened)
    reader.moment.side_effect = [lacking, whole]
    assert evidence.read_events(Mock()) == (row,)
    reader.moment.side_effect = itertools.repeat(lacking)
    monkeypatch.setattr(evidence, "_BUSY_S", 0.0)
    with pytest.raises(MeasurementError, match="could not be read"):
        evidence.read_events(Mock())


def test_a_profile_drops_no_run_since_only_some_variants_can_show_it() -> None:
    expected = Expected.model_validate({"event": "IO/DataFileRead", "at_least": "96%"})
    workload = Workload(name="W", profile=(expected,))
    missed = ("IO/DataFileRead: 95 % of the time waited, not 96 %",)
    assert evidence.remarks(workload, WAITS) == missed
    assert evidence.remarks(workload, ()) == ()  # counts no waits


def test_idle_waits_are_left_out_of_all_waits() -> None:
    everything = Expected.model_validate({"event": "*", "of": "sessions", "at_most": "95%"})
    share, _, _ = evidence.measured(everything, WAITS)
    assert share == pytest.approx(0.9)


def test_headroom_that_is_not_there_is_reported() -> None:
    workload = Workload.model_validate({"name": "W", "idle_at_least": "20%"})
    busy = ["the processors idled 5 % of the time, not 20 %"]
    assert evidence.judge_idle(workload, 0.05) == busy


IDLED = "the processors idled 7 % of the time, not 20 %"
OTHERS = "another load on the machine took 30 % of the processors"
HICCUP = "1 transactions of the load failed"


@pytest.mark.parametrize(
    ("kind", "failed", "other", "again"),
    [
        ("proof", (IDLED,), 0.3, [OTHERS]),
        ("proof", (IDLED,), 0.0, []),
        ("proof", (HICCUP, IDLED), 0.0, [HICCUP]),
        ("proof", (HICCUP,), 0.3, [HICCUP, OTHERS]),
        ("proof", (), 0.3, []),
        ("run", (IDLED, HICCUP), 0.3, []),
    ],
)
def test_a_proof_that_failed_by_more_than_its_profile_is_tried_again(
    kind: Literal["proof", "run"], failed: tuple[str, ...], other: float, again: list[str]
) -> None:
    found = study(STUDY.replace('name = "W1"', 'name = "W1"\nidle_at_least = "20%"'))
    made = Run(
        step=Step(id="x", kind=kind, workload="W1", variant="OFF"),
        started="",
        duration_s=1.0,
        metrics={"tps": 1.0},
        failed=failed,
        machine={"idle": 0.07, "steal": 0.0, "other": other},
    )
    assert run.why_again(made, found) == again
