"""Failed transactions, those that were still open, and the bounds of percentages."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pgtare.estimate.inference import Estimate, Expansion, Reference, fieller, holm
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.analysis_request import BODY_SHARE, Question
from pgtare.estimate.trial.answer import ReasonKind
from pgtare.estimate.trial.design import Arm, Design, slice_ends
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.estimate.trial.outcomes import (
    FailedRuns,
    Failures,
    Unanswered,
    above,
    below,
    rate_p,
    unanswered_in_runs,
)
from pgtare.estimate.trial.results import TrialEstimate
from pgtare.estimate.trial.runs import select
from pgtare.estimate.trial.verdict import Control, Evidence, judge
from tests.unit import simulated_trial as simulated
from tests.unit.estimate_textbook import design_of, simulate
from tests.unit.sample_evidence import CLEAR, DEAR, EQUIVALENT, GAIN, OPEN
from tests.unit.slices_textbook import simulate as slices_simulated
from tests.unit.slices_textbook import sliced

NAN = math.nan


@pytest.mark.parametrize("seed", range(6))
def test_a_rate_s_p_is_that_of_all_labels(seed: int) -> None:
    """Of every block's four slots, two are the arm's, each pair of them as likely."""
    rng = np.random.default_rng(seed)
    events = rng.random((4, 4)) < 0.4
    pairs = list(itertools.combinations(range(4), 2))
    counts = [
        sum(int(events[b, list(pair)].sum()) for b, pair in enumerate(drawn))
        for drawn in itertools.product(pairs, repeat=4)
    ]
    observed = int(events[:, :2].sum())
    tails = [
        np.mean([count <= observed for count in counts]),
        np.mean([count >= observed for count in counts]),
    ]
    found = rate_p(events[:, :2].sum(axis=1), events.sum(axis=1), 2, 4)
    assert found == pytest.approx(min(1.0, 2 * min(tails)))


def test_a_rate_s_p_of_many_events_is_continuous_with_that_of_few() -> None:
    both = np.ones(4_090, dtype=np.int64)
    arm = np.zeros_like(both)
    arm[:2_110] = 1
    exact = rate_p(arm, both, 1, 2)
    more = np.ones(20, dtype=np.int64)
    normal = rate_p(np.append(arm, more * 0), np.append(both, more * 0), 1, 2)
    assert exact == pytest.approx(normal)
    half = np.append(more[:10], more[:10] * 0)
    assert rate_p(np.append(arm, half), np.append(both, more), 1, 2) == pytest.approx(
        exact, rel=0.05
    )
    assert rate_p(both[:5] * 0, both[:5] * 0, 1, 2) == 1.0
    assert math.isnan(rate_p(both[:0], both[:0], 1, 2))


def test_fieller_of_either_sign_agrees_with_the_top_about_zero() -> None:
    """A few clusters make up most of the denominator."""
    rng = np.random.default_rng(4)
    differ = covered = 0
    reference = Reference(40, 39)
    for _ in range(300):
        shares = rng.normal(0, 0.02, (2, 40))
        shares[:, 0] += rng.normal(0, 1.0, 2) * (0.3, 0.5)
        value = float(shares[0].sum()) + rng.choice([-0.2, 0, 0.2])
        top, bottom = Expansion(value, shares[0]), Expansion(1.0, shares[1])
        one, other = reference.interval(top.value, top.se), fieller(top, bottom, reference)
        assert other.lo <= other.estimate <= other.hi
        covers = one.lo <= 0 <= one.hi
        differ += covers != (other.lo <= 0 <= other.hi)
        covered += covers
    assert differ == 0
    assert 30 < covered < 300


def test_fieller_of_a_negative_top_inverts_its_test() -> None:
    rng = np.random.default_rng(3)
    shares = rng.normal(0, 0.05, (2, 40))
    shares -= shares.mean(axis=1, keepdims=True)
    top, bottom = Expansion(-2.1, shares[0]), Expansion(1.9, shares[1])
    reference = Reference(40, 39)
    found = fieller(top, bottom, reference)
    assert found.lo < -2.1 / 1.9 < found.hi < 0
    for edge in (found.lo, found.hi):
        contrast = top + bottom.scaled(-edge)
        assert abs(contrast.value) / contrast.se == pytest.approx(reference.multiplier())
    mirrored = fieller(top.scaled(-1), bottom, reference)
    assert (mirrored.lo, mirrored.hi) == pytest.approx((-found.hi, -found.lo))
    unknown = fieller(top, Expansion(0.01, shares[1]), reference)
    assert unknown.lo == -math.inf
    assert unknown.hi < 0
    neither = fieller(Expansion(0.01, shares[0]), Expansion(0.01, shares[1]), reference)
    assert (neither.lo, neither.hi) == (-math.inf, math.inf)


def test_weighted_holm_by_hand() -> None:
    """p / w is .0125, .05, .1, and the weights left are 2, 1.2 and 1."""
    assert holm([0.01, 0.02, 0.1], [0.8, 0.2, 1.0]) == pytest.approx([0.025, 0.12, 0.12])
    assert holm([0.01, 0.02], [1, 1]) == holm([0.01, 0.02])
    assert holm([0.01, 1e-9], [1.0, 0.0]) == [0.01, 1.0]


def test_a_total_that_is_not_judged_costs_the_body_nothing() -> None:
    asked = Question(design_of(3), 0.005, {}, False, "")
    alone = asked.tests([NAN, 0.5, 0.03], [NAN, NAN, NAN])
    assert alone[2].body == 0.03
    both = asked.tests([NAN, 0.5, 0.03], [NAN, 0.4, 0.9])
    assert both[2].body == pytest.approx(0.03 / BODY_SHARE)
    assert both[1].smallest == pytest.approx(0.5 / BODY_SHARE)  # the control is alone


def test_a_total_above_zero_is_a_cost_whatever_the_body_is() -> None:
    unlike = replace(EQUIVALENT, total=DEAR, excess=DEAR, p_total=1e-6)
    assert judge(unlike).verdict == "cost"
    assert judge(replace(unlike, p_total=0.06)).verdict == "inconclusive"
    assert judge(replace(GAIN, total=DEAR, p_total=1e-6)).verdict == "cost"
    cheap = Estimate(-9.0, 1.0, -11.0, -7.0)
    assert (
        judge(
            replace(EQUIVALENT, body=Estimate(0.2, 0.2, -0.2, 0.6), total=cheap, p_total=1e-6)
        ).verdict
        == "gain"
    )
    assert judge(replace(CLEAR, total=cheap, p_total=1e-6)).verdict == "inconclusive"


def kinds(evidence: Evidence) -> list[ReasonKind]:
    return [reason.kind for reason in judge(evidence).reasons]


@pytest.mark.parametrize("evidence", [EQUIVALENT, CLEAR, GAIN])
def test_a_control_that_is_off_withholds_every_verdict(evidence) -> None:  # type: ignore[no-untyped-def]
    off = replace(evidence, control=Control(1e-4, 0.01, 0.01))
    assert judge(off).verdict == "inconclusive"
    assert kinds(off) == [ReasonKind.CONTROL_OFF]
    fine = judge(replace(evidence, control=Control(0.2, 5.0, 5.0)))
    assert fine.verdict == judge(evidence).verdict
    # missed by as little as one good trial in twenty: only what it could explain
    assert judge(replace(evidence, control=Control(0.01, 0.05, 0.05))).verdict == fine.verdict
    large = replace(evidence, control=Control(0.01, -1.9, 0.1))
    assert kinds(large) == [ReasonKind.CONTROL_COULD_EXPLAIN]


@pytest.mark.parametrize("evidence", [EQUIVALENT, CLEAR, GAIN])
def test_failures_that_differ_withhold_every_verdict(evidence) -> None:  # type: ignore[no-untyped-def]
    (reason,) = judge(replace(evidence, failures=Failures(1e-9, 0.05, 0.0, -0.01))).reasons
    assert reason.kind == ReasonKind.FAILURES_DIFFER
    assert (reason.pct, reason.base_pct, reason.p) == (5.0, 0.0, 1e-9)
    alike = Failures(0.5, 0.05, 0.049, -0.01)
    assert judge(replace(evidence, failures=alike)).verdict == judge(evidence).verdict
    few = replace(evidence, failures=Failures(0.06, 0.01, 0.0, -1.5))
    assert kinds(few) == [ReasonKind.FAILURES_COULD_EXPLAIN]


@pytest.mark.parametrize("long_sessions", [0, 2])
def test_failures_of_first_runs_withhold_the_answer(long_sessions: int) -> None:
    """Of sessions too short for a block, also if a few others have whole blocks without any."""
    rng = np.random.default_rng(1)
    design = simulated.design_of(1, 1)
    lengths = [16] * 200 + [700] * long_sessions
    sessions = simulated.new([simulated.lognormal(n, rng, 0.1) for n in lengths], rng)
    dearer = {1: simulated.Effect(lambda x: x + 50)}
    made = simulated.simulate(sessions, design, dearer)
    first = made.observations["flags"] & UnitFlag.FIRST_RUN != 0
    for failing, verdict in ((None, "cost"), (0, "inconclusive"), (1, "inconclusive")):
        failed = first & (made.observations["arm"] == failing)
        failed &= made.observations["position"] == 3
        rows = simulated.fail(made, failed, times=0.1)
        answer = analyse(rows, design, proven={"i1": True}).arms[1].answer
        assert answer is not None
        assert answer.verdict == verdict
        assert bool(answer.because(ReasonKind.FAILURES_DIFFER)) == (failing is not None)


def first_runs(failed: np.ndarray) -> FailedRuns:
    """Of sessions that have two transactions each; every second session is the arm's."""
    n = len(failed)
    units = np.repeat(np.arange(n) % 2, 2)
    return FailedRuns(
        block=np.arange(n),
        arm=np.arange(n) % 2,
        failed=failed.astype(np.float64),
        size=np.full(n, 2.0),
        service_us=np.full(2 * n, 100.0),
        aborted=np.repeat(failed, 2) > 0,
        arm_of_unit=units,
        layout=(0, 1),
    )


