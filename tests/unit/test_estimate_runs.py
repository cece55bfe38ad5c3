"""Which transactions of a trial by runs are used, and that simulated trials are dealt as real."""

from __future__ import annotations

import numpy as np
import pytest

from pgtare.estimate.trial.observations import NO_BLOCK, Observations, UnitFlag, empty
from pgtare.estimate.trial.runs import DROPPED, select
from tests.assignment import NOBODY, first_arm, permuted_block, run_length
from tests.unit import simulated_trial as simulated
from tests.unit.estimate_textbook import design_of, later_units, simulate

DESIGN = design_of(3)


@pytest.fixture
def obs() -> Observations:
    return simulate(DESIGN, 10, backends=2)


def row(obs: Observations, backend: int, unit: int) -> int:
    return int(np.flatnonzero((obs["backend"] == backend) & (obs["unit"] == unit))[0])


def test_simulated_sessions_are_dealt_as_by_the_server() -> None:
    rng = np.random.default_rng(1)
    design = simulated.design_of(2, 77)
    sessions = simulated.new([simulated.lognormal(240, rng) for _ in range(7)], rng)
    sessions += simulated.old([simulated.lognormal(240, rng)])
    obs = simulated.simulate(sessions, design).observations
    order = sorted(range(7), key=lambda i: sessions[i].begins_us)
    for i in range(8):
        mine = obs[obs["backend"] == i]
        assert mine["unit"].tolist() == list(range(240))
        first = mine[mine["flags"] & UnitFlag.FIRST_RUN != 0]
        later = mine[len(first) :]
        if i < 7:
            assert len(first) == run_length(design, i, NOBODY)
            assert set(first["arm"]) == {first_arm(design, order.index(i))}
            assert set(first["block"]) == {NO_BLOCK}
        else:
            assert not len(first)
        for block in range(2):
            length = run_length(design, i, block)
            rows = later[later["block"] == block]
            arms = np.repeat(permuted_block(design, i, block), length)
            assert rows["arm"].tolist() == arms.tolist()
            assert rows["position"].tolist() == list(range(length)) * 3
            assert rows["run"].tolist() == np.repeat([0, 1, 2], length).tolist()
    started = np.array([first_arm(design, n) for n in range(300)])
    assert np.bincount(started).tolist() == [100] * 3


def test_effects_are_where_their_arm_is() -> None:
    rng = np.random.default_rng(1)
    design = simulated.design_of(2, 5)
    sessions = simulated.old([simulated.lognormal(500, rng)])
    sessions += simulated.new([simulated.lognormal(500, rng)], rng)
    effect = simulated.Effect(lambda x: x + 100, cold_us=(40.0, 20.0), after_us=(7.0,))
    made = simulated.simulate(sessions, design, {1: effect})
    rows = made.observations
    added = rows["service_ns"] / 1000 - made.base_us
    arm, same = rows["arm"], rows["unit"] > 0
    same[1:] &= rows["arm"][1:] == rows["arm"][:-1]
    begins = np.flatnonzero(~same & (arm == 1))
    assert added[begins] == pytest.approx(140, abs=0.001)
    assert added[begins + 1] == pytest.approx(120, abs=0.001)
    assert added[begins[1:] + 2] == pytest.approx(100, abs=0.001)
    after = np.flatnonzero(~same & (arm != 1) & (np.roll(arm, 1) == 1) & (rows["unit"] > 0))
    assert added[after] == pytest.approx(7, abs=0.001)
    quiet = (arm != 1) & ~np.isin(np.arange(len(arm)), after)
    assert added[quiet] == pytest.approx(0, abs=0.001)
    # left on for long in the one session, switched on when it began in the other
    assert made.on_us[:500] - made.base_us[:500] == pytest.approx(100)
    assert (made.on_us - made.base_us)[500:503].tolist() == pytest.approx([140, 120, 100])


def test_sessions_that_are_cut_off_leave_their_transaction_open() -> None:
    x = np.full(50, 1_000.0)
    obs = simulated.simulate([simulated.Session(x, life_us=5_500)], DESIGN).observations
    assert len(obs) == 6
    assert (obs["flags"] & UnitFlag.OPEN != 0).tolist() == [False] * 5 + [True]
    assert obs["service_ns"][-1] == (5_500 - 5 * 1_000 - 6 * simulated.GAP_US) * 1_000


def test_all_but_the_beginnings_of_runs_enter(obs: Observations) -> None:
    found = select(obs, DESIGN)
    late = obs["position"] >= DROPPED
    assert found.used.tolist() == np.bincount(obs["arm"][late], minlength=3).tolist()
    assert (found.used + found.excluded).tolist() == np.bincount(obs["arm"]).tolist()
    assert found.sessions == 2
    assert found.covered(first_used=False) == 1.0
    assert len(found.beginnings.units.arm) == np.count_nonzero(~late)
    assert len(found.early.units.arm) + len(found.late.units.arm) == found.used.sum()
    assert found.first is None


