"""Failed transactions, those that were still open, and the bounds of percentages."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pgtare.estimate.inference import Expansion, Reference, fieller, holm
from pgtare.estimate.trial import Estimate, analyse
from pgtare.estimate.trial.analysis_request import BODY_SHARE, Question
from pgtare.estimate.trial.blocks import select
from pgtare.estimate.trial.design import Arm, Design, slice_ends
from pgtare.estimate.trial.effects import split
from pgtare.estimate.trial.observations import UnitFlag
from pgtare.estimate.trial.outcomes import (
    Failures,
    Unanswered,
    Unfinished,
    rate_p,
    unanswered_in_blocks,
    unfinished,
)
from pgtare.estimate.trial.verdict import Control, judge
from tests.unit.estimate_textbook import design_of, simulate
from tests.unit.sample_evidence import CLEAR, DEAR, EQUIVALENT
from tests.unit.simulated_runs import lognormal, trial, weighing
from tests.unit.slices_textbook import saturation, sliced
from tests.unit.slices_textbook import simulate as slices_simulated

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
    asked = Question(design_of(3), 0.005, {}, False, "", 1)
    alone = asked.tests([NAN, 0.5, 0.03], [NAN, NAN, NAN])
    assert alone[2].body == 0.03
    both = asked.tests([NAN, 0.5, 0.03], [NAN, 0.4, 0.9])
    assert both[2].body == pytest.approx(0.03 / BODY_SHARE)
    assert both[1].smallest == pytest.approx(0.5 / BODY_SHARE)  # the control is alone


def test_a_total_above_zero_is_a_cost_whatever_the_body_is() -> None:
    unlike = replace(EQUIVALENT, total=DEAR, total_over=DEAR, excess=DEAR, p_total=1e-6)
    assert judge(unlike).verdict == "cost"
    assert judge(replace(unlike, p_total=0.06)).verdict == "inconclusive"
    gain = replace(CLEAR, body=Estimate(-2.0, 0.1, -2.2, -1.8))
    assert judge(replace(gain, total=DEAR, total_over=DEAR, p_total=1e-6)).verdict == "cost"
    cheap = Estimate(-9.0, 1.0, -11.0, -7.0)
    assert judge(replace(EQUIVALENT, over=DEAR, total=cheap, p_total=1e-6)).verdict == "gain"
    assert judge(replace(CLEAR, total=cheap, p_total=1e-6)).verdict == "inconclusive"


GAIN = replace(
    CLEAR,
    body=Estimate(-2.0, 0.1, -2.2, -1.8),
    under=Estimate(-1.65, 0.1, -1.81, -1.49),
    over=Estimate(-2.35, 0.1, -2.51, -2.19),
)


@pytest.mark.parametrize("evidence", [EQUIVALENT, CLEAR, GAIN])
def test_a_control_that_is_off_withholds_every_verdict(evidence) -> None:  # type: ignore[no-untyped-def]
    finding = judge(replace(evidence, control=Control(1e-4, 0.01, 0.01)))
    assert finding.verdict == "inconclusive"
    assert "the control, the base measured again, is off" in finding.reason
    fine = judge(replace(evidence, control=Control(0.2, 5.0, 5.0)))
    assert fine.verdict == judge(evidence).verdict
    # missed by as little as one good trial in twenty: only what it could explain
    assert judge(replace(evidence, control=Control(0.01, 0.1, 0.1))).verdict == fine.verdict
    large = judge(replace(evidence, control=Control(0.01, -1.9, 0.1)))
    assert (large.verdict, "enough to explain it" in large.reason) == ("inconclusive", True)


@pytest.mark.parametrize("evidence", [EQUIVALENT, CLEAR, GAIN])
def test_failures_that_differ_withhold_every_verdict(evidence) -> None:  # type: ignore[no-untyped-def]
    finding = judge(replace(evidence, failures=Failures(50, 1e-9, 0.05, 0.0, -0.01)))
    assert finding.verdict == "inconclusive"
    assert "fail more often than the base's (5 % against 0 %, p = 1e-09)" in finding.reason
    alike = Failures(50, 0.5, 0.05, 0.049, -0.01)
    assert judge(replace(evidence, failures=alike)).verdict == judge(evidence).verdict
    few = judge(replace(evidence, failures=Failures(5, 0.06, 0.01, 0.0, -1.5)))
    assert (few.verdict, "could explain it" in few.reason) == ("inconclusive", True)


def test_open_transactions_withhold_what_they_could_explain() -> None:
    more = Unanswered(9, 0.4, 1e6, 5.0)
    assert judge(replace(EQUIVALENT, unanswered=more)).verdict == "inconclusive"
    assert judge(replace(GAIN, unanswered=more)).verdict == "inconclusive"
    cost = judge(replace(CLEAR, unanswered=more))
    assert cost.verdict == "cost"
    assert "9 still open at the end, so it may cost more" in cost.reason
    less = Unanswered(0, 0.4, 0.0, -5.0)
    assert judge(replace(CLEAR, unanswered=less)).verdict == "inconclusive"
    often = Unanswered(20, 1e-4, 10.0, 0.001)
    assert judge(replace(EQUIVALENT, unanswered=often)).verdict == "inconclusive"
    nothing = Unanswered(1, 1.0, 10.0, 0.001)
    for evidence in (EQUIVALENT, CLEAR, GAIN):
        assert judge(replace(evidence, unanswered=nothing)) == judge(evidence)


def test_an_open_unit_is_in_no_block_and_counted() -> None:
    design = design_of(3)
    obs = simulate(design, 200, stalls=0)
    last = len(obs) - 1
    obs["flags"][last] = int(UnitFlag.OPEN)
    obs["service_ns"][last] = 10**9
    arm = int(obs["arm"][last])
    selection = select(obs, design)
    assert selection.blocks.n == 199
    assert selection.discarded["incomplete"] == 1
    assert selection.blocks.service_us.max() < 1_000
    left = unanswered_in_blocks(obs, design, selection.used)
    assert [u.n for u in left] == [int(k == arm) for k in range(3)]
    assert left[arm].longest_us == 1e6
    begun = unfinished(obs, design)
    assert sorted(begun.arm.tolist()) == [0, 1, 2]
    open_us = begun.service_us == 1e6
    assert begun.open.tolist() == open_us.tolist()
    assert begun.body(100.0)[open_us] == 100
    assert begun.excess(100.0)[open_us] == 2e6 - 100  # as much again is still to come, on average
    found = analyse(obs, design, proven={"i2": True}, seed=1)
    assert found.arms[arm].open == 1
    whole = simulate(design, 200, stalls=0)
    assert not len(unfinished(whole, design).arm)


@pytest.mark.parametrize("length", [60.0, 100.0, 350.0])
def test_what_is_open_counts_for_its_whole_length_on_average(length: float) -> None:
    """At a random moment every age up to the length is as likely."""
    ages = (np.arange(10_000) + 0.5) / 10_000 * length
    zeros = np.zeros(len(ages), dtype=np.int64)
    left = Unfinished(zeros, zeros, ages, np.ones(len(ages), dtype=np.bool_))
    assert left.body(100.0).mean() == pytest.approx(min(length, 100), rel=1e-3)
    assert left.excess(100.0).mean() == pytest.approx(max(length - 100, 0), rel=1e-3)
    answered = Unfinished(zeros[:1], zeros[:1], np.array([length]), np.array([False]))
    assert answered.body(100.0) == min(length, 100)
    assert answered.excess(100.0) == max(length - 100, 0)


def test_units_under_way_are_compared_at_their_session_s_level() -> None:
    """A slow session that ends within a block would else tip the scale to one of the arms."""
    design = design_of(2)
    obs = simulate(design, 100, backends=2, stalls=0)
    slow = np.flatnonzero(obs["backend"] == 1)
    obs["service_ns"][slow] *= 1_000
    obs["flags"][slow[-1]] = int(UnitFlag.OPEN)
    blocks, left = select(obs, design).blocks, unfinished(obs, design)
    found = split(blocks, (0,))
    found = replace(found, c=math.inf, unfinished=left)
    without = replace(found, unfinished=None)
    shift = found.body_cost(1) - without.body_cost(1)
    assert len(left.arm) == len(design.block)
    assert abs(shift.value) < 0.02 * float(blocks.service_us.mean())


def test_a_top_that_does_not_vary_has_no_interval_in_percent_either() -> None:
    bottom = Expansion(100.0, np.linspace(-1, 1, 40))
    found = fieller(Expansion(5.0, np.zeros(40)), bottom, Reference(40, 39))
    assert found.estimate == 0.05
    assert math.isnan(found.lo)
    assert math.isnan(found.hi)


def test_open_units_in_runs_are_not_held_against_those_of_blocks() -> None:
    """Half of all runs are the base's, so that far more of the open units are."""
    design = weighing(10)
    obs = trial(design, (3_000,) * 40, lognormal, np.random.default_rng(3))
    last = np.flatnonzero(np.diff(obs["backend"], append=-1))
    flags = obs["flags"]
    flags[last] = int(UnitFlag.OPEN)
    obs["arm"][last] = np.arange(40) % 10
    in_runs = np.flatnonzero(flags & UnitFlag.RUN != 0)[:60]
    flags[in_runs] |= int(UnitFlag.OPEN)
    obs["arm"][in_runs] = 0
    left = unanswered_in_blocks(obs, design, select(obs, design).used)
    assert [u.n for u in left] == [64, *[4] * 9]
    assert min(u.p for u in left[1:]) > 0.05
    assert max(abs(u.imputed_us) for u in left) < 2