def test_first_runs_are_compared_one_by_one() -> None:
    """By hand: each of the sessions with a failure could as well have been the base's."""
    few = np.zeros(100)
    few[1:14:2] = 1
    assert first_runs(few).p(1) == pytest.approx(2 / 2**7)
    often = np.resize([1.0, 1.0, 0.0, 0.0], 100)
    assert first_runs(often).p(1) == pytest.approx(1.0)
    assert first_runs(often + (np.arange(100) % 2)).p(1) < 1e-6
    assert first_runs(np.resize([0.0, 2.0], 100)).p(1) == 0.0


def test_twice_the_smaller_p_of_two_strata_counts() -> None:
    later, first = Failures(0.4, 0.1, 0.0, 2.0), Failures(0.01, 0.3, 0.1, 4.0)
    both = later.mixed(first, 0.75)
    assert both.p == 0.02
    assert (both.rate, both.base_rate, both.explained_us) == pytest.approx((0.25, 0.075, 3.5))
    assert Failures(NAN, NAN, NAN, 0.0).mixed(first, 1.0) == first
    assert later.mixed(Failures(NAN, NAN, NAN, 0.0), 0.5) == later


def test_open_transactions_withhold_what_they_could_explain() -> None:
    more = Unanswered(9, 0.4, 1e6, 5.0)
    assert judge(replace(EQUIVALENT, unanswered=more)).verdict == "inconclusive"
    assert judge(replace(GAIN, unanswered=more)).verdict == "inconclusive"
    cost = judge(replace(CLEAR, unanswered=more))
    assert cost.verdict == "cost"
    assert [(reason.kind, reason.n) for reason in cost.reasons[1:]] == [(ReasonKind.OPEN_ADD, 9)]
    less = Unanswered(0, 0.4, 0.0, -5.0)
    assert judge(replace(CLEAR, unanswered=less)).verdict == "inconclusive"
    often = Unanswered(20, 1e-4, 10.0, 0.001)
    assert judge(replace(EQUIVALENT, unanswered=often)).verdict == "inconclusive"
    corrected = replace(OPEN, body=Estimate(0.3, 0.13, 0.05, 0.55), p=0.08)
    for evidence in (OPEN, corrected, replace(EQUIVALENT, tail_bound=1.26)):
        assert kinds(replace(evidence, unanswered=often)) == [ReasonKind.OPEN_COULD_EXPLAIN]
    nothing = Unanswered(1, 1.0, 10.0, 0.001)
    for evidence in (EQUIVALENT, CLEAR, GAIN):
        assert judge(replace(evidence, unanswered=nothing)) == judge(evidence)


