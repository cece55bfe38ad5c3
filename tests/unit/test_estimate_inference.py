"""Intervals, tests, the confidence sequence, and the order of verdicts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pgtare.estimate import sequential
from pgtare.estimate.inference import (
    Estimate,
    Expansion,
    Reference,
    detectable,
    effect_factor,
    holm,
    mean_of_blocks,
    ratio_interval,
    tail_factor,
)
from pgtare.estimate.sequential import width_reached
from pgtare.estimate.trial.answer import ReasonKind
from pgtare.estimate.trial.verdict import Evidence, Settling, judge
from tests.unit.sample_evidence import CLEAR, DEAR, EQUIVALENT, GAIN, OPEN

NAN = math.nan


def test_holm_by_hand() -> None:
    """Sorted .005 x 4, .01 x 3, .03 x 2, .04 x 1 gives .02, .03, .06, and .06 kept monotone."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_counts_a_missing_p_value_in_the_family() -> None:
    adjusted = holm([0.02, NAN])
    assert adjusted[0] == pytest.approx(0.04)
    assert math.isnan(adjusted[1])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_reference_is_student_s_and_becomes_normal() -> None:
    assert Reference(5, 4).multiplier() == pytest.approx(2.776445, abs=1e-6)
    assert Reference(10**7, 10**7).multiplier() == pytest.approx(1.959964, abs=1e-5)
    assert Reference(5, 4).p_value(2.776445) == pytest.approx(0.05, abs=1e-6)
    assert math.isnan(Reference(1, 0).multiplier())
    assert math.isnan(Reference(50, 49).p_value(NAN))


def test_no_variance_gives_no_interval() -> None:
    found = mean_of_blocks(np.ones(100), Reference(100, 99))
    assert found.estimate == 1
    assert math.isnan(found.lo)


@pytest.mark.parametrize(("blocks", "ratio"), [(4_000, 1.55), (400, 1.97)])
def test_width_of_the_confidence_sequence(blocks: int, ratio: float) -> None:
    assert sequential.multiplier(blocks) / 1.96 == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("blocks", [100, 10_000, 10**6])
def test_sequential_p_value_inverts_the_sequence(blocks: int) -> None:
    edge = sequential.multiplier(blocks)
    assert sequential.p_value(edge, blocks) == pytest.approx(0.05)
    assert sequential.p_value(edge + 0.1, blocks) < 0.05
    assert sequential.p_value(0.0, blocks) == 1.0


def test_looking_often_does_not_fool_the_sequence() -> None:
    """Looks every 500 blocks up to 50,000: naive intervals err often, the sequence rarely."""
    rng = np.random.default_rng(1)
    looks = np.arange(500, 50_001, 500)
    sums = rng.normal(0, math.sqrt(500), (1_000, len(looks))).cumsum(axis=1)
    z = np.abs(sums) / np.sqrt(looks)
    naive = (z > 1.96).any(axis=1).mean()
    valid = (z > [sequential.multiplier(int(t)) for t in looks]).any(axis=1).mean()
    assert naive > 0.2
    assert valid < 0.05


def test_width_rule() -> None:
    assert width_reached([0.1, 0.3], 0.3, 100, 10.0)
    assert not width_reached([0.1, 0.31], 0.3, 100, 10.0)
    assert not width_reached([0.1], 0.3, 99, 10.0)
    assert not width_reached([0.1], 0.3, 100, 9.9)
    assert not width_reached([0.1, NAN], 0.3, 100, 10.0)
    assert not width_reached([], 0.3, 100, 10.0)


def test_fieller_matches_its_definition() -> None:
    """rho is in the interval where, and only where, top - rho * bottom may be zero."""
    rng = np.random.default_rng(3)
    shares = rng.normal(0, 0.05, (2, 40))
    shares -= shares.mean(axis=1, keepdims=True)
    top, bottom = Expansion(2.1, shares[0]), Expansion(1.9, shares[1])
    reference = Reference(40, 39)
    found = ratio_interval(top, bottom, reference)
    assert found.lo < 2.1 / 1.9 < found.hi
    for edge in (found.lo, found.hi):
        contrast = top + bottom.scaled(-edge)
        assert abs(contrast.value) / contrast.se == pytest.approx(reference.multiplier())


def test_fieller_of_a_denominator_near_zero_is_unbounded() -> None:
    shares = np.array([0.5, -0.5] * 10)
    found = ratio_interval(Expansion(1, shares), Expansion(1, shares[::-1]), Reference(20, 19))
    assert found.hi == math.inf
    nothing = ratio_interval(Expansion(0, shares * 0), Expansion(0, shares * 0), Reference(20, 19))
    assert math.isnan(nothing.hi)