def test_what_the_end_of_a_trial_in_slices_leaves_open_is_nobody_s_fault() -> None:
    """All sessions are in the same slice then; what began long before is held against its arm."""
    design = sliced(3, seed=51)
    obs = slices_simulated(design, 60, levels_us=(300.0,) * 16)
    ends = list(itertools.islice(slice_ends(design), 180))
    end = ends[176] - 1_000_000
    obs = obs[obs["start_ns"] < end].copy()
    over = obs["start_ns"] + obs["service_ns"] > end
    obs["service_ns"][over] = end - obs["start_ns"][over]
    obs["flags"][over] |= int(UnitFlag.OPEN)
    found = analyse(obs, design, margin=0.03, proven={"i2": True}, seed=1)
    assert sum(arm.open for arm in found.arms) == over.sum() >= 15
    assert "open" not in found.arms[2].verdict_reason
    early = np.flatnonzero((obs["slice"] < 150) & (obs["arm"] == 2))[:12]
    obs["flags"][early] |= int(UnitFlag.OPEN)
    obs["service_ns"][early] = end - obs["start_ns"][early]
    found = analyse(obs, design, margin=0.03, proven={"i2": True}, seed=1)
    assert "open" in found.arms[2].verdict_reason


def test_mixed_slices_leave_no_block_under_way() -> None:
    """What follows a slice of one arm is in no block, and has no number of one."""
    design = saturation()
    obs = slices_simulated(design, 1, levels_us=(20_000.0,) * 4)
    assert not len(unfinished(obs, design).arm)


