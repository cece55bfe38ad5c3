"""Effects: equal to the textbook's, recovered where injected, and invariant where they must be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtare.estimate.inference import Reference
from pgtare.estimate.trial import Estimate, analyse, quantiles
from pgtare.estimate.trial.blocks import Blocks, by_arm, select
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.effects import Effects, split
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.threshold import shared_threshold, threshold
from tests.unit.estimate_textbook import (
    block_differences,
    design_of,
    mean_and_se,
    regress,
    simulate,
    usable_blocks,
)

DESIGNS = {
    "two arms": design_of(2),
    "four arms": design_of(4),
    "base twice": design_of(3, block=(0, 1, 2, 0)),
    "every arm twice": design_of(3, block=(0, 1, 2, 0, 1, 2)),
}


def effects_of(obs: Observations, design: Design) -> Effects:
    blocks = select(obs, design).blocks
    return Effects(blocks, threshold(blocks.service_us))


def close(found: tuple[float, float], expected: tuple[float, float]) -> None:
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("n_blocks", [30, 70])
def test_equal_to_the_textbook(name: str, n_blocks: int) -> None:
    design = DESIGNS[name]
    obs = simulate(design, n_blocks, backends=2, stalls=0.02, own=(0, 3), carry=(0, 2))
    obs = np.delete(obs, np.random.default_rng(8).integers(0, len(obs), 5))
    blocks, plain = select(obs, design).blocks, usable_blocks(obs, design)
    # So low a threshold that there is an excess in so small a trial.
    effects = Effects(blocks, float(np.quantile(blocks.service_us, 0.95)))
    n_arms, c = len(design.arms), effects.c
    body = regress(plain, n_arms, lambda x: min(x, c))
    excess = regress(plain, n_arms, lambda x: max(x - c, 0))
    total = regress(plain, n_arms, lambda x: x)
    two_lags = regress(plain, n_arms, lambda x: min(x, c), lags=2)
    for arm in range(1, n_arms):
        found = effects.own(arm)
        close((found.value, found.se), body.effect(arm, 0))
        found = effects.carry_over(arm)
        close((found.value, found.se), body.effect(arm, 1))
        found = effects.body_cost(arm)
        close((found.value, found.se), body.effect(arm, 0, 1))
        found = effects.excess_cost(arm)
        close((found.value, found.se), excess.effect(arm, 0, 1))
        found = effects.total_cost(arm)
        close((found.value, found.se), total.effect(arm, 0, 1))
        found = effects.second_lag(arm)
        if len(design.block) > 2:
            close((found.value, found.se), two_lags.effect(arm, 2))
        else:
            # In blocks of two, the arm before the previous one follows from the other two.
            assert math.isnan(found.value)
        for values, outcome in (
            (effects.body, lambda x: min(x, c)),
            (effects.excess, lambda x: max(x - c, 0)),
            (effects.exceeds, lambda x: float(x > c)),
        ):
            simple = effects.plain(values, arm)
            close((simple.estimate, simple.se), mean_and_se(block_differences(plain, arm, outcome)))


def test_longer_blocks_are_less_misled_by_a_second_lag() -> None:
    """An effect two units on, which the headline has no term for, biases it."""
    bias = {}
    for block in ((0, 1, 2), (0, 1, 2, 0, 1, 2)):
        design = design_of(3, block=block)
        obs = simulate(design, 18_000 // len(block), stalls=0)
        obs["service_ns"][2:] += 50_000 * (obs["arm"][:-2] == 2)
        effects = effects_of(obs, design)
        bias[len(block)] = effects.body_cost(2).value / 50
        assert effects.second_lag(2).value == pytest.approx(50, abs=2)
    assert bias[3] == pytest.approx(-1.17, abs=0.15)
    assert bias[6] == pytest.approx(-0.43, abs=0.15)


def test_body_and_excess_add_up_in_microseconds_and_percent() -> None:
    design = design_of(3)
    trial = analyse(simulate(design, 400, own=(0, 0, 2)), design, seed=1)
    arm = trial.arms[2]
    assert arm.effect is not None
    assert arm.effect.body_pct.estimate == pytest.approx(
        100 * arm.effect.body_us.estimate / trial.baseline.body_mean_us
    )
    us, pct = arm.effect.total_us.estimate, arm.effect.total_pct.estimate
    assert us == pytest.approx(arm.effect.body_us.estimate + arm.effect.excess_us.estimate)
    assert pct == pytest.approx(100 * us / trial.baseline.body_mean_us)


def test_percent_follows_the_delta_method() -> None:
    design = design_of(2)
    effects = effects_of(simulate(design, 300, own=(0, 20), stalls=0.01), design)
    cost, base = effects.body_cost(1), effects.base_body
    covariance = (
        effects.blocks.n_clusters
        / (effects.blocks.n_clusters - 1)
        * np.cov(np.stack([cost.influence, base.influence]), ddof=0)
        * effects.blocks.n_clusters
    )
    gradient = np.array([1 / base.value, -cost.value / base.value**2])
    se = 100 * math.sqrt(gradient @ covariance @ gradient)
    assert effects.percent(cost).se == pytest.approx(se, rel=1e-9)


def test_one_stall_of_a_minute_moves_no_percentage_and_no_margin() -> None:
    design = design_of(3)
    obs = simulate(design, 4_000, own=(0, 0, 3.5), stalls=0)
    calm = analyse(obs, design, seed=1)
    stalled = obs.copy()
    stalled["service_ns"][np.flatnonzero((obs["arm"] == 0) & (obs["flags"] == 0))[7]] = 60 * 10**9
    found = analyse(stalled, design, seed=1)
    assert found.baseline.mean_us > 100 * calm.baseline.mean_us
    assert found.baseline.body_mean_us == pytest.approx(calm.baseline.body_mean_us, rel=1e-3)
    one, other = calm.arms[2].effect, found.arms[2].effect
    assert one is not None
    assert other is not None
    assert other.body_pct.estimate == pytest.approx(one.body_pct.estimate, rel=0.01)
    assert other.body_pct.estimate == pytest.approx(5, abs=0.5)
    assert found.mde_pct == pytest.approx(calm.mde_pct, rel=0.05)


def few_slow(n_base: int, n_arm: int) -> Effects:
    """Two arms with so many units over a threshold of 100 µs."""
    x = np.random.default_rng(1).uniform(60, 80, (4_000, 2))
    x[:n_base, 0] = 5_000
    x[-n_arm:, 1] = 5_000
    blocks = matrix(x)
    before = np.random.default_rng(2).integers(0, 2, (2, *x.shape))
    return Effects(replace(blocks, previous=before), 100.0)


@pytest.mark.parametrize(("n_base", "n_arm"), [(5, 34), (34, 5)])
def test_the_tail_has_no_interval_where_few_transactions_are_slow(n_base: int, n_arm: int) -> None:
    effects = few_slow(n_base, n_arm)
    for cost in (
        effects.excess_cost(1),
        effects.total_cost(1),
    ):
        found = effects.yardstick(1).tail_interval(cost)
        assert found.estimate == cost.value
        assert math.isnan(effects.yardstick(1).tail_percent(cost).lo)
        assert math.isnan(found.lo)
        assert math.isnan(found.hi)
        assert math.isnan(found.se)


def test_the_interval_of_the_tail_is_that_of_its_slow_transactions() -> None:
    effects = few_slow(5, 35)
    cost = effects.excess_cost(1)
    found = effects.yardstick(1).tail_interval(cost)
    # t with 19 df, or fewer: of so few slow ones some clusters hold several, and weigh more
    by_slow = replace(effects.by_cluster, df=min(effects.reference(cost).df, 19))
    assert found.half_width / found.se == pytest.approx(by_slow.multiplier())
    assert found.half_width / found.se > 2.0920
    many = few_slow(1_500, 1_500)
    cost = many.excess_cost(1)
    found = many.yardstick(1).tail_interval(cost)
    assert found.half_width / found.se == pytest.approx(many.reference(cost).multiplier())


def test_injected_effects_are_recovered() -> None:
    design = design_of(4)
    own, carry = (0, 0, 3.0, -1.0), (0, 0, 1.5, 0.5)
    obs = simulate(design, 6_000, backends=2, own=own, carry=carry, seed=5)
    effects = effects_of(obs, design)
    for arm in (1, 2, 3):
        for found, truth in (
            (effects.own(arm), own[arm]),
            (effects.carry_over(arm), carry[arm]),
            (effects.second_lag(arm), 0.0),
            (effects.body_cost(arm), own[arm] + carry[arm]),
            (effects.total_cost(arm), own[arm] + carry[arm]),
        ):
            interval = effects.interval(found, alpha=0.001)
            assert interval.lo < truth < interval.hi
        assert effects.body_cost(arm).se < 0.2


def test_plain_differences_miss_the_carry_over() -> None:
    """The plain estimate is about tau - c / K, the headline tau + c."""
    design = design_of(2)
    obs = simulate(design, 8_000, own=(0, 4), carry=(0, 4), stalls=0, seed=3)
    effects = effects_of(obs, design)
    assert effects.plain(effects.body, 1).estimate == pytest.approx(2.0, abs=0.3)
    assert effects.body_cost(1).value == pytest.approx(8.0, abs=0.6)


def test_quantile_effects_are_recovered_even_if_larger_than_the_spread() -> None:
    """At a quantile pooled over both arms the density is near zero here."""
    design = design_of(3)
    obs = simulate(design, 3_000, own=(0, 0, 40.0), stalls=0)
    blocks = select(obs, design).blocks
    reference = Reference(blocks.n, blocks.n - 1)
    arms = [quantiles.of_arm(blocks, arm) for arm in range(3)]
    for effect in quantiles.differences(arms[2], arms[0], reference):
        assert abs(effect.estimate - 40) < 4 * effect.se < 8
    for effect in quantiles.differences(arms[1], arms[0], reference):
        assert abs(effect.estimate) < 4 * effect.se


def test_quantile_standard_errors_match_the_spread_of_estimates() -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(200):
        x = 70 + 10 * rng.standard_t(4, (400, 2))
        blocks = matrix(x)
        arms = [quantiles.of_arm(blocks, arm) for arm in (0, 1)]
        found.append(quantiles.differences(arms[1], arms[0], Reference(400, 399)))
    for at in range(len(quantiles.PERCENTILES)):
        spread = np.std([row[at].estimate for row in found])
        claimed = math.sqrt(np.mean([row[at].se ** 2 for row in found]))
        assert claimed == pytest.approx(spread, rel=0.2)


def matrix(x: np.ndarray) -> Blocks:
    """Blocks of two arms with service times (B, 2), the base first."""
    shape = x.shape
    return by_arm(
        arm=np.tile([0, 1], (shape[0], 1)),
        service_us=x,
        cpu_us=np.full(shape, np.nan),
        previous=np.full((2, *shape), -1),
        backend=np.zeros(shape[0], dtype=np.int64),
        block=(0, 1),
    )


def test_second_base_slot_cuts_the_variance() -> None:
    """Two of ten slots: (1 + 1/2) / (1 + 1) of the variance a block, from 9/10 of the blocks."""
    rng = np.random.default_rng(6)
    n = 90_000
    x = rng.normal(70, 5, n)

    def variance(block: tuple[int, ...]) -> float:
        shape = (n // len(block), len(block))
        arm = rng.permuted(np.tile(block, (shape[0], 1)), axis=1)
        before = np.concatenate([[-1], arm.ravel()[:-1]]).reshape(shape)
        blocks = by_arm(
            arm=arm,
            service_us=x.reshape(shape),
            cpu_us=np.full(shape, np.nan),
            previous=np.stack([before, before]),
            backend=np.zeros(shape[0], dtype=np.int64),
            block=block,
        )
        effects = Effects(blocks, math.inf)
        return float(np.mean([effects.body_cost(k).se ** 2 for k in range(1, 9)]))

    gain = variance((*range(9), 0)) / variance(tuple(range(9)))
    assert gain == pytest.approx(1.5 / 2 * 10 / 9, abs=0.04)


def all_effects(obs: Observations, design: Design) -> dict[str, list[Estimate]]:
    estimate = analyse(obs, design, seed=1)
    return {
        arm.name: [
            arm.effect.body_us,
            arm.effect.own_us,
            arm.effect.carry_over_us,
            arm.effect.second_lag_us,
            arm.effect.mean_us,
            arm.effect.p50_us,
            arm.effect.p99_us,
            arm.effect.total_us,
        ]
        for arm in estimate.arms
        if arm.effect is not None
    }


def assert_same(one: list[Estimate], other: list[Estimate]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.estimate == pytest.approx(b.estimate, rel=1e-6, abs=1e-6)
        assert a.se == pytest.approx(b.se, rel=1e-6, abs=1e-6, nan_ok=True)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), n_arms=st.integers(3, 5))
def test_thresholds_do_not_hang_on_other_instruments(seed: int, n_arms: int) -> None:
    design = design_of(n_arms)
    obs = simulate(design, 60, seed=seed)
    stalled = obs.copy()
    stalled["service_ns"][obs["arm"] > 2] *= 50
    one, other = (split(select(o, design).blocks, design.reference) for o in (obs, stalled))
    assert one.c == other.c
    assert one.of(2, (0, 1)).c == other.of(2, (0, 1)).c
    assert one.base_body.value == other.of(2, (0, 1)).base_body.value
    if n_arms > 3:
        assert one.of(3, (0, 1)).c <= other.of(3, (0, 1)).c
    assert design.reference == (0, 1)


def test_a_shared_threshold_counts_both_sides_alike() -> None:
    rng = np.random.default_rng(1)
    base, arm = rng.lognormal(0, 1, 50_000), rng.lognormal(1, 1, 10_000)
    found = shared_threshold(base, arm)
    above = (base > found).mean() / 2 + (arm > found).mean() / 2
    assert above == pytest.approx(0.001, abs=1e-4)
    assert shared_threshold(arm, base) == found
    alike = rng.lognormal(0, 1, (2, 20_000))
    assert shared_threshold(*alike) == pytest.approx(np.quantile(alike, 0.999), rel=0.01)
    assert math.isnan(shared_threshold(base, np.empty(0)))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.integers(1, 10**9))
def test_shifting_all_arms_changes_no_effect(seed: int, shift: int) -> None:
    design = design_of(3)
    obs = simulate(design, 60, seed=seed)
    shifted = obs.copy()
    shifted["service_ns"] += shift
    one, other = all_effects(obs, design), all_effects(shifted, design)
    for name, effects in one.items():
        assert_same(effects, other[name])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations([1, 2, 3]))
def test_permuting_the_arms_permutes_the_effects(seed: int, order: list[int]) -> None:
    design = design_of(4)
    obs = simulate(design, 60, seed=seed)
    # Arm k of the first design is arm place[k] of the second, under the same name.
    place = [0, *order]
    arms = list(design.arms)
    for k, at in enumerate(place):
        arms[at] = design.arms[k]
    renamed = obs.copy()
    renamed["arm"] = np.array(place)[obs["arm"]]
    one = all_effects(obs, design)
    other = all_effects(renamed, replace(design, arms=tuple(arms)))
    for name, effects in one.items():
        assert_same(effects, other[name])
