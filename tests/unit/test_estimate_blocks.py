"""Selection of whole usable blocks."""

from __future__ import annotations

import numpy as np
import pytest

from pgtare.estimate.trial.blocks import RUN_LENGTH, run_length, runs, select
from pgtare.estimate.trial.observations import Observations, UnitFlag, empty
from tests.unit.estimate_textbook import design_of, simulate, usable_blocks

DESIGN = design_of(3)


@pytest.fixture
def obs() -> Observations:
    return simulate(DESIGN, 10, backends=2)


def row(obs: Observations, backend: int, unit: int) -> int:
    return int(np.flatnonzero((obs["backend"] == backend) & (obs["unit"] == unit))[0])


def test_all_blocks_of_a_clean_trial_are_used(obs: Observations) -> None:
    found = select(obs, DESIGN)
    assert found.blocks.n == 20
    assert found.blocks_discarded == 0
    assert found.used.tolist() == [20, 20, 20]
    assert found.excluded.tolist() == [2, 0, 0]  # the first unit of either backend
    assert found.blocks.layout == (0, 1, 2)


def test_order_of_the_rows_does_not_matter(obs: Observations) -> None:
    shuffled = np.random.default_rng(1).permutation(obs)
    one, other = select(obs, DESIGN).blocks, select(shuffled, DESIGN).blocks
    np.testing.assert_array_equal(one.service_us, other.service_us)
    np.testing.assert_array_equal(one.previous, other.previous)


def test_a_lost_unit_discards_its_block_and_hides_the_next_unit_s_previous(
    obs: Observations,
) -> None:
    lost = row(obs, 0, 6)  # the last of the second block
    found = select(np.delete(obs, lost), DESIGN)
    assert found.discarded == {
        "switch_failed": 0,
        "app_changed": 0,
        "reloaded": 0,
        "incomplete": 1,
    }
    assert found.excluded.sum() == 2 + 2
    previous = found.blocks.previous
    assert (previous[0] == -1).sum() == 1
    assert (previous[1] == -1).sum() == 2 + 2  # and the first measured unit of either backend


def test_the_end_of_a_trial_cuts_a_block(obs: Observations) -> None:
    found = select(obs[:-2], DESIGN)
    assert found.blocks.n == 19
    assert found.discarded["incomplete"] == 1


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        (UnitFlag.SWITCH_FAILED, "switch_failed"),
        (UnitFlag.APP_CHANGED, "app_changed"),
        (UnitFlag.RELOADED, "reloaded"),
    ],
)
def test_a_doubtful_arm_discards_its_block(obs: Observations, flag: UnitFlag, reason: str) -> None:
    obs["flags"][row(obs, 1, 6)] = flag
    found = select(obs, DESIGN)
    assert found.discarded[reason] == 1
    assert found.blocks_discarded == 1
    assert (found.blocks.previous[0] == -1).sum() == 1


@pytest.mark.parametrize("flag", [UnitFlag.ABORTED, UnitFlag.COPY, UnitFlag.LOGGED])
def test_other_flags_are_no_reason(obs: Observations, flag: UnitFlag) -> None:
    obs["flags"][row(obs, 1, 6)] = flag
    assert select(obs, DESIGN).blocks_discarded == 0


def test_units_left_open_do_not_count(obs: Observations) -> None:
    """They are what their session had begun last; their times are those so far."""
    more = obs[-1:].copy()
    more["unit"] += 1
    more["block"] += 1
    more["position"], more["flags"], more["service_ns"] = 0, int(UnitFlag.OPEN), 10**12
    found, plain = select(np.append(obs, more), DESIGN), select(obs, DESIGN)
    assert found.blocks.n == plain.blocks.n == 20
    assert (found.discarded, found.excluded.tolist()) == (plain.discarded, plain.excluded.tolist())
    cut = obs.copy()
    cut["flags"][-1] |= np.uint32(UnitFlag.OPEN)
    assert select(cut, DESIGN).discarded["incomplete"] == 1


def test_wrong_or_doubled_units_discard_their_block(obs: Observations) -> None:
    obs["arm"][row(obs, 0, 2)] = 7
    found = select(obs, DESIGN)
    assert (found.foreign, found.discarded["incomplete"]) == (1, 1)
    doubled = np.append(obs, obs[row(obs, 1, 5)])
    assert select(doubled, DESIGN).discarded["incomplete"] == 2


def test_base_twice_in_a_block() -> None:
    design = design_of(3, block=(0, 1, 2, 0))
    found = select(simulate(design, 8), design)
    assert found.blocks.layout == (0, 0, 1, 2)
    assert found.used.tolist() == [16, 8, 8]
    x = found.blocks.service_us
    np.testing.assert_allclose(
        found.blocks.difference(x, 2), x[:, 3] - (x[:, 0] + x[:, 1]) / 2, rtol=1e-12
    )


def test_no_observations() -> None:
    found = select(empty(), DESIGN)
    assert found.blocks.n == 0
    assert found.blocks.n_clusters == 0
    assert found.blocks.layout == (0, 1, 2)


def test_clusters_are_runs_of_a_backend_s_blocks() -> None:
    backend = np.repeat([0, 3], [320, 330])
    cluster = runs(backend)
    assert cluster[15] == 0
    assert cluster[16] == 1
    assert cluster[319] == 19
    assert cluster[320] == 20
    assert cluster[-1] == 40
    assert run_length(511) < RUN_LENGTH == run_length(512)


def test_same_blocks_as_the_textbook() -> None:
    rng = np.random.default_rng(4)
    obs = simulate(DESIGN, 40, backends=3)
    obs["flags"][rng.integers(0, len(obs), 6)] |= np.uint32(UnitFlag.RELOADED)
    obs = np.delete(obs, rng.integers(0, len(obs), 12))
    found, plain = select(obs, DESIGN), usable_blocks(obs, DESIGN)
    assert found.blocks.n == len(plain) < 120
    for b, block in enumerate(plain):
        for column, unit in enumerate(sorted(block.units, key=lambda u: u.arm)):
            assert found.blocks.service_us[b, column] == unit.service_us
            before = [-1 if a is None else a for a in unit.before]
            previous = found.blocks.previous[:, b, column].tolist()
            assert previous[0] == before[0]
            # Of no use, and so not looked for, where the unit between the two was lost.
            assert previous[1] == before[1] or (previous[1], before[0]) == (-1, -1)
