"""Verdicts on simulated trials with known truths: how often they are wrong, with bounds."""

from __future__ import annotations

import pytest

from pgtare.estimate.trial import clopper_pearson
from tests.unit import simulated_trial as simulated
from tests.unit.simulated_trial import Count


def at_most(count: Count, rate: float) -> bool:
    """Whether the true rate may be this or less; a right program fails once in 10,000 runs."""
    return clopper_pearson(count.hits, count.trials, 0.9998)[0] <= rate


def at_least(count: Count, rate: float) -> bool:
    """Whether the true rate may be this or more."""
    return clopper_pearson(count.hits, count.trials, 0.9998)[1] >= rate


def test_failures_make_no_gain() -> None:
    assert simulated.verdicts_despite_failures(4, 1).hits == 0


def test_the_percent_interval_agrees_with_the_other_in_spite_of_a_slow_session() -> None:
    _, in_percent, differ = simulated.one_slow_session(2, 1)
    assert differ.hits == 0
    assert in_percent.hits == 2


@pytest.mark.parametrize("others", [0, 4])
def test_rare_stalls_are_a_cost_whoever_is_weighed_too(others: int) -> None:
    assert simulated.stalls_called_a_cost(1, 1, 1 + others).hits == 1


def test_a_control_that_is_off_leaves_no_verdict() -> None:
    assert simulated.flat_verdicts_with_the_control_off(3, 1).hits == 0


def test_stalls_that_the_end_cuts_short_are_not_lost() -> None:
    found = simulated.stalls_cut_short(4, 1, 0.3)
    assert 0.8 < found.share < 1.35  # whole blocks alone gave .72
    assert found.harmless.hits == 0


@pytest.mark.slow
@pytest.mark.parametrize("noise", simulated.NOISES)
@pytest.mark.parametrize("instruments", [1, 3])
def test_family_wise_error_of_cost_and_gain(noise: str, instruments: int) -> None:
    assert at_most(simulated.family_wise_errors(80, 7, instruments, noise), 0.05)


@pytest.mark.slow
def test_tails_are_covered_where_they_are_judged() -> None:
    for count in simulated.tails_covered(120, 3, 1):
        assert count.trials > 80
        assert at_least(count, 0.95)


@pytest.mark.slow
def test_how_often_the_control_withholds() -> None:
    """At most one good trial in 1,000 loses its verdict to the rule for all arms."""
    off, no_cost = simulated.withheld_from_good_trials(200, 3)
    assert at_most(off, 0.05)
    assert at_most(no_cost, 0.05)
    assert simulated.flat_verdicts_with_the_control_off(60, 3).hits == 0


@pytest.mark.slow
def test_bounds_hold_and_margins_settle_as_often_as_they_say() -> None:
    assert at_least(simulated.bounds_that_hold(200, 3), 0.95)
    settled = simulated.margins_that_settle(200, 3)
    assert at_least(settled, 0.8)
    assert at_most(settled, 0.8)
