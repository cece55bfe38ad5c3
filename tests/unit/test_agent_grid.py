"""When looks are due: by wall-clock time, in turns, and slower if the server is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtare.keeping.agent.grid import LookGrid, stagger


@given(st.floats(0, 2e9), st.floats(0.1, 3600), st.floats(0, 1), st.floats(0, 10))
def test_the_next_look_is_within_a_step_and_a_half(
    wall: float, interval: float, share: float, since: float
) -> None:
    grid = LookGrid(interval, share * interval)
    assert 0 < grid.wait_s(wall) <= interval * (1 + 1e-6) + 1e-3
    wait = grid.wait_s(wall, since)
    assert wait + since >= interval / 2 - 1e-3
    assert wait <= 1.5 * interval + 1e-3


def test_a_round_time_that_rounding_hides_is_no_look_at_once() -> None:
    assert LookGrid(0.1).wait_s(64.3) == pytest.approx(0.1)


def test_looks_fall_on_round_times_of_the_day() -> None:
    assert LookGrid(10).wait_s(1003.0) == pytest.approx(7)
    assert LookGrid(10, 2.5).wait_s(1003.0) == pytest.approx(9.5)


def test_a_timer_that_fires_early_does_not_fire_twice() -> None:
    assert LookGrid(10).wait_s(1009.999, 9.9) == pytest.approx(0.001)
    assert LookGrid(10).wait_s(1009.999, 0.0) == pytest.approx(10.001)


def test_a_clock_that_is_set_back_delays_no_look() -> None:
    assert LookGrid(10).wait_s(1003.0 - 3600, 10.0) == pytest.approx(7)


def test_servers_take_turns() -> None:
    shares = sorted(stagger(f"server{number}") for number in range(100))
    assert stagger("a") == stagger("a")
    assert all(any(low <= share < low + 0.2 for share in shares) for low in (0, 0.2, 0.4, 0.6, 0.8))


def test_slow_looks_are_made_less_often_and_quick_ones_as_often_again() -> None:
    grid = LookGrid(1.0)
    assert [grid.looked(0.2) for _ in range(3)] == [False, False, True]
    assert grid.step_s == 2
    assert [grid.looked(0.01) for _ in range(5)] == [False] * 4 + [True]
    assert grid.step_s == 1
    assert grid.looked(0.0, gave_up=True)
    for _ in range(100):
        grid.looked(9.0)
    assert grid.step_s == 32


def test_looks_that_would_be_slow_again_stay_rare() -> None:
    grid = LookGrid(1.0)
    grid.looked(0.0, gave_up=True)
    assert not any(grid.looked(0.15) for _ in range(20))
