"""A report against an earlier one: worse only beyond the noise that both state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgtare.seeing.clock.compare_reports import FLOOR_PCT, compare, noise_pct
from pgtare.seeing.clock.schema import ClockReport
from tests.unit.sample_clock_report import sample


def worse(change: Callable[[ClockReport], None]) -> list[str]:
    """What is worse once a report has been changed."""
    after = sample()
    change(after)
    return [line.what for line in compare(sample(), after) if line.worse]


def test_the_same_report_is_not_worse() -> None:
    assert worse(lambda report: None) == []


@pytest.mark.parametrize(("read_ns", "is_worse"), [(8.7, False), (8.9, True), (4.0, False)])
def test_a_reading_may_cost_a_tenth_more_and_no_more(read_ns: float, is_worse: bool) -> None:
    def change(report: ClockReport) -> None:
        report.clocks[1].read_ns = read_ns

    assert worse(change) == (["tsc, a reading"] if is_worse else [])


def test_a_noisy_run_allows_twice_the_noise_of_both() -> None:
    def change(report: ClockReport) -> None:
        report.clocks[1].read_ns, report.clocks[1].read_noise_pct = 10.0, 19.0

    assert noise_pct(sample().clocks[1], sample().clocks[1]) == FLOOR_PCT
    assert worse(change) == []  # 25 % dearer, with 2 × (1 + 19) % allowed
    tight = sample()
    tight.clocks[1].read_ns = 10.0
    assert [line.what for line in compare(sample(), tight) if line.worse] == ["tsc, a reading"]


def test_no_noise_excuses_a_reading_half_as_dear_again() -> None:
    def change(report: ClockReport) -> None:
        report.clocks[1].read_ns, report.clocks[1].read_noise_pct = 16.0, 90.0

    assert worse(change) == ["tsc, a reading"]


def test_a_single_step_back_is_worse() -> None:
    def change(report: ClockReport) -> None:
        report.clocks[1].backward = 1

    assert worse(change) == ["tsc, steps back"]


def test_a_lost_vdso_and_a_worse_verdict_are_reported() -> None:
    def change(report: ClockReport) -> None:
        report.diagnosis.vdso, report.diagnosis.verdict = False, "slow"
        report.diagnosis.clocksource = "hpet"

    assert worse(change) == ["verdict", "vDSO"]
    after = sample()
    change(after)
    lines = {line.what: (line.before, line.after) for line in compare(sample(), after)}
    assert lines["clock source"] == ("tsc", "hpet")


@pytest.mark.parametrize(("ppm", "is_worse"), [(40, False), (-60, True), (60, True)])
def test_a_counter_of_another_rate_is_worse(ppm: int, is_worse: bool) -> None:
    def change(report: ClockReport) -> None:
        assert report.frequency is not None
        report.frequency.hz += report.frequency.hz * ppm // 1_000_000

    assert worse(change) == (["counter"] if is_worse else [])


def test_processors_that_are_apart_are_worse() -> None:
    def change(report: ClockReport) -> None:
        assert report.cores is not None
        report.cores.pairs[0].lo_ns = 20.0

    assert worse(change) == ["pairs of processors apart"]


def with_pairs(*bounds: tuple[int, int, float, float]) -> ClockReport:
    """A report with these pairs: first, second, lower and upper bound in ns."""
    report = sample()
    assert report.cores is not None
    (some, *_) = report.cores.pairs
    report.cores.pairs = [
        some.model_copy(update={"first": a, "second": b, "lo_ns": lo, "hi_ns": hi})
        for a, b, lo, hi in bounds
    ]
    return report


@pytest.mark.parametrize(
    ("after", "is_worse"),
    [
        ([(0, 1, 20.0, 80.0), (0, 2, -30.0, 40.0)], False),
        ([(0, 1, -30.0, 40.0), (0, 2, 20.0, 80.0)], True),  # as many, but another
        ([(0, 1, 90.0, 150.0), (0, 2, -30.0, 40.0)], True),  # the same, but further
        ([(0, 1, 70.0, 150.0), (0, 2, -30.0, 40.0)], False),  # perhaps as far
        ([(0, 1, -150.0, -90.0), (0, 2, -30.0, 40.0)], True),
        ([(0, 3, 20.0, 80.0)], True),  # not compared before
        ([], False),
    ],
)
def test_processors_are_compared_pair_by_pair(
    after: list[tuple[int, int, float, float]], is_worse: bool
) -> None:
    before = with_pairs((0, 1, 20.0, 80.0), (0, 2, -30.0, 40.0))
    (line,) = [
        line
        for line in compare(before, with_pairs(*after))
        if line.what == "pairs of processors apart"
    ]
    assert line.worse == is_worse
    assert line.before == "1 (processors 0 and 1 by 20 ns)"


def test_clocks_that_one_of_them_did_not_read_are_left_out() -> None:
    def change(report: ClockReport) -> None:
        del report.clocks[1]

    assert worse(change) == []
