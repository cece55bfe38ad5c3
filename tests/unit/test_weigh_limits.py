"""What a limit's state says is in agreement with all of the data and with the answer."""

from __future__ import annotations

import math
from dataclasses import replace

from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.results import Live, LiveArm
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.weigh.limit import UNDECIDED, exit_status, with_limits
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.schema import WeighResult
from tests.unit.sample_result import sample

NAME = "pg_stat_statements"
REQUEST = Request(chosen=(Chosen(NAME, {}),), dsn="dbname=x", at_most=0.03)
LOW = LiveArm(NAME, Estimate(1.7, 0.1, 1.4, 2.0), 0.2, least_pct=1.3, most_pct=2.1)
HIGH = LiveArm(NAME, Estimate(3.6, 0.1, 3.3, 3.9), 0.2, least_pct=3.2, most_pct=4.0)


def look(arm: LiveArm) -> Live:
    return Live(1_000, (arm,))


def state(result: WeighResult, last: LiveArm, ended: LiveArm | None = None) -> str:
    found = with_limits(result, REQUEST, look(last), look(ended) if ended else None)
    return found.limits[0].state


def test_what_was_open_at_the_end_counts_against_a_limit() -> None:
    result = sample(50).result
    assert state(result, LOW, LOW) == "below"
    for most_pct in (math.inf, 3.1):
        later = with_limits(result, REQUEST, look(replace(LOW, most_pct=most_pct)), look(LOW))
        assert later.limits[0].state == "undecided"
        assert exit_status(later) == UNDECIDED


def test_what_a_look_showed_to_be_above_stands() -> None:
    result = sample(50).result
    later = replace(HIGH, least_pct=2.9)
    assert state(result, later, HIGH) == "above"
    assert not with_limits(result, REQUEST, look(later), look(HIGH)).limits[0].waiting
    assert state(result, later) == "undecided"
