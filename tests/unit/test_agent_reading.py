"""When a reading was taken."""

from __future__ import annotations

import time

import pytest

from pgtare.keeping.agent.reading import answered
from pgtare.postgres.wait_counters import steady_clock
from pgtare.postgres.wait_counters.epoch import elapsed_ns

HOUR_NS = 3600 * 10**9


def test_time_in_which_the_agents_machine_was_suspended_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server counted waits meanwhile."""
    before = answered(0, steady_clock.now_ns())
    clock = time.clock_gettime_ns

    def later(which: int) -> int:
        return clock(which) + HOUR_NS * (which == time.CLOCK_BOOTTIME)

    monkeypatch.setattr(time, "clock_gettime_ns", later)
    assert elapsed_ns(before, answered(HOUR_NS // 1000, steady_clock.now_ns())) == HOUR_NS