def test_the_same_transactions_as_the_textbook() -> None:
    rng = np.random.default_rng(4)
    obs = simulate(DESIGN, 6, backends=12)
    # some sessions are cut off in the middle of a block, some before the end of their first
    keep = obs["unit"] < rng.integers(20, 400, 12)[obs["backend"]]
    obs = obs[keep].copy()
    obs["flags"][rng.integers(0, len(obs), 6)] |= np.uint32(UnitFlag.RELOADED)
    last = np.flatnonzero(np.diff(obs["backend"], append=-1))[::2]
    obs["flags"][last] |= np.uint32(UnitFlag.OPEN)
    found, plain = select(rng.permutation(obs), DESIGN).later.units, later_units(obs, DESIGN)
    assert 500 < len(plain) < np.count_nonzero(obs["position"] >= DROPPED)
    assert found.service_us.tolist() == [u.service_us for u in plain]
    assert found.arm.tolist() == [u.arm for u in plain]
    assert found.open.tolist() == [u.open for u in plain]
    blocks = [u.block for u in plain]
    same = [a == b for a, b in zip(blocks[1:], blocks[:-1], strict=True)]
    assert (np.diff(found.cluster) == 0).tolist() == same


def test_a_session_without_a_whole_block_is_left_out(obs: Observations) -> None:
    length = run_length(DESIGN, 1, 0)
    short = (obs["backend"] == 1) & (obs["unit"] >= 3 * length - 1)
    found = select(obs[~short], DESIGN)
    assert found.sessions == 1
    assert len(found.later.units.arm) == np.count_nonzero(
        (obs["backend"] == 0) & (obs["position"] >= DROPPED)
    )
    n = np.count_nonzero(obs["backend"] == 0)
    assert found.covered(first_used=False) == pytest.approx(n / (n + 3 * length - 1))
    one_more = (obs["backend"] == 1) & (obs["unit"] >= 3 * length)
    whole = select(obs[~one_more], DESIGN)
    assert (whole.sessions, whole.shortest) == (2, 3 * length)


def test_a_block_that_was_cut_short_is_part_of_the_one_before(obs: Observations) -> None:
    lengths = [run_length(DESIGN, 0, block) for block in range(3)]
    end = 3 * (lengths[0] + lengths[1]) + lengths[2] + DROPPED + 2
    units = select(obs[(obs["backend"] == 0) & (obs["unit"] < end)], DESIGN).later.units
    kept = [3 * (length - DROPPED) for length in lengths]
    assert units.counts(0).shape == (2,)
    assert np.bincount(units.cluster).tolist() == [kept[0], kept[1] + kept[2] // 3 + 2]


@pytest.mark.parametrize(
    "flag",
    [UnitFlag.SWITCH_FAILED, UnitFlag.APP_CHANGED, UnitFlag.RELOADED, UnitFlag.UNDRAWN],
)
def test_a_doubtful_arm_leaves_its_transaction_out(obs: Observations, flag: UnitFlag) -> None:
    at = np.flatnonzero(obs["position"] >= DROPPED)[6]
    before = select(obs, DESIGN).used.sum()
    obs["flags"][at] = flag
    found = select(obs, DESIGN)
    assert found.used.sum() == before - 1
    plain = later_units(obs, DESIGN)
    assert len(found.later.units.arm) == len(plain)


@pytest.mark.parametrize("flag", [UnitFlag.ABORTED, UnitFlag.COPY, UnitFlag.LOGGED])
def test_other_flags_are_no_reason(obs: Observations, flag: UnitFlag) -> None:
    before = select(obs, DESIGN).used.tolist()
    obs["flags"][row(obs, 1, 60)] = flag
    assert select(obs, DESIGN).used.tolist() == before


def test_unknown_arms_are_left_out(obs: Observations) -> None:
    before = select(obs, DESIGN).n_all
    obs["arm"][row(obs, 0, 200)] = 7
    assert select(obs, DESIGN).n_all == before - 1


def test_no_observations() -> None:
    found = select(empty(), DESIGN)
    assert found.later.units.n_clusters == 0
    assert found.covered(first_used=False) == 0
    assert found.first is None


def test_first_runs_are_of_new_sessions_and_count_as_their_share() -> None:
    rng = np.random.default_rng(2)
    sessions = simulated.new([simulated.lognormal(60, rng) for _ in range(60)], rng, stratum=3)
    sessions += simulated.new([simulated.lognormal(300, rng) for _ in range(60)], rng, stratum=9)
    obs = simulated.simulate(sessions, DESIGN).observations
    found = select(obs, DESIGN)
    assert found.first is not None
    in_first = obs["flags"] & UnitFlag.FIRST_RUN != 0
    assert found.n_first == np.count_nonzero(in_first)
    assert len(found.first.units.arm) == found.n_first
    assert found.first.group.tolist() == [0] * 60 + [1] * 60
    assert [found.first.sessions(arm) for arm in range(3)] == [40, 40, 40]
    long = obs["backend"] >= 60
    assert found.sessions >= 60
    assert found.covered(first_used=True) > found.covered(first_used=False)
    assert found.n_later >= np.count_nonzero(long & ~in_first)
    assert found.first_share == pytest.approx(found.n_first / (found.n_first + found.n_later))
