"""Intervals, tests, the confidence sequence, and the order of verdicts."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pgtare.estimate import sequential
from pgtare.estimate.inference import (
    Expansion,
    Reference,
    detectable,
    effect_factor,
    holm,
    mean_of_blocks,
    ratio_interval,
    tail_factor,
)
from pgtare.estimate.trial import Estimate, randomisation, width_reached
from pgtare.estimate.trial.blocks import Blocks, by_arm, select
from pgtare.estimate.trial.verdict import MIN_BLOCKS, judge
from tests.unit.estimate_textbook import block_differences, design_of, simulate, usable_blocks
from tests.unit.sample_evidence import CLEAR, DEAR, EQUIVALENT, OPEN

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


@pytest.mark.parametrize(("blocks", "ratio"), [(100_000, 1.55), (10_000, 1.97)])
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
    assert width_reached([0.1, 0.3], 0.3, 2_000, 10.0)
    assert not width_reached([0.1, 0.31], 0.3, 2_000, 10.0)
    assert not width_reached([0.1], 0.3, 1_999, 10.0)
    assert not width_reached([0.1], 0.3, 2_000, 9.9)
    assert not width_reached([0.1, NAN], 0.3, 2_000, 10.0)
    assert not width_reached([], 0.3, 2_000, 10.0)


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
    reference = Reference(10**7, 10**7)
    assert detectable(1.0, 1, reference) == pytest.approx(1.95996 + 0.84162, abs=1e-4)
    assert detectable(1.0, 5, reference) == pytest.approx(2.57583 + 0.84162, abs=1e-4)


MANY = Reference(10**7, 10**7)


def normal(estimate: float, se: float) -> Estimate:
    return MANY.interval(estimate, se)


def test_equivalence_needs_the_stated_width() -> None:
    """A margin of 0.5 % is reached at 80 % power with a half-width of 0.33 %."""
    factor = effect_factor(normal(0.0, 0.335 / 1.96), 0.5, 1, MANY)
    assert factor == pytest.approx(1, abs=0.01)
    twice = normal(0.0, 2 * 0.335 / 1.96)
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
    wanted = 0.5 / (sequential.multiplier(100_000, 0.10) + 1.28155)
    assert factor == pytest.approx((0.3 / wanted) ** 2, rel=1e-4)
    assert factor > 1.5 * effect_factor(interval, 0.5, 1, MANY)


def test_tail_needs_a_rate_below_the_tolerance() -> None:
    assert tail_factor(0.1, 0.1, MANY) == math.inf
    assert tail_factor(-0.1, 0.1 / 2.4865, MANY) == pytest.approx(1, abs=1e-3)
    assert math.isnan(tail_factor(NAN, 0.1, MANY))
    assert math.isnan(tail_factor(-0.1, NAN, MANY))


def blocks_of(x: np.ndarray, slots: np.ndarray, block: tuple[int, ...]) -> Blocks:
    """Blocks with these values in these slots of arms, of one backend."""
    return by_arm(
        arm=slots,
        service_us=x,
        cpu_us=x,
        previous=np.full((2, *x.shape), -1),
        backend=np.zeros(len(x), dtype=np.int64),
        block=block,
    )


def two_arms(differences: list[float]) -> Blocks:
    n = len(differences)
    values = np.stack([np.zeros(n), np.array(differences)], axis=1)
    return blocks_of(values, np.tile([0, 1], (n, 1)), (0, 1))


def test_sign_flips_equal_their_enumeration() -> None:
    differences = [3.0, 1.0, -0.5, 2.0, 4.0, 0.7, -1.2, 2.2]
    blocks = two_arms(differences)
    observed = abs(sum(differences))
    all_flips = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True))) >= observed - 1e-9
        for signs in itertools.product((1, -1), repeat=8)
    ]
    found = randomisation.p_values(blocks, blocks.service_us, seed=1, draws=40_000)
    assert math.isnan(found[0])
    assert found[1] == pytest.approx(np.mean(all_flips), abs=0.005)


def test_two_base_slots_equal_the_enumeration_of_their_labels() -> None:
    """In every block, each of the three slots is as likely to be the arm's."""
    x = np.random.default_rng(7).lognormal(0, 1, (7, 3))
    x[:, 2] += 0.7

    def mean_difference(slots: tuple[int, ...]) -> float:
        own = sum(row[slot] for row, slot in zip(x, slots, strict=True))
        return float(own - (x.sum() - own) / 2)

    observed = abs(mean_difference((2,) * 7))
    extreme = [
        abs(mean_difference(slots)) >= observed - 1e-9
        for slots in itertools.product(range(3), repeat=7)
    ]
    blocks = blocks_of(x, np.tile([0, 0, 1], (7, 1)), (0, 0, 1))
    found = randomisation.p_values(blocks, x, seed=1, draws=40_000)
    assert found[1] == pytest.approx(np.mean(extreme), abs=0.005)


