"""What a limit's state says is in agreement with all of the data and with the answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.answer import ReasonKind, Verdict
from pgtare.estimate.trial.results import Live, LiveArm
from pgtare.weighing.instruments.counters import Snapshot
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.trials import Population
from pgtare.weighing.weigh import measurement
from pgtare.weighing.weigh.limit import UNDECIDED, Ended, exit_status, with_limits
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.reanalysis import reanalyse
from pgtare.weighing.weigh.recording import TrialRecording
from pgtare.weighing.weigh.report import wording
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.schema import Limit, WeighResult
from tests.unit.sample_result import answer, arm_of, judged, sample
from tests.unit.test_weigh_outside_words import SERVERS, from_outside

NAME = "pg_stat_statements"
REQUEST = Request(chosen=(Chosen(NAME, {}),), dsn="dbname=x", at_most=0.03)
LOW = LiveArm(NAME, Estimate(1.7, 0.1, 1.4, 2.0), 0.2, least_pct=1.3, most_pct=2.1)
HIGH = LiveArm(NAME, Estimate(3.6, 0.1, 3.3, 3.9), 0.2, least_pct=3.2, most_pct=4.0)


def look(arm: LiveArm) -> Live:
    return Live(1_000, (arm,))


def state(
    result: WeighResult,
    last: LiveArm,
    decided: LiveArm | None = None,
    closed: LiveArm | None = None,
) -> str:
    ended = Ended(look(decided), look(closed or last)) if decided is not None else None
    return with_limits(result, REQUEST, look(last), ended).limits[0].state


def test_what_was_open_at_the_end_counts_against_a_limit() -> None:
    result = sample(50).result
    assert state(result, LOW, LOW) == "below"
    for most_pct in (math.inf, 3.1):
        last, ended = look(replace(LOW, most_pct=most_pct)), Ended(look(LOW), look(LOW))
        later = with_limits(result, REQUEST, last, ended)
        assert later.limits[0].state == "undecided"
        assert exit_status(later) == UNDECIDED


def test_a_decision_outlasts_what_came_until_the_trial_had_ended() -> None:
    result = sample(50).result
    barely, wider = replace(LOW, most_pct=2.9), replace(LOW, most_pct=3.05)
    assert state(result, replace(LOW, most_pct=3.06), barely, wider) == "below"
    assert state(result, replace(LOW, most_pct=3.2), barely, wider) == "undecided"


def test_all_of_the_data_are_looked_at_after_the_look_that_ended_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    design, observations, result = sample(50)
    monkeypatch.setattr(measurement, "prove", lambda *_: [arm.proof for arm in result.arms])
    found = object.__new__(measurement.Measurement)
    found.plan = WeighPlan(REQUEST, design, Population(None), 1, ())
    found._server, found._before = {}, Snapshot(18)
    got = TrialRecording(observations, 60.0, "decision", None)
    found._ended = got, 0, None, Snapshot(18)
    made = found.weighing({}, [], decided=look(LOW)).result
    assert made.limits[0].state == "undecided"


def test_what_a_look_showed_to_be_above_stands() -> None:
    result = sample(50).result
    later = replace(HIGH, least_pct=2.9)
    assert state(result, later, HIGH) == "above"
    ended = Ended(look(HIGH), look(later))
    assert not with_limits(result, REQUEST, look(later), ended).limits[0].waiting
    assert state(result, later) == "undecided"


@pytest.mark.parametrize(
    ("verdict", "kind", "fields", "below", "above"),
    [
        ("cost", ReasonKind.DIFFERS, {}, "below", "above"),
        ("cost", ReasonKind.GROWS, {"at_least": True}, "undecided", "above"),
        ("cost", ReasonKind.SHRINKS, {"at_most": True}, "below", "undecided"),
        ("gain", ReasonKind.GROWS, {"at_least": True}, "below", "above"),
        ("gain", ReasonKind.SHRINKS, {"at_most": True}, "undecided", "undecided"),
        ("inconclusive", ReasonKind.UNSETTLED, {}, "undecided", "above"),
        ("inconclusive", ReasonKind.OPEN_COULD_EXPLAIN, {}, "undecided", "undecided"),
    ],
)
def test_a_cost_that_is_a_bound_is_not_on_the_other_side(
    verdict: Verdict, kind: ReasonKind, fields: dict[str, Any], below: str, above: str
) -> None:
    result = sample(50).result
    judged(arm_of(result, NAME), verdict, kind, **fields)
    assert (state(result, LOW), state(result, HIGH)) == (below, above)


@pytest.mark.parametrize(("p", "decides"), [(0.04, False), (0.06, True)])
@pytest.mark.parametrize("of_total", [False, True])
def test_a_control_that_misses_0_must_not_explain_a_decision(
    p: float, decides: bool, of_total: bool
) -> None:
    """By 1 %: more than either bound is away from the limit."""
    result = sample(50).result
    control = arm_of(result, "control")
    assert control.effect is not None
    assert result.baseline.body_mean_us is not None
    off = control.effect.total_us if of_total else answer(control).us
    off.estimate = -result.baseline.body_mean_us / 100
    control.p_adjusted, control.p_total_adjusted = (0.5, p) if of_total else (p, None)
    found = (state(result, LOW), state(result, HIGH), state(result, HIGH, HIGH))
    assert found == (("below", "above", "above") if decides else ("undecided",) * 3)
    assert state(result, replace(LOW, most_pct=1.9, body_pct=Estimate(0, 1, -1, 1))) == "below"


def test_what_reads_high_as_bursts_were_held_up_exceeds_no_limit() -> None:
    for disturbed, above, of_servers in (
        (12.0, "above", "below"),
        (13.0, "undecided", "undecided"),
    ):
        result = from_outside(disturbed_pct=disturbed)
        answer(arm_of(result, NAME)).waiting_us = answer(arm_of(result, NAME)).us
        assert (state(result, LOW), state(result, HIGH)) == ("below", above)
        assert result.design.outside is not None
        result.design.outside.servers = SERVERS
        assert state(result, LOW) == of_servers


def test_with_limits_the_table_bounds_slow_transactions_too() -> None:
    """In fifty blocks too little is known of these."""
    design, observations, result = sample(50)
    result.limits = [Limit(name="track_io_timing", at_most_pct=9.0, state="undecided")]
    assert "at most" in wording.verdict_cell(arm_of(result, "track_io_timing"), result)
    again = reanalyse(design, observations, result)
    assert wording.verdict_cell(arm_of(again, "track_io_timing"), again) == "undecided"
    unknown = "; too little is known of slow transactions)"
    assert f"not decided: track_io_timing (9 %{unknown}" in wording._limits(again)
    again.limits[0].at_most_pct = 0.1  # the others may cost more than that
    assert unknown not in wording._limits(again)