def test_detectable_effect() -> None:
    interval = Reference(10**7, 10**7).interval(3.0, 1.0)
    assert detectable(interval) == pytest.approx(1.95996 + 0.84162, abs=1e-4)
    assert detectable(interval) == pytest.approx(1.43 * interval.half_width, rel=1e-3)
    few = Reference(4, 3).interval(3.0, 1.0)
    assert detectable(few) == pytest.approx(1.43 * few.half_width, rel=1e-3)


MANY = Reference(10**7, 10**7)


def normal(estimate: float, se: float) -> Estimate:
    return MANY.interval(estimate, se)


def test_equivalence_needs_the_stated_width() -> None:
    """A margin of 0.5 % is reached at 80 % power with a half-width of 0.30 %."""
    factor = effect_factor(normal(0.0, 0.3023 / 1.96), 0.5, 1, MANY)
    assert factor == pytest.approx(1, abs=0.01)
    twice = normal(0.0, 2 * 0.3023 / 1.96)
    assert effect_factor(twice, 0.5, 1, MANY) == pytest.approx(4, abs=0.04)


@pytest.mark.parametrize("noise", [-0.6, -0.3, 0.3, 0.6])
def test_an_estimate_that_is_mostly_noise_promises_nothing(noise: float) -> None:
    """Where the interval covers zero, the time needed does not depend on where the noise fell."""
    found = effect_factor(normal(noise, 0.335), 0.5, 3, MANY)
    assert found == effect_factor(normal(0.0, 0.335), 0.5, 3, MANY) > 3.8


def test_an_effect_distinguished_from_zero_needs_no_margin() -> None:
    found = normal(2.0, 2.0 / 2.8016)
    assert effect_factor(found, 0.5, 1, MANY) == pytest.approx(1, abs=1e-3)
    assert effect_factor(found, 0.5, 5, MANY) == pytest.approx((3.4175 / 2.8016) ** 2, abs=1e-3)
    assert effect_factor(normal(0.0, 1.0), 0.0, 1, MANY) == math.inf
    assert math.isnan(effect_factor(Estimate(NAN, NAN, NAN, NAN), 0.5, 1, MANY))


def test_who_peeked_needs_longer() -> None:
    peeked = Reference(100_000, 10**9, peeked=True)
    interval = peeked.interval(0.1, 0.3)
    factor = effect_factor(interval, 0.5, 1, peeked)
    wanted = 0.5 / (sequential.multiplier(100_000, 0.05) + 1.28155)
    assert factor == pytest.approx((0.3 / wanted) ** 2, rel=1e-4)
    assert factor > 1.5 * effect_factor(interval, 0.5, 1, MANY)


def test_tail_needs_a_rate_below_the_tolerance() -> None:
    assert tail_factor(0.1, 0.1, MANY) == math.inf
    assert tail_factor(-0.1, 0.1 / 2.4865, MANY) == pytest.approx(1, abs=1e-3)
    assert math.isnan(tail_factor(NAN, 0.1, MANY))
    assert math.isnan(tail_factor(-0.1, NAN, MANY))


def test_verdicts() -> None:
    assert judge(EQUIVALENT).verdict == "equivalent"
    assert judge(CLEAR).verdict == "cost"
    assert judge(GAIN).verdict == "gain"
    finding = judge(OPEN)
    assert (finding.verdict, finding.needed_s) == ("inconclusive", 180.0)


def kinds(evidence: Evidence) -> list[ReasonKind]:
    return [reason.kind for reason in judge(evidence).reasons]


def test_not_verified_comes_first() -> None:
    for evidence in (EQUIVALENT, CLEAR, OPEN):
        assert judge(replace(evidence, proven=False)).verdict == "not_verified"
        assert kinds(replace(evidence, proven=False)) == [ReasonKind.NO_PROOF]


def test_a_trial_that_ended_by_accident_says_why() -> None:
    for evidence in (EQUIVALENT, CLEAR, OPEN):
        finding = judge(replace(evidence, ended_early="the deadline had come"))
        assert finding.verdict == "not_verified"
        assert finding.reasons[0].text == "the deadline had come"


def test_equivalent_comes_before_cost() -> None:
    evidence = replace(EQUIVALENT, p=0.001, body=Estimate(0.2, 0.05, 0.1, 0.3))
    assert judge(evidence).verdict == "equivalent"


def test_only_the_tail_stands_in_the_way() -> None:
    finding = judge(replace(EQUIVALENT, tail_bound=1.26))
    assert (finding.verdict, finding.needed_s) == ("inconclusive", 120.0)
    assert kinds(replace(EQUIVALENT, tail_bound=1.26)) == [ReasonKind.TAIL_OPEN]
    assert judge(replace(EQUIVALENT, tail_bound=1.26, p=0.01)).verdict == "cost"
    never = judge(replace(EQUIVALENT, tail_bound=1.4, tail_factor=math.inf))
    assert never.needed_s is None