def test_aborted_units_are_counted_by_arm() -> None:
    design = design_of(3)
    obs = simulate(design, 400, stalls=0)
    obs["flags"][np.flatnonzero(obs["arm"] == 2)[1:21]] = int(UnitFlag.ABORTED)
    found = analyse(obs, design, proven={"i2": True}, seed=1)
    assert [arm.aborted for arm in found.arms] == [0, 0, 20]
    assert found.arms[1].p_aborted == 1.0
    assert found.arms[2].p_aborted is not None
    assert found.arms[2].p_aborted < 1e-4
    assert "fail more often" in found.arms[2].verdict_reason


def test_a_control_without_a_p_value_withholds() -> None:
    """It is there by design, so that it says nothing is no reason to do without it."""
    asked = Question(design_of(3), 0.005, {}, False, "", 1)
    tests = asked.tests([NAN, NAN, 0.03], [NAN, NAN, NAN])
    control = asked.control(tests, lambda arm: (NAN, NAN))
    assert control is not None
    for evidence in (EQUIVALENT, CLEAR, GAIN):
        finding = judge(replace(evidence, control=control))
        assert finding.verdict == "inconclusive"
        assert finding.reason == "the control, the base measured again, could not be judged"
    few = judge(replace(CLEAR, blocks=10, control=control))
    assert "blocks" in few.reason
    alone = Design((Arm("base", "base"), Arm("i1", "instrument")), (0, 1), 1)
    assert replace(asked, design=alone).control(tests, lambda arm: (NAN, NAN)) is None