@pytest.mark.parametrize("length", [60.0, 100.0, 350.0])
def test_what_is_open_counts_for_its_whole_length_on_average(length: float) -> None:
    """At a random moment every age up to the length is as likely."""
    ages = (np.arange(10_000) + 0.5) / 10_000 * length
    left = np.ones(len(ages), dtype=np.bool_)
    assert below(ages, left, 100.0).mean() == pytest.approx(min(length, 100), rel=1e-3)
    assert above(ages, left, 100.0).mean() == pytest.approx(max(length - 100, 0), rel=1e-3)
    answered, times = np.array([False]), np.array([length])
    assert below(times, answered, 100.0) == min(length, 100)
    assert above(times, answered, 100.0) == max(length - 100, 0)


def test_a_transaction_that_is_open_counts_in_its_block() -> None:
    design = design_of(3)
    obs = simulate(design, 40, stalls=0)
    last = int(np.flatnonzero(obs["position"] >= 8)[-1])
    obs = obs[: last + 1]
    obs["flags"][last], obs["service_ns"][last] = int(UnitFlag.OPEN), 10**9
    arm = int(obs["arm"][last])
    selection = select(obs, design)
    assert selection.later.units.open.tolist() == [False] * (len(selection.later.units.arm) - 1) + [
        True
    ]
    assert selection.later.units.body(100.0)[-1] == 100
    # as much again is still to come, on average
    assert selection.later.units.excess(100.0)[-1] == 2e6 - 100
    left = unanswered_in_runs(obs, design, selection.used)
    assert [u.n for u in left] == [int(k == arm) for k in range(3)]
    assert left[arm].longest_us == 1e6
    assert analyse(obs, design).arms[arm].open == 1


