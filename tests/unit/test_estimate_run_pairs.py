"""Runs in pairs: their design, the selection of whole pairs, and the estimate that they give."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from pgtare.estimate.inference import Expansion, Reference
from pgtare.estimate.trial.design import MAX_RUN, MAX_TURNS, Arm, Design, Runs, runs_of
from pgtare.estimate.trial.observations import Observations, UnitFlag, empty
from pgtare.estimate.trial.run_pairs import MIN_PAIRS, SETTLING, run_effect, select_pairs
from tests.assignment import run_before, run_drawn
from tests.unit.simulated_runs import lognormal, trial, weighing

DESIGN = weighing(4)


@pytest.fixture(scope="module")
def obs() -> Observations:
    return trial(DESIGN, (30_000, 20_000), lognormal, np.random.default_rng(3), lags=(2.0,))


def pairs_of(obs: Observations) -> dict[tuple[int, int], dict[int, list[float]]]:
    """Service times in µs by (backend, pair) and arm, of whole pairs, written out."""
    found: dict[tuple[int, int], dict[int, list[float]]] = {}
    for o in obs[obs["flags"] & UnitFlag.RUN != 0]:
        runs = found.setdefault((int(o["backend"]), int(o["block"]) // 2), {})
        runs.setdefault(int(o["arm"]), []).append(o["service_ns"] / 1000)
    return {
        key: runs
        for key, runs in found.items()
        if len(runs) == 2 and len({len(units) for units in runs.values()}) == 1
    }


def test_the_share_of_runs_is_a_quarter(obs: Observations) -> None:
    assert np.mean(obs["flags"] & UnitFlag.RUN != 0) == pytest.approx(0.25, abs=0.03)
    for n_arms in (3, 4, 9, 31):
        design = weighing(n_arms)
        assert design.runs is not None
        in_pair = design.runs.shortest + design.runs.longest
        share = in_pair / (in_pair + design.runs.every * len(design.block))
        assert share == pytest.approx(0.25, abs=0.01)


def test_instruments_have_two_turns_and_the_control_one() -> None:
    assert DESIGN.runs is not None
    assert DESIGN.runs.turns == (1, 1, 2, 2, 3)
    assert runs_of("slice", DESIGN.arms, DESIGN.block) is None
    assert runs_of("both", DESIGN.arms, DESIGN.block) is None
    most = weighing(32).runs
    assert most is not None
    assert len(most.turns) == 61 <= MAX_TURNS


def test_pairs_hold_the_base_and_an_arm_in_random_order_and_permuted_rounds() -> None:
    runs = [run_drawn(DESIGN, 5, run) for run in range(2 * 5 * 400)]
    first, second = runs[::2], runs[1::2]
    lengths = [length for _, length in first]
    assert lengths == [length for _, length in second]
    assert (min(lengths), max(lengths)) == (24, 96)
    assert stats.binomtest(sum(arm == 0 for arm, _ in first), 2000).pvalue > 1e-4
    others = [max(a, b) for (a, _), (b, _) in zip(first, second, strict=True)]
    assert all(min(a, b) == 0 for (a, _), (b, _) in zip(first, second, strict=True))
    for number in range(400):
        assert sorted(others[5 * number : 5 * number + 5]) == [1, 1, 2, 2, 3]
    assert len(Counter(tuple(others[i : i + 5]) for i in range(0, 2000, 5))) == 30


def test_runs_come_as_often_as_designed_and_not_at_first() -> None:
    assert DESIGN.runs is not None
    before = [run_before(DESIGN, 0, block) for block in range(20_000)]
    assert not any(before[:8])
    expected = stats.binomtest(sum(before), 20_000, 1 / DESIGN.runs.every)
    assert expected.pvalue > 1e-4
    assert not run_before(dataclasses.replace(DESIGN, runs=None), 0, 100)


@pytest.mark.parametrize(
    ("turns", "every", "shortest", "longest"),
    [
        ((), 60, 24, 96),
        ((0, 1), 60, 24, 96),
        ((1,) * 65, 60, 24, 96),
        ((1,), 0, 24, 96),
        ((1,), 60, 0, 96),
        ((1,), 60, 97, 96),
        ((1,), 60, 24, MAX_RUN + 1),
    ],
)
def test_impossible_runs_are_refused(
    turns: tuple[int, ...], every: int, shortest: int, longest: int
) -> None:
    with pytest.raises(ValueError, match=r"run|turns"):
        Runs(turns, every, shortest, longest)


def test_runs_of_other_arms_are_refused() -> None:
    with pytest.raises(ValueError, match="runs are of the design's arms"):
        Design((Arm("base", "base"), Arm("i", "instrument")), (0, 1), 1, None, Runs((2,), 60))


def test_same_differences_as_written_out(obs: Observations) -> None:
    shuffled = np.random.default_rng(1).permutation(obs)
    found, plain, c = select_pairs(shuffled, 4), pairs_of(obs), 120.0
    assert len(found.arm) == len(plain) > 80
    assert found.discarded <= 2  # cut short by the ends of the sessions
    expected = []
    for runs in plain.values():
        (arm,) = set(runs) - {0}
        means = [np.minimum(runs[k][SETTLING:], c).mean() for k in (arm, 0)]
        expected.append(means[0] - means[1])
    np.testing.assert_allclose(found.differences(c), expected)
    own = found.arm == 1
    weight = np.array([len(runs[0]) - SETTLING for runs in plain.values()])[own]
    d = np.array(expected)[own]
    mean = np.average(d, weights=weight)
    share = weight / weight.sum()
    effect = run_effect(found, c, 1, 1000, peeked=False)
    assert effect.value == pytest.approx(mean)
    assert effect.se**2 == pytest.approx((share**2 * (d - mean) ** 2 / (1 - share)).sum())
    assert effect.interval().lo < 2.0 < effect.interval().hi


@pytest.mark.parametrize("spoil", ["lost", "doubled", "wrong arm", "flag"])
def test_a_pair_with_a_doubtful_unit_is_left_out(obs: Observations, spoil: str) -> None:
    row = int(np.flatnonzero((obs["flags"] & UnitFlag.RUN != 0) & (obs["position"] == 17))[4])
    before = select_pairs(obs, 4)
    spoilt = obs.copy()
    if spoil == "lost":
        spoilt = np.delete(spoilt, row)
    elif spoil == "doubled":
        spoilt = np.append(spoilt, spoilt[row])
    elif spoil == "wrong arm":
        spoilt["arm"][row] = 3 - spoilt["arm"][row]
    else:
        spoilt["flags"][row] |= np.uint32(UnitFlag.APP_CHANGED)
    after = select_pairs(spoilt, 4)
    assert len(after.arm) == len(before.arm) - 1
    assert after.discarded == before.discarded + 1


@pytest.mark.parametrize("position", [0, 30])
def test_a_pair_without_its_first_or_last_unit_is_left_out(
    obs: Observations, position: int
) -> None:
    run = obs[(obs["backend"] == 0) & (obs["flags"] & UnitFlag.RUN != 0)]["block"] == 6
    rows = np.flatnonzero((obs["backend"] == 0) & (obs["flags"] & UnitFlag.RUN != 0))[run]
    lost = rows[0] if position == 0 else rows[-1]
    assert len(select_pairs(np.delete(obs, lost), 4).arm) == len(select_pairs(obs, 4).arm) - 1


def test_no_runs() -> None:
    found = select_pairs(empty(), 3)
    assert (len(found.arm), found.discarded) == (0, 0)
    effect = run_effect(found, 100.0, 1, 0, peeked=False)
    assert effect.n == 0
    assert math.isnan(effect.interval().lo)


def test_few_pairs_have_no_interval(obs: Observations) -> None:
    found = select_pairs(obs[: len(obs) // 10], 4)
    effect = run_effect(found, 120.0, 1, 100, peeked=False)
    assert 0 < effect.n < MIN_PAIRS
    assert math.isfinite(effect.value)
    assert math.isnan(effect.interval().lo)


def test_a_session_that_dominates_leaves_few_degrees_of_freedom(obs: Observations) -> None:
    calm = run_effect(select_pairs(obs, 4), math.inf, 1, 1000, peeked=False)
    slow = obs.copy()
    slow["service_ns"][slow["backend"] == 1] *= 1000
    found = run_effect(select_pairs(slow, 4), math.inf, 1, 1000, peeked=False)
    assert found.reference.df < 20 < 30 < calm.reference.df <= calm.n - 1


def test_long_carry_over_is_the_difference_from_the_headline(obs: Observations) -> None:
    effect = run_effect(select_pairs(obs, 4), 120.0, 1, 1000, peeked=False)
    body, reference = Expansion(1.5, np.full(100, 0.01)), Reference(1000, 99)
    found = effect.long_carry_over(body, reference)
    assert found.estimate == pytest.approx(effect.value - 1.5)
    assert found.se == pytest.approx(math.hypot(effect.se, body.se))
    unknown = effect.long_carry_over(Expansion(math.nan, np.full(100, math.nan)), reference)
    assert math.isnan(unknown.lo)