def test_randomisation_p_value_is_never_zero() -> None:
    blocks = two_arms([1.0] * 200)
    assert randomisation.p_values(blocks, blocks.service_us, seed=1)[1] == 1 / 2000


def test_randomisation_p_values_are_uniform_with_two_base_slots_and_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Skewed values, for which flipping signs against the mean of two bases is not exact."""
    monkeypatch.setattr(randomisation, "MAX_BATCHES", 10)
    rng = np.random.default_rng(5)
    found = []
    for seed in range(600):
        x = rng.lognormal(0, 1.5, (24, 3))
        blocks = blocks_of(x, np.tile([0, 0, 1], (24, 1)), (0, 0, 1))
        found.append(randomisation.p_values(blocks, x, seed=seed, draws=199)[1])
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=0.05)


def test_randomisation_p_values_are_uniform_under_a_trend_within_blocks() -> None:
    """Three arms twice a block, as weighings have them, and every block slower at its end."""
    rng = np.random.default_rng(5)
    found = []
    for seed in range(600):
        slots = rng.permuted(np.tile([0, 1, 2, 0, 1, 2], (40, 1)), axis=1)
        x = np.arange(6) + rng.normal(0, 0.1, (40, 6))
        blocks = blocks_of(x, slots, (0, 1, 2, 0, 1, 2))
        found.append(randomisation.p_values(blocks, blocks.service_us, seed=seed, draws=199)[1:])
    for level in (0.05, 0.2, 0.5):
        for share in np.mean(np.array(found) <= level, axis=0):
            assert share == pytest.approx(level, abs=0.035)


def test_randomisation_agrees_with_the_studentised_p() -> None:
    design = design_of(3)
    obs = simulate(design, 500, own=(0, 0, 0.4), stalls=0, seed=11)
    blocks = select(obs, design).blocks
    found = randomisation.p_values(blocks, blocks.service_us, seed=1)
    for arm in (1, 2):
        differences = block_differences(usable_blocks(obs, design), arm, float)
        z = np.mean(differences) / (np.std(differences) / math.sqrt(len(differences)))
        assert found[arm] == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), abs=0.03)


def test_verdicts() -> None:
    assert judge(EQUIVALENT).verdict == "equivalent"
    assert judge(CLEAR).verdict == "cost"
    gain = replace(CLEAR, body=Estimate(-2.0, 0.1, -2.2, -1.8))
    assert judge(gain).verdict == "gain"
    finding = judge(OPEN)
    assert (finding.verdict, finding.needed_s) == ("inconclusive", 180.0)


def test_not_verified_comes_first() -> None:
    for evidence in (EQUIVALENT, CLEAR, OPEN):
        finding = judge(replace(evidence, proven=False))
        assert (finding.verdict, finding.reason) == ("not_verified", "no proof that it ran")


def test_a_trial_that_ended_by_accident_says_why() -> None:
    for evidence in (EQUIVALENT, CLEAR, OPEN):
        finding = judge(replace(evidence, ended_early="the deadline had come"))
        assert finding.verdict == "not_verified"
        assert finding.reason == "the trial ended early: the deadline had come"


def test_equivalent_comes_before_cost_and_shows_the_sign() -> None:
    evidence = replace(EQUIVALENT, p=0.001, body=Estimate(0.2, 0.05, 0.1, 0.3))
    finding = judge(evidence)
    assert finding.verdict == "equivalent"
    assert "above zero" in finding.reason


def test_only_the_tail_stands_in_the_way() -> None:
    finding = judge(replace(EQUIVALENT, tail_bound=1.26))
    assert (finding.verdict, finding.reason) == ("inconclusive", "tail")
    assert finding.needed_s == 120.0
    assert judge(replace(EQUIVALENT, tail_bound=1.26, p=0.01)).verdict == "cost"
    never = judge(replace(EQUIVALENT, tail_bound=1.4, tail_factor=math.inf))
    assert never.needed_s is None


@pytest.mark.parametrize("dear", [{"excess": DEAR}, {"total": DEAR, "total_over": DEAR}])
def test_a_dear_tail_is_not_equivalent_however_seldom_it_strikes(dear: dict[str, Estimate]) -> None:
    finding = judge(replace(EQUIVALENT, **dear))  # type: ignore[arg-type]
    assert (finding.verdict, finding.reason) == ("inconclusive", "tail")
    assert finding.needed_s is None  # no more time makes it cheap


def test_a_total_above_zero_but_inside_the_margin_does_no_harm() -> None:
    total = Estimate(0.2, 0.05, 0.1, 0.3)
    within = replace(EQUIVALENT, total=total, total_over=Estimate(-0.15, 0.05, -0.25, -0.05))
    assert judge(within).verdict == "equivalent"
    assert judge(replace(within, excess=DEAR)).verdict == "inconclusive"


def test_a_total_of_the_other_sign_leaves_the_body_no_verdict() -> None:
    gain = replace(CLEAR, body=Estimate(-2.0, 0.1, -2.2, -1.8), total=DEAR, total_over=DEAR)
    cheap = replace(CLEAR, total=Estimate(-9.0, 1.0, -11.0, -7.0))
    for evidence in (gain, cheap):
        finding = judge(evidence)
        assert (finding.verdict, finding.reason) == ("inconclusive", "the tail outweighs the body")
    assert judge(replace(CLEAR, total=DEAR, total_over=DEAR)).verdict == "cost"


def test_time_to_equivalence_is_that_of_body_and_tail() -> None:
    assert judge(replace(OPEN, tail_factor=9.0)).needed_s == 480.0
    assert judge(replace(OPEN, tail_factor=math.inf)).needed_s is None
    assert judge(replace(OPEN, excess=DEAR)).needed_s is None
    # An effect distinct from zero heads for "cost", which no tail delays.
    evidence = replace(OPEN, body=Estimate(0.3, 0.13, 0.05, 0.55), p=0.08, tail_factor=9.0)
    assert judge(evidence).needed_s == 180.0


def test_correction_for_many_instruments_is_named() -> None:
    assert judge(OPEN).reason == "neither distinguished from zero nor shown to be inside the margin"
    decision = judge(replace(OPEN, body=Estimate(0.3, 0.13, 0.05, 0.55), p=0.08))
    assert decision.reason == (
        "not distinguished from zero after correction for 4 instruments, nor shown to be inside "
        "the margin"
    )


@pytest.mark.parametrize("side", ["under", "over"])
def test_equivalence_takes_both_sides(side: str) -> None:
    outside = {side: Estimate(0.0, 0.1, -0.01, 0.01)}
    assert judge(replace(EQUIVALENT, **outside)).verdict == "inconclusive"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "missing",
    [
        {"blocks": 0},
        {"blocks": MIN_BLOCKS - 1},
        {"body": Estimate(0.05, NAN, NAN, NAN)},
        {"under": Estimate(NAN, NAN, NAN, NAN)},
        {"over": Estimate(-0.3, 0.1, -0.4, NAN)},
        {"excess": Estimate(0.1, NAN, NAN, NAN)},
        {"total": Estimate(0.1, NAN, NAN, NAN), "total_over": Estimate(-0.2, NAN, NAN, NAN)},
        {"tail_bound": NAN},
        {"tail_bound": math.inf},
    ],
)
def test_what_is_missing_is_inconclusive(missing: dict[str, object]) -> None:
    assert judge(replace(EQUIVALENT, **missing)).verdict == "inconclusive"  # type: ignore[arg-type]


def test_a_missing_p_value_is_no_cost() -> None:
    assert judge(replace(CLEAR, p=NAN)).verdict == "inconclusive"
