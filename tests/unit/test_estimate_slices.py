"""Trials in slices: selection, estimators against their textbook version, and their error rates."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from pgtare.estimate.inference import Estimate, Expansion
from pgtare.estimate.trial.analysis import analyse, live
from pgtare.estimate.trial.contention import contention, live_contention
from pgtare.estimate.trial.design import MIXED, Design, slice_ends, slice_ns, slice_order
from pgtare.estimate.trial.observations import NO_SLICE, Observations, UnitFlag
from pgtare.estimate.trial.results import ArmEstimate
from pgtare.estimate.trial.slices import SliceMeans, select_slices
from tests.assignment import mixed_arm
from tests.unit import slices_textbook as textbook
from tests.unit.estimate_textbook import clopper_pearson
from tests.unit.slices_textbook import saturation, simulate, sliced

PROVEN = {"x": True, "i2": True, "i3": True}
#: Unlike speeds, so that sessions' shares of the transactions change with what an arm costs.
UNLIKE = (400.0, 2500.0)
#: Few units for many trials.
SLOW = (2000.0, 2000.0)


def body(arm: ArmEstimate) -> Estimate:
    assert arm.answer is not None
    return arm.answer.us


def verdict(arm: ArmEstimate) -> str:
    assert arm.answer is not None
    return arm.answer.verdict


# The schedule


def test_a_block_of_slices_holds_each_kind_once_in_random_order() -> None:
    design = saturation()
    orders = [slice_order(design, block) for block in range(600)]
    assert {tuple(sorted(order)) for order in orders} == {(MIXED, 0, 1)}
    counts = [orders.count(order) for order in itertools.permutations((0, 1, MIXED))]
    # 100 each; five standard errors
    assert all(54 < count < 146 for count in counts)


def test_lengths_are_spread_evenly_between_the_bounds() -> None:
    design = sliced(3)
    lengths = np.array([slice_ns(design, number) for number in range(5_000)]) / 1e6
    assert lengths.min() >= 15
    assert lengths.max() <= 45
    shares = np.histogram(lengths, 10, (15, 45))[0] / 5_000
    assert np.abs(shares - 0.1).max() < 0.025
    # nothing that would let slices march in step with a rhythm of the server
    assert abs(np.corrcoef(lengths[1:], lengths[:-1])[0, 1]) < 0.07


def test_another_seed_is_another_schedule() -> None:
    one, two = (list(itertools.islice(slice_ends(sliced(3, seed)), 20)) for seed in (1, 2))
    assert one != two
    assert one == sorted(one)


def test_in_mixed_slices_half_of_the_sessions_have_either_arm() -> None:
    design = saturation(7)
    drawn = np.array([[mixed_arm(design, backend, n) for backend in range(6)] for n in range(300)])
    # sessions are drawn in pairs
    assert (drawn.reshape(300, 3, 2).sum(axis=2) == 1).all()
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 0.15
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 2])[0, 1]) < 0.25


# Selection


@pytest.fixture(scope="module")
def both() -> tuple[Design, Observations]:
    design = saturation()
    return design, simulate(
        design, 12, levels_us=UNLIKE, own=(0, 80), carry=(0, 40), spillover=(0, 60)
    )


def test_units_are_taken_by_when_they_start(both: tuple[Design, Observations]) -> None:
    """To leave out what outlasts its slice would be to leave out what is slow."""
    design, obs = both
    units = select_slices(obs, design).units
    chosen = np.flatnonzero(np.isin(obs["slice"], units.slice[units.kind == 1]))[20:30]
    slow = obs.copy()
    slow["service_ns"][chosen] = 60_000_000
    slow["flags"][chosen] |= int(UnitFlag.STRADDLED)
    found = select_slices(slow, design)
    # the window is a little shorter, as it ends a 99th percentile before the slice does
    assert len(found.units.arm) > len(units.arm) - 10
    assert found.straddled_pct > select_slices(obs, design).straddled_pct


def test_selection_is_the_textbook_s(both: tuple[Design, Observations]) -> None:
    design, obs = both
    fast, plain = select_slices(obs, design).units, textbook.usable(obs, design)
    assert len(plain) == len(fast.arm)
    assert [u.slice for u in plain] == fast.slice.tolist()
    assert [u.kind for u in plain] == fast.kind.tolist()
    assert [u.arm for u in plain] == fast.arm.tolist()


@pytest.mark.parametrize("flag", ["SWITCH_FAILED", "APP_CHANGED", "RELOADED"])
def test_units_whose_arm_was_not_in_force_are_left_out(
    both: tuple[Design, Observations], flag: str
) -> None:
    design, obs = both
    before = select_slices(obs, design)
    spoiled = obs.copy()
    spoiled["flags"][::7] |= int(UnitFlag[flag])
    after = select_slices(spoiled, design)
    assert len(after.units.arm) < len(before.units.arm)
    assert after.used.sum() + after.excluded.sum() == len(obs)


def test_units_left_open_do_not_count(both: tuple[Design, Observations]) -> None:
    design, obs = both
    cut = obs.copy()
    cut["flags"][-5:] |= int(UnitFlag.OPEN)
    after, before = select_slices(cut, design), select_slices(obs[:-5], design)
    assert after.units.n_blocks == before.units.n_blocks
    assert (after.used.tolist(), after.excluded.tolist()) == (
        before.used.tolist(),
        before.excluded.tolist(),
    )


def test_sessions_that_lack_a_kind_are_left_out_and_blocks_are_not(
    both: tuple[Design, Observations],
) -> None:
    design, obs = both
    units = select_slices(obs, design).units
    lacking = (obs["backend"] == 1) & np.isin(obs["slice"], units.slice[units.kind == 1])
    assert select_slices(obs[~lacking], design).units.n_sessions == 1
    first = np.isin(obs["slice"], units.slice[(units.kind == 1) & (units.block == 0)])
    found = select_slices(obs[~first], design)
    assert found.units.n_blocks == units.n_blocks
    assert len(SliceMeans(found.units).differences(found.units.service_us, 1)) == units.n_blocks - 1
    # the last block ends with the trial, and only the end of a slice tells that it was whole
    assert found.blocks_discarded == 1


def test_order_of_the_rows_does_not_matter(both: tuple[Design, Observations]) -> None:
    design, obs = both
    shuffled = np.random.default_rng(1).permutation(obs)
    assert contention(shuffled, design, proven=True) == contention(obs, design, proven=True)


def test_without_usable_units_nothing_is_said() -> None:
    for design in (saturation(), sliced(3)):
        obs = simulate(design, 2)
        for rows in (obs[:0], obs[:1], obs):
            found = analyse(rows, design, proven=PROVEN)
            assert {verdict(arm) for arm in found.arms[1:]} == {"inconclusive"}
            assert live(rows, design).blocks >= 0
            if found.contention:
                assert found.contention.state == "inconclusive"
    without = simulate(saturation(), 2)
    without["slice"] = NO_SLICE
    assert contention(without, saturation(), proven=True).blocks == 0


# Estimators


def test_costs_are_the_textbook_s() -> None:
    design = sliced(3)
    obs = simulate(design, 6, levels_us=UNLIKE, own=(0, 0, 90))
    found = analyse(obs, design, proven=PROVEN)
    for arm in (1, 2):
        units = textbook.usable(obs, design, arm)
        ones = {u.block: 1.0 for u in units}
        body_us = body(found.arms[arm])
        assert body_us.estimate == pytest.approx(textbook.cost(units, arm, ones))
        se = textbook.standard_error(
            lambda w, arm=arm, units=units: textbook.cost(units, arm, w), units
        )
        assert body_us.se == pytest.approx(se, rel=1e-4)


def test_blocks_that_lack_an_arm_say_nothing_of_it() -> None:
    """As with many arms and few transactions: a block has a unit of some arms only."""
    design = sliced(3)
    units = select_slices(simulate(design, 60, levels_us=UNLIKE), design).units
    assert units.n_blocks > 50
    units = units.where((units.kind != 2) | (units.block < 6))
    assert units.n_blocks > 50
    means = SliceMeans(units)
    dfs = []
    for arm in (1, 2):
        members = units.kind == arm
        cost = means.mean(units.service_us, members) - means.mean(units.service_us, means.base)
        dfs.append(means.by_blocks(cost, 0, arm).df)
    assert dfs[1] <= 5 < dfs[0]
    assert (means.reference(0, 2).df, means.reference(0, 1).df > 40) == (5, True)


def test_contention_is_the_textbook_s(both: tuple[Design, Observations]) -> None:
    design, obs = both
    found = contention(obs, design, proven=True)
    units = textbook.usable(obs, design)
    ones = {u.block: 1.0 for u in units}
    assert found.total_us.estimate == pytest.approx(textbook.cost(units, 1, ones))
    assert found.own_us.estimate == pytest.approx(textbook.own(units, ones))
    assert found.spillover_us.estimate == pytest.approx(textbook.spillover(units, ones))
    for estimate, statistic in (
        (found.total_us, lambda w: textbook.cost(units, 1, w)),
        (found.own_us, lambda w: textbook.own(units, w)),
        (found.spillover_us, lambda w: textbook.spillover(units, w)),
        (
            found.total_less_own_us,
            lambda w: textbook.cost(units, 1, w) - textbook.own(units, w),
        ),
    ):
        assert estimate.se == pytest.approx(textbook.standard_error(statistic, units), rel=1e-3)


def test_an_arm_that_costs_fast_sessions_more_does_not_change_the_mix() -> None:
    """100 µs more slow the fast session by a quarter: by count the mean would rise by far more."""
    design = sliced(3)
    obs = simulate(design, 150, levels_us=(400.0, 1200.0), own=(0, 0, 100))
    found = analyse(obs, design, proven=PROVEN).arms[2]
    assert body(found).lo < 100 < body(found).hi
    assert body(found).half_width < 10
    units = select_slices(obs, design).units
    by_count = SliceMeans(units).differences(units.service_us, 2)
    assert by_count.mean() - 2 * by_count.std() / len(by_count) ** 0.5 > 105


# Error rates, over simulated trials


@pytest.fixture(scope="module")
def replicates() -> list[tuple[dict[str, float], object]]:
    truth = {"total_us": 80 + 40 + 240, "own_us": 80 + 40, "spillover_us": 120}
    found = []
    for seed in range(120):
        design = saturation(seed)
        obs = simulate(
            design,
            40,
            levels_us=(1800.0, 2600.0),
            own=(0, 80),
            carry=(0, 40),
            spillover=(0, 240),
            seed=seed,
        )
        found.append((truth, contention(obs, design, proven=True)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["total_us", "own_us", "spillover_us"])
def test_coverage(replicates: list[tuple[dict[str, float], object]], name: str) -> None:
    covered = 0
    for truth, found in replicates:
        interval = getattr(found, name)
        covered += interval.lo <= truth[name] <= interval.hi
    lo, hi = clopper_pearson(covered, len(replicates), 0.999)
    assert lo <= 0.95 <= hi, covered


@pytest.mark.slow
def test_spillover_is_found_where_it_is(
    replicates: list[tuple[dict[str, float], object]],
) -> None:
    states = [found.state for _, found in replicates]  # type: ignore[attr-defined]
    assert states.count("spillover") > 0.75 * len(states)


@pytest.mark.slow
def test_no_spillover_is_seldom_claimed_however_large_the_cost() -> None:
    wrong = 0
    for seed in range(120):
        design = saturation(seed)
        obs = simulate(
            design,
            40,
            levels_us=SLOW,
            own=(0, 200),
            carry=(0, 100),
            seed=10_000 + seed,
        )
        wrong += contention(obs, design, proven=True).state == "spillover"
    assert clopper_pearson(wrong, 120, 0.98)[0] <= 0.05


def test_one_session_has_nobody_to_slow_down() -> None:
    obs = simulate(saturation(), 40, levels_us=(500.0,), own=(0, 200))
    found = contention(obs, saturation(), proven=True)
    assert (found.state, found.reason) == ("inconclusive", "one session has nobody to slow down")


@pytest.mark.slow
def test_false_positives_of_slices() -> None:
    wrong = looks = 0
    for seed in range(100):
        design = sliced(4, seed)
        obs = simulate(design, 30, levels_us=SLOW, seed=seed)
        found = analyse(obs, design, proven=PROVEN)
        for arm in found.arms[1:]:
            wrong += not body(arm).lo <= 0 <= body(arm).hi
            looks += 1
    assert 0.025 <= wrong / looks <= 0.08


@pytest.mark.slow
def test_a_standard_error_too_small_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Expansion.se.fget
    assert honest is not None
    monkeypatch.setattr(Expansion, "se", property(lambda self: honest(self) / 2))
    wrong = 0
    for seed in range(60):
        design = saturation(seed)
        found = contention(simulate(design, 40, levels_us=SLOW, seed=seed), design, proven=True)
        wrong += not found.total_us.lo <= 0 <= found.total_us.hi
    assert clopper_pearson(wrong, 60, 0.98)[0] > 0.05


# Verdicts


def test_verdicts_of_slices_fail_closed() -> None:
    design = sliced(3)
    obs = simulate(design, 60, own=(0, 0, 200))
    assert verdict(analyse(obs, design, proven=PROVEN).arms[2]) == "cost"
    assert verdict(analyse(obs, design, proven={}).arms[2]) == "not_verified"
    ended = analyse(obs, design, proven=PROVEN, ended_early="crash")
    assert verdict(ended.arms[2]) == "not_verified"
    few = analyse(simulate(design, 20, own=(0, 0, 200)), design, proven=PROVEN)
    assert verdict(few.arms[2]) == "inconclusive"


def test_contention_in_percent_says_the_same_of_zero(
    both: tuple[Design, Observations],
) -> None:
    """One block of slices dominates the error, so that there are fewer degrees of freedom."""
    design, obs = both
    obs = obs.copy()
    obs["service_ns"][obs["arm"] == 1] += 3_000_000
    obs["service_ns"][(obs["arm"] == 1) & (obs["slice"] < 3)] += 8_000_000
    found = contention(obs, design, proven=True)
    assert found.total_us.lo < 0 < found.total_us.hi
    time, share = found.spillover_us, found.spillover_pct
    assert (time.lo <= 0 <= time.hi) == (share.lo <= 0 <= share.hi)
    total_pct = found.total_us.times(100 / found.base_us)
    live = live_contention(obs, design)
    for arm in live.arms:
        fixed = {"total": total_pct, "spillover": found.spillover_pct}[arm.name]
        assert arm.half_width_pct == pytest.approx(fixed.half_width)


def test_contention_without_proof_is_not_verified(both: tuple[Design, Observations]) -> None:
    design, obs = both
    assert contention(obs, design, proven=False).state == "not_verified"
    assert contention(obs, design, proven=True, ended_early=True).state == "not_verified"
    assert contention(obs, design, proven=True).state == "inconclusive"


def test_a_trial_that_someone_stopped_has_wider_intervals(
    both: tuple[Design, Observations],
) -> None:
    design, obs = both
    calm = contention(obs, design, proven=True).total_us
    stopped = contention(obs, design, proven=True, peeked=True).total_us
    assert stopped.half_width > 1.5 * calm.half_width


def test_a_design_of_slices_holds_every_arm() -> None:
    with pytest.raises(ValueError, match="every arm"):
        dataclasses.replace(sliced(3), slices=dataclasses.replace(sliced(2).slices))
