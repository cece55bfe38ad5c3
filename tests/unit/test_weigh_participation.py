"""The share of a database's transactions that took part in a trial."""

from __future__ import annotations

import dataclasses

import pytest

from pgtare.weighing.trials import Status
from pgtare.weighing.weigh.participation import Traffic, share_pct
from pgtare.weighing.weigh.transaction_rate import transaction_rate
from tests.unit.sample_result import sample

_STATUS = Status(
    running=False,
    trial=2,
    owner_pid=1,
    started=None,
    ended=None,
    seconds_left=0.0,
    end_reason="finished",
    sessions=5,
    sessions_now=0,
    sessions_no_ring=0,
    sessions_lacking_settings=0,
    observations=4_900,
    lost=100,
    negative_clock=0,
)
_BEFORE = Traffic(transactions=50_000, own=10, at_s=1_000.0)


def after(transactions: int, seconds: float) -> Traffic:
    """Counted so long after the first look."""
    return Traffic(50_000 + transactions + 5, 15, 1_000.0 + seconds)


def test_rates_are_compared_as_the_counts_are_of_a_little_more_time() -> None:
    """Ten seconds of 1,000 transactions a second, half of which took part, counted for twelve."""
    found = share_pct(_BEFORE, after(12_000, 12.0), _STATUS, 10.0)
    assert found == pytest.approx(50.0)


def test_a_part_that_exceeds_the_whole_has_no_share() -> None:
    assert share_pct(_BEFORE, after(4_000, 10.0), _STATUS, 10.0) is None
    lone = dataclasses.replace(_STATUS, observations=10_500, lost=0)
    assert share_pct(_BEFORE, after(10_000, 10.0), lone, 10.0) == 100.0
    assert share_pct(_BEFORE, _BEFORE, _STATUS, 10.0) is None


def test_observations_that_were_lost_were_transactions() -> None:
    """The share that took part counts them as well."""
    result = sample().result
    seen = sum(arm.n + arm.excluded for arm in result.arms)
    before = transaction_rate(result)
    result.design.lost = seen
    after = transaction_rate(result)
    assert before is not None
    assert after is not None
    assert after.per_s == pytest.approx(2 * before.per_s)