@pytest.mark.parametrize("dear", [{"excess": DEAR}, {"total": DEAR}])
def test_a_dear_tail_is_not_equivalent_however_seldom_it_strikes(dear: dict[str, Estimate]) -> None:
    evidence = replace(EQUIVALENT, **dear)  # type: ignore[arg-type]
    assert kinds(evidence) == [ReasonKind.TAIL_OPEN]
    assert judge(evidence).needed_s is None  # no more time makes it cheap


def test_a_total_above_zero_but_inside_the_margin_does_no_harm() -> None:
    within = replace(EQUIVALENT, total=Estimate(0.2, 0.05, 0.1, 0.3))
    assert judge(within).verdict == "equivalent"
    assert judge(replace(within, excess=DEAR)).verdict == "inconclusive"


def test_a_total_of_the_other_sign_leaves_the_body_no_verdict() -> None:
    cheap = replace(CLEAR, total=Estimate(-9.0, 1.0, -11.0, -7.0))
    for evidence in (replace(GAIN, total=DEAR), cheap):
        assert judge(evidence).verdict == "inconclusive"
        assert kinds(evidence) == [ReasonKind.TAIL_OUTWEIGHS]
    assert judge(replace(CLEAR, total=DEAR)).verdict == "cost"


def test_time_to_equivalence_is_that_of_body_and_tail() -> None:
    assert judge(replace(OPEN, tail_factor=9.0)).needed_s == 480.0
    assert judge(replace(OPEN, tail_factor=math.inf)).needed_s is None
    assert judge(replace(OPEN, excess=DEAR)).needed_s is None
    # An effect distinct from zero heads for "cost", which no tail delays.
    evidence = replace(OPEN, body=Estimate(0.3, 0.13, 0.05, 0.55), p=0.08, tail_factor=9.0)
    assert judge(evidence).needed_s == 180.0


def test_why_an_interval_that_misses_zero_is_no_cost() -> None:
    assert kinds(OPEN) == [ReasonKind.COVERS_ZERO]
    corrected = replace(OPEN, body=Estimate(0.3, 0.13, 0.05, 0.55), p=0.08)
    assert kinds(corrected) == [ReasonKind.CORRECTED]
    assert judge(corrected).reasons[0].n == 4


@pytest.mark.parametrize(("lo", "hi"), [(-0.36, 0.1), (-0.1, 0.36), (-0.35, 0.1), (-0.1, 0.35)])
def test_equivalence_takes_both_sides(lo: float, hi: float) -> None:
    """Both ends of the printed interval lie inside the margin, not on it."""
    assert judge(replace(EQUIVALENT, body=Estimate(0.0, 0.1, lo, hi))).verdict == "inconclusive"
    inside = Estimate(0.0, 0.1, 0.99 * max(lo, -0.35), 0.99 * min(hi, 0.35))
    assert judge(replace(EQUIVALENT, body=inside)).verdict == "equivalent"


@pytest.mark.parametrize(
    "missing",
    [
        {"blocks": 0},
        {"blocks": EQUIVALENT.least_blocks - 1},
        {"body": Estimate(0.05, NAN, NAN, NAN)},
        {"body": Estimate(0.05, 0.1, -0.1, NAN)},
        {"margin_us": NAN},
        {"excess": Estimate(0.1, NAN, NAN, NAN)},
        {"total": Estimate(0.1, NAN, NAN, NAN)},
        {"tail_bound": NAN},
        {"tail_bound": math.inf},
    ],
)
def test_what_is_missing_is_inconclusive(missing: dict[str, object]) -> None:
    assert judge(replace(EQUIVALENT, **missing)).verdict == "inconclusive"  # type: ignore[arg-type]


def test_a_missing_p_value_is_no_cost() -> None:
    assert judge(replace(CLEAR, p=NAN)).verdict == "inconclusive"


def test_a_cost_that_still_changes_is_a_bound_and_nothing_is_none_over() -> None:
    grows = Settling(later_less_earlier=0.5, p=1e-4, family=4)
    assert kinds(replace(CLEAR, settling=grows)) == [ReasonKind.DIFFERS, ReasonKind.GROWS]
    shrinks = replace(grows, later_less_earlier=-0.5)
    assert kinds(replace(CLEAR, settling=shrinks)) == [ReasonKind.DIFFERS, ReasonKind.SHRINKS]
    assert kinds(replace(GAIN, settling=shrinks)) == [ReasonKind.DIFFERS, ReasonKind.GROWS]
    assert kinds(replace(EQUIVALENT, settling=grows)) == [ReasonKind.UNSETTLED]
    assert kinds(replace(OPEN, settling=grows)) == [ReasonKind.COVERS_ZERO, ReasonKind.UNSETTLED]
    assert judge(replace(OPEN, settling=grows)).needed_s is None
    # one in a hundred over all instruments
    unsure = replace(grows, p=0.003)
    assert judge(replace(EQUIVALENT, settling=unsure)).verdict == "equivalent"
    assert not replace(grows, p=NAN).changes