def failed_runs(design: Design, obs: Observations, failed: np.ndarray) -> FailedRuns:
    rows = obs.copy()
    rows["flags"][failed] |= int(UnitFlag.ABORTED)
    return select(rows, design).failed


def test_runs_with_a_failure_are_what_is_counted() -> None:
    """By hand: an exact test of the runs' labels in each block."""
    design = design_of(3)
    obs = simulate(design, 30, stalls=0)
    failed = (obs["arm"] == 2) & (obs["position"] == 3) & (obs["block"] < 6)
    failed |= (obs["arm"] == 0) & (obs["position"] < 9) & (obs["block"] == 7)
    found = failed_runs(design, obs, failed)
    assert found.p(2) == pytest.approx(2 * (1 + 7) / 2**7)  # 6 or more of 7 runs
    assert found.p(1) == 1.0


def test_frequent_failures_are_compared_by_their_rates() -> None:
    design = design_of(2)
    obs = simulate(design, 300, stalls=0)
    rng = np.random.default_rng(1)
    alike = rng.random(len(obs)) < 0.2
    assert failed_runs(design, obs, alike).p(1) > 0.01
    more = alike | ((obs["arm"] == 1) & (rng.random(len(obs)) < 0.05))
    assert failed_runs(design, obs, more).p(1) < 1e-4


def test_a_top_that_does_not_vary_has_no_interval_in_percent_either() -> None:
    bottom = Expansion(100.0, np.linspace(-1, 1, 40))
    found = fieller(Expansion(5.0, np.zeros(40)), bottom, Reference(40, 39))
    assert found.estimate == 0.05
    assert math.isnan(found.lo)
    assert math.isnan(found.hi)


