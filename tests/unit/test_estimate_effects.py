"""Effects: equal to the textbook's, recovered where injected, and invariant where they must be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtare.estimate.inference import Estimate, Expansion, Reference
from pgtare.estimate.trial import quantiles
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.answer import ReasonKind
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.effects import Effects, Strata, effects_of
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.estimate.trial.runs import Selection, select
from pgtare.estimate.trial.strata import MIN_SESSIONS, FirstRuns, LaterRuns, Units, mixed
from pgtare.estimate.trial.threshold import alike, threshold, weighted_threshold
from tests.unit import estimate_textbook as textbook
from tests.unit import simulated_trial as simulated
from tests.unit.estimate_textbook import design_of, simulate

DESIGNS = {
    "two arms": design_of(2),
    "four arms": design_of(4),
    "base twice": design_of(3, block=(0, 1, 2, 0)),
}


def of_arm(selection: Selection, design: Design, arm: int) -> Effects:
    return effects_of(Strata.of(selection), design.reference, [arm])[2][arm]


def cluster_se(effect: Expansion) -> float:
    """The standard error without the correction for all clusters, which strata make themselves."""
    return math.sqrt(float(effect.influence @ effect.influence))


def close(found: tuple[float, float], expected: tuple[float, float]) -> None:
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", DESIGNS)
def test_later_runs_are_the_textbook_s(name: str) -> None:
    """Least squares with a dummy for each block, and blocks that were cut short."""
    design = DESIGNS[name]
    rng = np.random.default_rng(8)
    obs = simulate(design, 5, backends=8, stalls=0.02, own=(0, 3))
    obs = obs[obs["unit"] < rng.integers(100, 500, 8)[obs["backend"]]]
    obs["flags"][rng.integers(0, len(obs), 20)] |= np.uint32(UnitFlag.APP_CHANGED)
    later, plain = select(obs, design).later, textbook.later_units(obs, design)
    c = float(np.quantile(later.units.service_us, 0.95))
    for arm in range(1, len(design.arms)):
        for values, outcome in (
            (later.units.body(c), lambda x: min(x, c)),
            (later.units.excess(c), lambda x: max(x - c, 0)),
            (later.units.service_us, lambda x: x),
        ):
            found = later.cost(values, arm)
            close((found.value, cluster_se(found)), textbook.regress(plain, arm, outcome))


def test_first_runs_are_the_textbook_s() -> None:
    rng = np.random.default_rng(3)
    design = design_of(3)
    sessions = []
    for stratum, number, level in ((5, 90, 1.0), (11, 60, 30.0), (12, 45, 4.0)):
        lengths = rng.integers(3, 60, number)
        arrays = [level * simulated.lognormal(int(n), rng) for n in lengths]
        sessions += simulated.new(arrays, rng, stratum=stratum)
    obs = simulated.simulate(sessions, design).observations
    first, plain = select(obs, design).first, textbook.first_runs(obs)
    assert first is not None
    for arm in (1, 2):
        found = first.cost(first.units.service_us, arm)
        assert len(set(first.groups(arm))) == 3
        close((found.value, cluster_se(found)), textbook.post_stratified(plain, arm))


def test_small_groups_are_pooled() -> None:
    arm = np.tile([0, 1], 60)
    group = np.repeat([0, 1, 2, 3], [60, 40, 14, 6])
    units = Units(
        service_us=np.ones(120),
        cpu_us=np.ones(120),
        arm=arm,
        cluster=np.arange(120),
        open=np.zeros(120, dtype=np.bool_),
        n_clusters=120,
    )
    # the third and the fourth have ten of either arm together
    found = FirstRuns(units, group, arm).groups(1)
    assert np.bincount(found).tolist() == [60, 40, 20]
    # without the fourth they have not, and join the largest
    fewer = FirstRuns(units, np.where(group == 3, 1, group), arm).groups(1)
    assert np.bincount(fewer).tolist() == [74, 46]
    assert FirstRuns(units, group, np.where(np.arange(120) < 40, arm, 2)).groups(1).max() == 0
    few = FirstRuns(units, group, np.where(np.arange(120) < 2 * MIN_SESSIONS - 2, arm, 2))
    assert not few.comparable(1)


def test_the_answer_is_the_mean_of_both_strata_by_their_share() -> None:
    first = Expansion(10.0, np.array([1.0, -2.0]))
    later = Expansion(4.0, np.array([3.0]))
    found = mixed(first, later, 0.25)
    assert found.value == 5.5
    assert found.influence.tolist() == [0.25, -0.5, 2.25]
    alone = mixed(first, Expansion(math.nan, np.array([math.nan])), 1.0)
    assert (alone.value, alone.influence.tolist()) == (10.0, [1.0, -2.0, 0.0])


def test_first_runs_and_later_ones_are_the_textbook_s_mix() -> None:
    rng = np.random.default_rng(5)
    design = design_of(2)
    lengths = rng.integers(10, 100, 60)
    sessions = simulated.new([simulated.lognormal(int(n), rng) for n in lengths], rng)
    sessions += simulated.old([simulated.lognormal(2_000, rng)])
    obs = simulated.simulate(sessions, design).observations
    selection = select(obs, design)
    found = of_arm(selection, design, 1)
    later = textbook.regress(textbook.later_units(obs, design), 1, lambda x: min(x, found.c))
    runs = textbook.first_runs(obs)
    for run in runs:
        run.group, run.times = 0, [min(x, found.c) for x in run.times]
    first = textbook.post_stratified(runs, 1)
    share = selection.first_share
    assert 0.05 < share < 0.95
    close(
        (found.body.value, found.body.se),
        (
            share * first[0] + (1 - share) * later[0],
            math.hypot(share * first[1], (1 - share) * later[1]),
        ),
    )


def test_few_blocks_are_corrected_once() -> None:
    """As in windows: the standard error is that of the mean of eight differences."""
    rng = np.random.default_rng(2)
    block, arm = np.repeat(np.arange(8), 40), np.tile(np.repeat([0, 1], 20), 8)
    times = 50 + arm + 5 * rng.standard_normal(8)[block] * arm + rng.standard_normal(320)
    no = np.zeros(320, dtype=bool)
    units = Units(times, np.full(320, math.nan), arm, block, no, 8)
    found = Strata(LaterRuns(units)).cost(lambda of: of.service_us, 1)
    means = times.reshape(8, 2, 20).mean(axis=2)
    difference = means[:, 1] - means[:, 0]
    assert found.value == pytest.approx(difference.mean())
    assert found.se == pytest.approx(difference.std(ddof=1) / math.sqrt(8))


def test_few_first_runs_are_left_out() -> None:
    rng = np.random.default_rng(5)
    design = design_of(2)
    sessions = simulated.new([simulated.lognormal(20, rng) for _ in range(40)], rng)
    sessions += simulated.old([simulated.lognormal(20_000, rng)])
    selection = select(simulated.simulate(sessions, design).observations, design)
    assert 0 < selection.first_share < 0.05
    found, later = of_arm(selection, design, 1), selection.later
    assert found.body.value == later.cost(later.units.body(found.c), 1).value


def test_a_weighted_threshold_is_the_brute_force_one() -> None:
    rng = np.random.default_rng(2)
    for sizes in ((9_000, 15_000), (40_000, 3_000), (300, 900), (30, 50)):
        sides = []
        for n in sizes:
            # ties as well, and weights of two strata
            values = np.round(rng.lognormal(4, 1, n))
            weights = np.where(np.arange(n) < n // 3, 2.0, 0.7)
            sides.append((values, weights / weights.sum()))
        expected = textbook.weighted_threshold(sides)
        assert weighted_threshold(*sides) == expected
    both = rng.lognormal(0, 1, (2, 20_000))
    one, other = (alike(values) for values in both)
    shared = weighted_threshold(one, other)
    assert shared == pytest.approx(np.quantile(both, 0.999), rel=0.01)
    assert shared == weighted_threshold(other, one)
    assert math.isnan(weighted_threshold(one, alike(np.empty(0))))


@pytest.mark.parametrize("seed", range(6))
def test_p_is_that_of_labels_drawn_anew(seed: int) -> None:
    """Of a small trial: runs change places within their blocks, as the server might have drawn."""
    rng = np.random.default_rng(seed)
    design = simulated.design_of(1, seed)
    x = simulated.autoregressive(3_000, rng, 0.99, 0.2)
    effect = simulated.Effect(lambda x: x + 2.0)
    obs = simulated.simulate(simulated.old([x]), design, {1: effect}).observations
    units = select(obs, design).later.units
    values = units.body(threshold(units.service_us))
    found = LaterRuns(units).cost(values, 1)
    p = Reference(units.n_clusters, units.n_clusters - 1).p_value(found.value / found.se)
    draws = 600
    swapped = rng.random((draws, units.n_clusters)) < 0.5
    extreme = sum(
        abs(LaterRuns(replace(units, arm=units.arm ^ swap[units.cluster])).cost(values, 1).value)
        >= abs(found.value)
        for swap in swapped
    )
    assert extreme / draws == pytest.approx(p, abs=0.03 + 3.3 * math.sqrt(p * (1 - p) / draws))


def test_body_and_excess_add_up_in_microseconds_and_percent() -> None:
    design = design_of(3)
    trial = analyse(simulate(design, 200, own=(0, 0, 2), stalls=0.01), design)
    arm = trial.arms[2]
    assert arm.effect is not None
    assert arm.answer is not None
    assert arm.answer.pct.estimate == pytest.approx(
        100 * arm.answer.us.estimate / trial.baseline.body_mean_us
    )
    both = arm.answer.us.estimate + arm.effect.excess_us.estimate
    assert arm.effect.total_us.estimate == pytest.approx(both)


def test_one_stall_of_a_minute_moves_no_percentage_and_no_margin() -> None:
    design = design_of(3)
    obs = simulate(design, 400, own=(0, 0, 3.5), stalls=0)
    calm = analyse(obs, design)
    stalled = obs.copy()
    late = np.flatnonzero((obs["arm"] == 0) & (obs["position"] > 12))
    stalled["service_ns"][late[7]] = 60 * 10**9
    found = analyse(stalled, design)
    assert found.arms[0].mean_us > 50 * calm.arms[0].mean_us
    assert found.baseline.body_mean_us == pytest.approx(calm.baseline.body_mean_us, rel=1e-3)
    one, other = calm.arms[2].answer, found.arms[2].answer
    assert one is not None
    assert other is not None
    assert other.pct.estimate == pytest.approx(one.pct.estimate, rel=0.01)
    assert other.pct.estimate == pytest.approx(4.8, abs=0.5)
    assert found.mde_pct == pytest.approx(calm.mde_pct, rel=0.05)


def of_matrix(x: np.ndarray) -> Strata:
    """Blocks of two arms with one transaction each, service times (B, 2), the base first."""
    n = len(x)
    units = Units(
        service_us=x.ravel(),
        cpu_us=x.ravel(),
        arm=np.tile([0, 1], n),
        cluster=np.repeat(np.arange(n), 2),
        open=np.zeros(2 * n, dtype=np.bool_),
        n_clusters=n,
    )
    return Strata(LaterRuns(units))


def few_slow(n_base: int, n_arm: int) -> Effects:
    """Two arms with so many units over a threshold of 100 µs."""
    x = np.random.default_rng(1).uniform(60, 80, (4_000, 2))
    x[:n_base, 0] = 5_000
    x[-n_arm:, 1] = 5_000
    return Effects(of_matrix(x), 1, 100.0, 70.0)


@pytest.mark.parametrize(("n_base", "n_arm"), [(5, 34), (34, 5)])
def test_the_tail_has_no_interval_where_few_transactions_are_slow(n_base: int, n_arm: int) -> None:
    compared = few_slow(n_base, n_arm).compared()
    for cost in (compared.excess, compared.total):
        found = compared.scale.tail_interval(cost)
        assert found.estimate == cost.value
        assert math.isnan(found.lo)
        assert math.isnan(found.hi)
        assert math.isnan(found.se)


def test_the_interval_of_the_tail_is_that_of_its_slow_transactions() -> None:
    effects = few_slow(5, 35)
    found = effects.compared().scale.tail_interval(effects.excess)
    # t with 19 df: so many are slow, on average of both arms
    assert found.half_width / found.se == pytest.approx(
        replace(effects.reference, df=19).multiplier()
    )
    many = few_slow(1_500, 1_500)
    found = many.compared().scale.tail_interval(many.excess)
    expected = replace(many.reference, df=1_499).of(many.excess.influence)
    assert found.half_width / found.se == pytest.approx(expected.multiplier())


def test_injected_effects_are_recovered() -> None:
    design = design_of(4)
    own = (0, 0, 3.0, -1.0)
    obs = simulate(design, 400, backends=2, own=own, seed=5)
    selection = select(obs, design)
    for arm in (1, 2, 3):
        effects = of_arm(selection, design, arm)
        for found in (effects.body, effects.body + effects.excess):
            interval = effects.interval(found, alpha=0.001)
            assert interval.lo < own[arm] < interval.hi
        assert effects.body.se < 0.2


def test_a_cold_start_is_in_the_beginnings_and_in_first_runs_only() -> None:
    rng = np.random.default_rng(4)
    design = simulated.design_of(1, 3)
    effect = simulated.Effect(lambda x: x + 2.0, cold_us=(20.0,) * 8)
    sessions = simulated.old([simulated.lognormal(30_000, rng, 0.05)])
    found = analyse(simulated.simulate(sessions, design, {1: effect}).observations, design).arms[1]
    assert found.answer is not None
    assert found.effect is not None
    assert found.effect.switched_on_us is not None
    assert found.answer.us.lo < 2 < found.answer.us.hi < 3
    # half of the runs begin with another arm before them
    assert 10 < found.effect.switched_on_us.estimate < 23
    short = simulated.new([simulated.lognormal(20, rng, 0.05) for _ in range(400)], rng)
    made = simulated.simulate(short, design, {1: effect})
    answer = analyse(made.observations, design).arms[1].answer
    assert answer is not None
    # what sessions send after their first run is in no whole block
    assert made.truth_of_all() == pytest.approx(2 + 20 * 8 / 20)
    assert 10 < made.truth() < 10.3
    assert answer.us.lo < made.truth() < answer.us.hi < 11.3


@pytest.mark.parametrize(("short", "of_all"), [(480, True), (900, False)])
def test_first_runs_stand_for_the_rest_of_their_sessions_in_an_answer_of_all(
    short: int, of_all: bool
) -> None:
    """What short sessions send after their first run is in no whole block."""
    rng = np.random.default_rng(6)
    design = simulated.design_of(1, 3)
    sessions = simulated.old([np.full(4_000, 100.0)] * 3)
    slow = [np.full(int(n), 1_000.0) for n in rng.integers(10, 40, short)]
    sessions += simulated.new(slow, rng)
    dear = simulated.Effect(lambda x: np.where(x > 400, x + 30.0, x + 3.0))
    made = simulated.simulate(sessions, design, {1: dear})
    found = analyse(made.observations, design)
    answer = found.arms[1].answer
    assert answer is not None
    assert (answer.because(ReasonKind.SHORT_SESSIONS) is None) == of_all
    claimed = made.truth_of_all() if of_all else made.truth()
    assert abs(made.truth_of_all() - made.truth()) > 0.5
    assert answer.us.estimate == pytest.approx(claimed, rel=1e-6)


def test_quantile_effects_are_recovered_even_if_larger_than_the_spread() -> None:
    """At a quantile pooled over both arms the density is near zero here."""
    design = design_of(3)
    units = select(simulate(design, 300, own=(0, 0, 40.0), stalls=0), design).later.units
    reference = Reference(units.n_clusters, units.n_clusters - 1)
    arms = [quantiles.of_arm(units, arm) for arm in range(3)]
    for effect in quantiles.differences(arms[2], arms[0], reference):
        assert abs(effect.estimate - 40) < 4 * effect.se < 8
    for effect in quantiles.differences(arms[1], arms[0], reference):
        assert abs(effect.estimate) < 4 * effect.se


def test_quantile_standard_errors_match_the_spread_of_estimates() -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(200):
        units = of_matrix(70 + 10 * rng.standard_t(4, (400, 2))).later.units
        arms = [quantiles.of_arm(units, arm) for arm in (0, 1)]
        found.append(quantiles.differences(arms[1], arms[0], Reference(400, 399)))
    for at in range(len(quantiles.PERCENTILES)):
        spread = np.std([row[at].estimate for row in found])
        claimed = math.sqrt(np.mean([row[at].se ** 2 for row in found]))
        assert claimed == pytest.approx(spread, rel=0.2)


def test_a_second_run_of_the_base_cuts_the_variance() -> None:
    """Eight arms: (1 + 1/2) / (1 + 1) of the variance a block, from 8/9 of the blocks."""
    rng = np.random.default_rng(6)
    x = rng.normal(70, 5, 60_000)

    def variance(block: tuple[int, ...]) -> float:
        design = design_of(8, block=block)
        obs = simulated.simulate(simulated.old([x]), design).observations
        later = select(obs, design).later
        values = later.units.service_us
        return float(np.mean([later.cost(values, k).se ** 2 for k in range(1, 8)]))

    gain = variance((*range(8), 0)) / variance(tuple(range(8)))
    assert gain == pytest.approx(1.5 / 2 * 9 / 8, abs=0.07)


def all_effects(obs: Observations, design: Design) -> dict[str, list[Estimate]]:
    return {
        arm.name: [
            arm.answer.us,
            arm.effect.p50_us,
            arm.effect.p99_us,
            arm.effect.total_us,
            arm.effect.switched_on_us or arm.effect.total_us,
        ]
        for arm in analyse(obs, design).arms
        if arm.effect is not None and arm.answer is not None
    }


def assert_same(one: list[Estimate], other: list[Estimate]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.estimate == pytest.approx(b.estimate, rel=1e-6, abs=1e-6)
        assert a.se == pytest.approx(b.se, rel=1e-6, abs=1e-6, nan_ok=True)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), n_arms=st.integers(3, 5))
def test_thresholds_do_not_hang_on_other_instruments(seed: int, n_arms: int) -> None:
    design = design_of(n_arms)
    obs = simulate(design, 20, seed=seed)
    stalled = obs.copy()
    stalled["service_ns"][obs["arm"] > 2] *= 50
    arms = range(1, n_arms)
    one, other = (
        effects_of(Strata.of(select(o, design)), design.reference, arms) for o in (obs, stalled)
    )
    assert one[:2] == other[:2]
    assert one[2][2].c == other[2][2].c
    if n_arms > 3:
        assert one[2][3].c <= other[2][3].c
    assert design.reference == (0, 1)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), shift=st.integers(1, 10**9))
def test_shifting_all_arms_changes_no_effect(seed: int, shift: int) -> None:
    design = design_of(3)
    obs = simulate(design, 20, seed=seed)
    shifted = obs.copy()
    shifted["service_ns"] += shift
    one, other = all_effects(obs, design), all_effects(shifted, design)
    for name, effects in one.items():
        assert_same(effects, other[name])


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), order=st.permutations([1, 2, 3]))
def test_permuting_the_arms_permutes_the_effects(seed: int, order: list[int]) -> None:
    design = design_of(4)
    obs = simulate(design, 20, seed=seed)
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
