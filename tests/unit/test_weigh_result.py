"""From estimates to the result: what is not a number is null, and what must be said is said."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import jsonschema
import numpy as np
import pytest

from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.answer import ReasonKind
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations, empty
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.trials import Population
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.reanalysis import reanalyse
from pgtare.weighing.weigh.recording import TrialRecording
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.result import build
from pgtare.weighing.weigh.schema import Reason, WeighResult
from tests.unit.sample_result import answer, effect
from tests.unit.simulated_trial import Effect, design_of, lognormal, new, old, simulate

DESIGN = design_of(1, 7, control=True)
PROOFS = (
    None,
    None,
    Proof(state="active", evidence="all 12 transactions ran with whole-query timing"),
)


def observed(units: int, cost: Effect | None = None, sigma: float = 0.1) -> Observations:
    """A trial of four sessions of so many transactions, in which i1 does something."""
    rng = np.random.default_rng(1)
    sessions = old([lognormal(units, rng, sigma) for _ in range(4)])
    return simulate(sessions, DESIGN, {2: cost or Effect()}).observations


def built(obs: Observations, design: Design = DESIGN, **kwargs: Any) -> WeighResult:
    """The result of a trial on these observations."""
    plan = WeighPlan(
        Request(chosen=(), dsn="dbname=app"), design, Population(None), 1, ("said before",)
    )
    recording = TrialRecording(obs, 60.0, "time", None)
    estimate = analyse(obs, design, proven={"i1": True}, **kwargs)
    return build(plan, recording, estimate, PROOFS, {}, {}, 0, None, [])


def nan_in(value: Any) -> bool:
    """Whether a document, before it is written as JSON, holds what is not a number."""
    if isinstance(value, dict):
        return any(nan_in(v) for v in value.values())
    if isinstance(value, list):
        return any(nan_in(v) for v in value)
    return isinstance(value, float) and not math.isfinite(value)


@pytest.mark.parametrize("rows", [0, 4, 400])
def test_what_is_not_a_number_is_null_everywhere(rows: int) -> None:
    obs = observed(400)[:rows] if rows else empty()
    result = built(obs)
    again = reanalyse(DESIGN, obs, result)
    for found in (result, again):
        assert not nan_in(found.model_dump())
        jsonschema.validate(json.loads(found.to_json()), WeighResult.model_json_schema())
    assert (result.design.mde_us is None) == (rows < 400)
    assert (answer(result.arms[2]).us.lo is None) == (rows < 400)
    assert (result.baseline.body_mean_us is None) == (rows < 400)
    assert (result.switching.switch_us is None) == (rows == 0)


def test_a_tail_without_an_interval_is_null_and_its_estimate_kept() -> None:
    arm = built(observed(2_000)).arms[2]
    for interval in (effect(arm).excess_us, effect(arm).total_us):
        assert interval.estimate is not None
        assert interval.lo is None
        assert interval.hi is None
    assert answer(arm).us.lo is not None


def test_what_the_answer_is_of_comes_through() -> None:
    """Every field of the estimate's answer is in the document, and no number is made up."""
    obs = observed(6_000, Effect(partial(np.add, 8.0)))
    found = analyse(obs, DESIGN, proven={"i1": True}).arms[2].answer
    assert found is not None
    written = answer(built(obs).arms[2])
    assert written.us.estimate == found.us.estimate
    assert (written.pct.lo, written.pct.hi) == (found.pct.lo, found.pct.hi)
    assert (written.basis, written.verdict) == (found.basis, "cost")
    assert [(r.kind, r.p) for r in written.reasons] == [(r.kind, r.p) for r in found.reasons]
    assert (written.at_least, written.at_most) == (found.at_least, found.at_most)
    assert written.detectable_us == found.detectable_us
    assert written.share_covered == 1.0


@pytest.mark.parametrize(
    ("cold", "grows"), [((20.0,) * 16, False), ((*(0.0,) * 16, *(20.0,) * 16), True), ((), None)]
)
def test_a_cost_that_still_changes_within_a_run_is_a_warning(
    cold: tuple[float, ...], grows: bool | None
) -> None:
    result = built(observed(12_000, Effect(partial(np.add, 5.0), cold_us=cold)))
    found = [w for w in result.warnings if "still changes within a run" in w]
    assert len(found) == (grows is not None)
    written = answer(result.arms[2])
    assert (written.at_least, written.at_most) == (grows is True, grows is False)
    if found:
        assert found[0].startswith("i1: what it costs still changes within a run of transactions")
        assert "--unit slice" in found[0]


def test_whose_answer_it_is_if_many_sessions_are_too_short() -> None:
    rng = np.random.default_rng(2)
    long = old([lognormal(5_000, rng, 0.1) for _ in range(4)])
    short = new([lognormal(60, rng, 0.1) for _ in range(400)], rng)
    covering = built(simulate(long, DESIGN).observations)
    assert not any("whole block" in w for w in covering.warnings)
    # new sessions are so many that their first runs are in the answer, and the rest is not
    result = built(simulate([*long, *short], DESIGN).observations)
    assert result.design.covered_pct < 90
    (said,) = [w for w in result.warnings if "whole block of runs" in w]
    assert said.endswith(
        "the answer is of sessions with 5,000 transactions or more. Fewer instruments or more time "
        "let shorter ones in."
    )
    kinds = [reason.kind for reason in answer(result.arms[2]).reasons]
    assert ReasonKind.SHORT_SESSIONS in kinds


def test_what_the_server_ended_stays_unverified_when_analysed_again() -> None:
    obs = observed(2_000)
    first = built(obs, ended_early="its deadline had come")
    reasons = answer(first.arms[2]).reasons
    assert reasons == [Reason(kind=ReasonKind.ENDED_EARLY, text="its deadline had come")]
    first.design.stopped_by = "server"
    arm = reanalyse(DESIGN, obs, first).arms[2]
    assert arm.verdict == "not_verified"
    assert [r.text for r in answer(arm).reasons] == ["the server ended it"]
    first.design.stopped_by = "time"
    assert reanalyse(DESIGN, obs, first).arms[2].verdict != "not_verified"


def test_another_margin_changes_what_is_written_of_it() -> None:
    obs = observed(2_000)
    again = reanalyse(DESIGN, obs, built(obs), margin=0.02)
    assert again.design.margin_pct == 2.0
