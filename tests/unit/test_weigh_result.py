"""From estimates to the result: what is not a number is null, and what must be said is said."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest

from pgtare.estimate.trial import analyse
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations, empty
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.trials import Population
from pgtare.weighing.weigh.participation import Shares
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.reanalysis import reanalyse
from pgtare.weighing.weigh.recording import TrialRecording
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.result import build
from pgtare.weighing.weigh.schema import WeighResult
from tests.unit.estimate_textbook import design_of, simulate

DESIGN = design_of(3, block=(0, 1, 2, 0, 1, 2))
PROOFS = (None, None, Proof(state="active", evidence="TOTAL_TIMED in 12 of 12 transactions"))


def built(obs: Observations, design: Design = DESIGN, **kwargs: Any) -> WeighResult:
    """The result of a trial on these observations."""
    plan = WeighPlan(
        Request(chosen=(), dsn="dbname=app"), design, Population(None), 1, ("said before",)
    )
    recording = TrialRecording(obs, 60.0, "time", None)
    estimate = analyse(obs, design, proven={"i2": True}, seed=1, **kwargs)
    return build(plan, recording, estimate, PROOFS, {}, {}, 0, Shares(None, None), [])


def nan_in(value: Any) -> bool:
    """Whether a document, before it is written as JSON, holds what is not a number."""
    if isinstance(value, dict):
        return any(nan_in(v) for v in value.values())
    if isinstance(value, list):
        return any(nan_in(v) for v in value)
    return isinstance(value, float) and not math.isfinite(value)


@pytest.mark.parametrize("rows", [0, 4, 40])
def test_what_is_not_a_number_is_null_everywhere(rows: int) -> None:
    obs = simulate(DESIGN, 20)[:rows] if rows else empty()
    result = built(obs)
    again = reanalyse(DESIGN, obs, result)
    for found in (result, again):
        assert not nan_in(found.model_dump())
        jsonschema.validate(json.loads(found.to_json()), WeighResult.model_json_schema())
    assert (result.design.mde_us is None) == (rows < 40)
    assert (result.baseline.body_mean_us is None) == (rows < 40)
    assert (result.carry_over.switch_us is None) == (rows == 0)


def test_a_tail_without_an_interval_is_null_and_its_estimate_kept() -> None:
    effect = built(simulate(DESIGN, 300)).arms[2].effect
    assert effect is not None
    for interval in (effect.excess_us, effect.total_us, effect.total_pct):
        assert interval.estimate is not None
        assert interval.lo is None
        assert interval.hi is None
    assert effect.body_us.lo is not None


@pytest.mark.parametrize(("lag_us", "way"), [(4, "more"), (-4, "less"), (0, "")])
def test_an_effect_that_lasts_longer_is_a_warning(lag_us: int, way: str) -> None:
    obs = simulate(DESIGN, 4_000, own=(0, 0, 5), stalls=0, seed=4)
    obs["service_ns"][2:] += 1000 * lag_us * (obs["arm"][:-2] == 2)
    found = [w for w in built(obs).warnings if "lasts longer" in w]
    assert len(found) == bool(way)
    if way:
        assert found[0].startswith("i2: the effect lasts longer than the next transaction (")
        assert f"leaving it on costs {way} than stated" in found[0]


def test_what_the_server_ended_stays_unverified_when_analysed_again() -> None:
    obs = simulate(DESIGN, 100)
    first = built(obs, ended_early="its deadline had come")
    assert first.arms[2].verdict_reason == "the trial ended early: its deadline had come"
    first.design.stopped_by = "server"
    arm = reanalyse(DESIGN, obs, first).arms[2]
    assert arm.verdict == "not_verified"
    assert arm.verdict_reason == "the trial ended early: the server ended it"
    first.design.stopped_by = "time"
    assert reanalyse(DESIGN, obs, first).arms[2].verdict != "not_verified"


def test_another_margin_changes_what_is_written_of_it() -> None:
    obs = simulate(DESIGN, 100)
    again = reanalyse(DESIGN, obs, built(obs), margin=0.02)
    assert again.design.margin_pct == 2.0
