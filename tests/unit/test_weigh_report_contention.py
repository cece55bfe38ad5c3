"""A saturation design and a trial in slices, as result, on the terminal and on the page."""

from __future__ import annotations

import io
import json
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.design import Arm, Design, Slices
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.results import ContentionState
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.trials import Population
from pgtare.weighing.weigh.plan import WeighPlan, describe, design_of
from pgtare.weighing.weigh.reanalysis import reanalyse
from pgtare.weighing.weigh.recording import TrialRecording
from pgtare.weighing.weigh.report.charts import charts
from pgtare.weighing.weigh.report.contention import view
from pgtare.weighing.weigh.report.page import page
from pgtare.weighing.weigh.report.terminal import render
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.result import build
from pgtare.weighing.weigh.schema import WeighResult
from tests.unit.slices_textbook import saturation, simulate, sliced

PROOF = Proof(state="active", evidence="all 12 transactions ran with whole-query timing")


def built(design: Design, obs: Observations, stopped_by: Any = "time") -> WeighResult:
    """The result of a trial on these observations."""
    plan = WeighPlan(Request(chosen=(), dsn="dbname=app"), design, Population(None), 1, ())
    recording = TrialRecording(obs, 60.0, stopped_by, None)
    ended = "it crashed" if stopped_by == "server" else ""
    estimate = analyse(obs, design, proven={"x": True, "i2": True}, ended_early=ended)
    proofs = [PROOF if arm.role == "instrument" else None for arm in design.arms]
    return build(plan, recording, estimate, proofs, {}, {}, 0, None, ["pgtare", "weigh"])


@pytest.fixture(scope="module")
def crowded() -> tuple[Design, Observations]:
    """Two sessions that slow each other down."""
    design = saturation()
    return design, simulate(design, 40, own=(0, 80), spillover=(0, 160))


@pytest.fixture(scope="module")
def _weighed(crowded: tuple[Design, Observations]) -> WeighResult:
    return built(*crowded)


@pytest.fixture
def result(_weighed: WeighResult) -> WeighResult:
    """The result of the crowded trial, for a test to change."""
    return _weighed.model_copy(deep=True)


def shown(result: WeighResult, width: int = 200, *, details: bool = True) -> str:
    out = io.StringIO()
    render(result, Console(file=out, width=width, color_system=None), details=details)
    return out.getvalue()


def test_a_result_follows_the_schema_and_is_the_same_again(
    crowded: tuple[Design, Observations], result: WeighResult
) -> None:
    assert result.design.unit == "both"
    assert result.contention is not None
    assert result.contention.state == "spillover"
    jsonschema.validate(json.loads(result.to_json()), WeighResult.model_json_schema())
    assert reanalyse(*crowded, result) == result


def test_the_terminal_and_the_page_say_where_the_cost_falls(
    crowded: tuple[Design, Observations], result: WeighResult
) -> None:
    _, obs = crowded
    assert result.contention is not None
    for text in (shown(result), page(result, obs)):
        assert text.replace("\u00a0", " ").count("those without it take") == 1
        assert "on those that have it not" in text
        assert "guard of 2 ms" in text.replace("\u00a0", " ")
        assert "The load requests the same in all slices" in text
        assert "Locks that every arm shares" not in text
    (chart,) = [chart for chart in charts(result, obs) if chart.id == "contention"]
    found = view(result)
    assert found is not None
    rows = found.rows
    assert [row[:2] for row in chart.table_rows] == [list(row[:2]) for row in rows]
    answer = result.arms[1].answer
    assert answer is not None
    assert rows[0][1] == numbers.estimate(answer.us)  # one answer, here too


def test_the_short_report_says_in_a_sentence_what_was_asked_for(result: WeighResult) -> None:
    """Of --unit both: what the instrument costs others."""
    text = shown(result, 80, details=False)
    assert len(text.splitlines()) <= 20
    assert "Part of the cost of x falls on others" in text
    assert "x, when all sessions have it on" in text
    assert "guard of" not in text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal(result: WeighResult, width: int) -> None:
    text = shown(result, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        ("spillover", "Part of the cost of x falls on others"),
        ("not_shown", "is not shown"),
        ("inconclusive", "inconclusive; why not"),
    ],
)
def test_every_state_has_its_sentence(
    result: WeighResult, state: ContentionState, wanted: str
) -> None:
    assert result.contention is not None
    result.contention.state, result.contention.reason = state, "why not"
    for details in (False, True):
        assert wanted in shown(result, details=details)


def test_nothing_is_reported_without_proof_or_of_a_trial_that_the_server_ended(
    crowded: tuple[Design, Observations], result: WeighResult
) -> None:
    design, obs = crowded
    assert result.contention is not None
    result.contention.state = "not_verified"
    for shape in (result, built(design, obs, "server")):
        for text in (shown(shape), page(shape, obs)):
            assert "on those that have it not" not in text
            assert "falls on others" not in text
        assert "contention" not in [chart.id for chart in charts(shape, obs)]


def test_a_trial_in_slices_is_reported_as_one() -> None:
    design = sliced(3)
    obs = simulate(design, 60, own=(0, 0, 80))
    result = built(design, obs)
    assert result.contention is None
    assert result.design.slices is not None
    assert result.design.slices.guard_us == 2_000
    jsonschema.validate(json.loads(result.to_json()), WeighResult.model_json_schema())
    assert reanalyse(design, obs, result) == result
    for text in (shown(result), page(result, obs)):
        plain = text.replace("\u00a0", " ")
        assert "i2: +" in plain
        assert "blocks of slices" in plain
        assert "15 to 45 ms in random order" in plain
        assert "a session keeps an arm" not in plain
        assert "In the first transactions" not in plain


def test_transactions_too_long_for_their_slices_are_warned_of() -> None:
    design = sliced(3)
    long = built(design, simulate(design, 5, levels_us=(9_000.0,)))
    assert any("--slice-ms" in warning for warning in long.warnings)
    short = built(design, simulate(design, 5))
    assert not any("--slice-ms" in warning for warning in short.warnings)


def test_the_plan_tells_of_slices() -> None:
    request = Request(
        chosen=(), inject_ns=(5_000,), unit="both", slice_ms=(5, 12.5), dsn="dbname=app"
    )
    design = design_of(request)
    assert [arm.role for arm in design.arms] == ["base", "injected"]
    assert design.slices is not None
    assert design.slices.guard_us == 1_250
    lines = describe(WeighPlan(request, design, Population(None), 0, ()), None)
    assert any("5 to 12.5 ms" in line and "base, injected, mixed" in line for line in lines)


def test_a_delay_of_all_sessions_at_once_has_no_known_truth() -> None:
    for levels, wanted in (((1000.0,), "covers the truth"), ((1000.0, 900.0), "cost each other")):
        arms = (Arm("base", "base"), Arm("injected", "injected", inject_ns=80_000))
        design = Design(arms, (0, 1), 1, Slices((0, 1)))
        obs = simulate(design, 60, levels_us=levels, own=(0, 80))
        assert wanted in shown(built(design, obs))


def test_sessions_that_get_faster_bear_no_part_of_a_cost(result: WeighResult) -> None:
    assert result.contention is not None
    result.contention.state = "spillover"
    result.contention.spillover_us = Interval(estimate=-2.3, lo=-3.1, hi=-1.5)
    text = shown(result)
    assert "falls on others" not in text
    assert "Sessions without x are faster where half of them have it" in text
