"""Units in one server in a study: which variants, which steps, trials as blocks, side by side."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from pgtare.errors import UsageError
from pgtare.estimate.trial.observations import OBSERVATION, UnitFlag
from pgtare.weighing.ladder import markdown, page, terminal
from pgtare.weighing.ladder.activity import Activity
from pgtare.weighing.ladder.planning import all_steps
from pgtare.weighing.ladder.protocols.unit_trials import design_of, judge_activity
from pgtare.weighing.ladder.records import Run
from pgtare.weighing.ladder.remaining_steps import remaining
from pgtare.weighing.ladder.result import LadderResult, OnWorkload
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_file import check_rounds, parse
from tests.unit.simulated_study import BY_UNITS, TRIALS, WAITS, analysed, runs, study, tried


@pytest.fixture
def found() -> Study:
    return study(BY_UNITS).resolved()


@pytest.fixture
def both(found: Study) -> LadderResult:
    """The study by rounds and by trials, done."""
    return analysed(found, {**runs(found, {"trace": -0.02}), **tried(found)})


def by(result: LadderResult, kind: str) -> OnWorkload:
    return next(w for w in result.workloads if w.protocol == kind)


def test_one_server_holds_the_variants_that_differ_at_run_time_only(found: Study) -> None:
    rounds, units = found.workload
    assert found.in_a_block(units) == ("off", "stats", "trace", "off again")
    assert found.in_a_block(rounds) == ("off", "stats", "trace", "vanilla", "off again")
    assert [(c.arm, c.base) for c in found.compared(units)] == [("stats", "off"), ("trace", "off")]
    assert len(found.compared(rounds)) == 3
    assert found.family == 5


def test_the_floor_is_base_and_control_and_arms_bring_their_settings(found: Study) -> None:
    design = design_of(found, found.workload[1], 5)
    assert [(a.name, a.role) for a in design.arms] == [
        ("off", "base"),
        ("stats", "instrument"),
        ("trace", "instrument"),
        ("off again", "control"),
    ]
    assert design.arms[1].settings == {"work_mem": "8MB", "jit": "on"}
    assert design.arms[2].settings == {}
    assert design.arms[3].settings == design.arms[0].settings == {"work_mem": "4MB"}
    assert design.unit == "transaction"
    sliced = study(BY_UNITS.replace("run = '3s'", "run = '3s'\nunit = 'slice'")).resolved()
    assert design_of(sliced, sliced.workload[1], 5).unit == "slice"


def test_transactions_that_are_still_open_need_not_have_done_their_work(found: Study) -> None:
    """A trial of 64 sessions, each with a transaction under way at its end."""
    traced = Activity(name="traced", query="SELECT 1", when={"jit": True}, per_transaction=1)
    workload = found.workload[1].model_copy(update={"activity": (traced,)})
    design = design_of(found, workload, 5)
    arm = next(i for i, one in enumerate(design.arms) if one.settings.get("jit") == "on")
    data = np.zeros(1_064, OBSERVATION)
    data["arm"] = arm
    data["flags"][1_000:] = UnitFlag.OPEN
    grown, against = judge_activity(
        found, workload, design, data, {"traced": 5.0}, {"traced": 1_005.0}
    )
    assert (grown, against) == (["traced grew by 1,000 in 1,000 transactions"], [])


def test_a_workload_of_two_protocols_is_proven_once_and_has_its_own_steps(found: Study) -> None:
    steps = all_steps(found, 7)
    assert [s.id for s in steps if s.kind == "proof"] == [steps[0].id] == ["W1-proof"]
    trials = [s for s in steps if s.workload == "W1@units"]
    assert [s.id for s in trials] == [f"W1@units-{n:03}-trial" for n in range(1, TRIALS + 1)]
    assert len({s.seed for s in trials}) == TRIALS
    assert all_steps(found, 7) == steps
    assert all_steps(found, 8) != steps


def test_a_workload_that_is_not_proven_is_played_by_no_protocol(found: Study) -> None:
    proof = Run(step=all_steps(found, 7)[0], started="", duration_s=1.0, failed=("other waits",))
    assert remaining(found, all_steps(found, 7), {"W1-proof": proof}, {}) == []


def test_a_trial_is_a_block(both: LadderResult) -> None:
    units = by(both, "units")
    assert (units.rounds_kept, units.spent_s) == (TRIALS, 2.0 * TRIALS)
    stats, trace = units.compared
    assert (trace.metric, trace.verdict, trace.rounds) == ("service_us", "cost", TRIALS)
    assert trace.effect.pct == pytest.approx(100 * np.expm1(0.05), abs=0.2)
    assert stats.effect.pct == pytest.approx(0.3, abs=0.2)
    assert units.floor is not None
    assert units.floor.effect.pct == pytest.approx(0, abs=0.2)
    assert "of the 8 trials' log-ratios" in trace.derivation


def test_a_trial_that_failed_a_gate_does_not_count(found: Study) -> None:
    made = {**runs(found, {}), **tried(found)}
    key = "W1@units-003-trial"
    made[key] = made[key].model_copy(update={"failed": ("7 pages were swapped",)})
    result = analysed(found, made)
    assert [d.round for d in by(result, "units").dropped] == [3]
    assert by(result, "rounds").dropped == ()
    report = markdown.render(result)
    assert "W1 by units in one server, trial 3 was dropped: 7 pages were swapped" in report


def test_the_same_comparison_stands_side_by_side(both: LadderResult) -> None:
    pairs = [(s.workload, s.arm, s.base) for s in both.side_by_side]
    assert pairs == [("W1", "stats", "off"), ("W1", "trace", "off"), ("W1", "off again", "off")]
    rounds, units = both.side_by_side[1].ways
    assert [(w.protocol, w.blocks) for w in (rounds, units)] == [("rounds", 10), ("units", TRIALS)]
    assert (rounds.spent_s, units.spent_s) == (10 * 5 * 3.0, TRIALS * 2.0)
    trace = by(both, "units").compared[1]
    assert trace.effect.lo_pct is not None
    assert trace.effect.hi_pct is not None
    assert units.half_width_pct == (trace.effect.hi_pct - trace.effect.lo_pct) / 2
    log_ratios = np.log1p(np.array(trace.round_pct) / 100)
    se_pct = 100 * log_ratios.std(ddof=1) / TRIALS**0.5
    assert units.se_pct == pytest.approx(se_pct)
    assert units.se_1min_pct == pytest.approx(se_pct * (TRIALS * 2.0 / 60) ** 0.5)


def test_every_report_shows_them_side_by_side(both: LadderResult) -> None:
    into = io.StringIO()
    terminal.render(both, Console(file=into, width=80))
    for text in (into.getvalue(), markdown.render(both), page.page(both)):
        assert "The same comparison by several protocols" in text
        assert "SE in 1 min" in text
        assert "units in one server" in text
    rows = [row for row in into.getvalue().splitlines() if not row.startswith("- ")]
    assert max(len(row) for row in rows if "±" in row or "─" in row) <= 80
    assert "W1 trace − off (units)" in page.page(both)
    assert "W1: 8 trials of 3 s after 2 s of warm-up" in page.page(both)
    alone = analysed(study(), runs(study(), {}))
    assert "several protocols" not in markdown.render(alone)


def test_a_protocol_without_figures_stands_in_no_comparison(found: Study) -> None:
    made = {**runs(found, {}), **tried(found)}
    for key, run in made.items():
        if run.step.workload == "W1@units":
            made[key] = run.model_copy(update={"failed": ("swapped",)})
    result = analysed(found, made)
    assert by(result, "units").why_not
    assert result.side_by_side == ()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            '"rounds", "units"',
            '"units", "unit"',
            "there is no protocol 'unit' (did you mean units?): give \"rounds\" or",
        ),
        ('"rounds", "units"', '"units", "units"', "names a protocol twice"),
        ('floor = "off"', 'floor = "vanilla"', "no other variant differs from vanilla in run-time"),
        ("clients = 1", 'clients = 1\nmetric = "service_us"', "is measured by units only"),
        ("trials = 8", "trails = 8", "unknown key 'trails' in protocol.units (did you mean trials"),
    ],
)
def test_what_cannot_be_is_reported_with_its_line(right: str, wrong: str, message: str) -> None:
    with pytest.raises(UsageError, match="line ") as refused:
        parse(BY_UNITS.replace(right, wrong, 1), "s.toml")
    assert message in str(refused.value)


def test_too_few_trials_are_refused_like_rounds() -> None:
    few = study(BY_UNITS.replace(f"trials = {TRIALS}", "trials = 5")).resolved()
    with pytest.raises(UsageError, match=r"5 trials reach p = 0\.0625.*set trials = 8 or more"):
        check_rounds(few, quick=False)


def test_a_profile_is_shown_once(both: LadderResult) -> None:
    assert [w.waits == WAITS for w in both.workloads] == [True, True]
    assert page.page(both).count("W1 mostly IO/DataFileRead") == 1