def test_open_transactions_of_an_arm_that_hangs_are_too_many() -> None:
    rng = np.random.default_rng(3)
    design = simulated.design_of(1, 3)
    hangs = simulated.Effect(lambda x: x + 1e7 * (rng.random(len(x)) < 0.01))
    sessions = [simulated.Session(simulated.lognormal(2_000, rng), life_us=2e5) for _ in range(40)]
    obs = simulated.simulate(sessions, design, {1: hangs}).observations
    left = unanswered_in_runs(obs, design, select(obs, design).used)
    assert left[1].n > 30
    assert left[1].p < 1e-6
    assert left[1].imputed_us > 1_000
    arm = analyse(obs, design, proven={"i1": True}).arms[1]
    assert arm.answer is not None
    assert arm.answer.verdict not in ("gain", "equivalent")


def withheld_as_open(found: TrialEstimate) -> bool:
    answer = found.arms[2].answer
    assert answer is not None
    return answer.because(ReasonKind.OPEN_COULD_EXPLAIN, ReasonKind.OPEN_ADD) is not None


@pytest.mark.slow
def test_what_the_end_of_a_trial_in_slices_leaves_open_is_nobody_s_fault() -> None:
    """All sessions are in the same slice then; what began long before is held against its arm."""
    design = sliced(3, seed=51)
    obs = slices_simulated(design, 60, levels_us=(300.0,) * 9)
    ends = list(itertools.islice(slice_ends(design), 180))
    end = ends[176] - 1_000_000
    obs = obs[obs["start_ns"] < end].copy()
    over = obs["start_ns"] + obs["service_ns"] > end
    obs["service_ns"][over] = end - obs["start_ns"][over]
    obs["flags"][over] |= int(UnitFlag.OPEN)
    found = analyse(obs, design, margin=0.1, proven={"i2": True})
    assert sum(arm.open for arm in found.arms) == over.sum() >= 7
    assert not withheld_as_open(found)
    early = np.flatnonzero((obs["slice"] < 150) & (obs["arm"] == 2))[:12]
    obs["flags"][early] |= int(UnitFlag.OPEN)
    obs["service_ns"][early] = end - obs["start_ns"][early]
    found = analyse(obs, design, margin=0.1, proven={"i2": True})
    assert withheld_as_open(found)


def test_aborted_units_are_counted_by_arm() -> None:
    design = design_of(3)
    obs = simulate(design, 60, stalls=0)
    runs = np.flatnonzero((obs["arm"] == 2) & (obs["position"] == 9) & (obs["block"] < 50))
    obs["flags"][runs[:20]] = int(UnitFlag.ABORTED)
    found = analyse(obs, design, proven={"i2": True})
    assert [arm.aborted for arm in found.arms] == [0, 0, 20]
    obs["flags"] |= int(UnitFlag.ABORTED)  # those that are in no figure as well
    assert all(arm.aborted == arm.n for arm in analyse(obs, design, proven={"i2": True}).arms)
    assert found.arms[1].p_aborted == 1.0
    assert found.arms[2].p_aborted is not None
    assert found.arms[2].p_aborted < 1e-4
    assert found.arms[2].answer is not None
    assert found.arms[2].answer.because(ReasonKind.FAILURES_DIFFER) is not None


def test_a_control_without_a_p_value_withholds() -> None:
    """It is there by design, so that it says nothing is no reason to do without it."""
    asked = Question(design_of(3), 0.005, {}, False, "")
    tests = asked.tests([NAN, NAN, 0.03], [NAN, NAN, NAN])
    control = asked.control(tests, lambda arm: (NAN, NAN))
    assert control is not None
    for evidence in (EQUIVALENT, CLEAR, GAIN):
        assert judge(replace(evidence, control=control)).verdict == "inconclusive"
        assert kinds(replace(evidence, control=control)) == [ReasonKind.CONTROL_UNKNOWN]
    assert kinds(replace(CLEAR, blocks=10, control=control)) == [ReasonKind.FEW_BLOCKS]
    alone = Design((Arm("base", "base"), Arm("i1", "instrument")), (0, 1), 1)
    assert replace(asked, design=alone).control(tests, lambda arm: (NAN, NAN)) is None
