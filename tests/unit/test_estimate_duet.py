"""Duet rounds: pairing, statistics, roles, and what cancels over a set of rounds."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from pgtare.estimate.study.duet import pair_cycles, summarise
from pgtare.weighing.ladder.duet_clusters import load_seed, roles_of_set

RNG = np.random.default_rng(7)


def test_transactions_of_a_cycle_are_paired_whatever_their_order() -> None:
    thread, cycle, variant = (
        np.array(column)
        for column in zip(*itertools.product(range(2), range(5), range(3)), strict=True)
    )
    latency = 1_000_000 * thread + 10_000 * cycle + 1000 * variant
    shuffle = RNG.permutation(len(thread))
    # one transaction of thread 1's cycle 2 is missing: so is its cycle
    shuffle = shuffle[~((thread == 1) & (cycle == 2) & (variant == 0))[shuffle]]
    paired = pair_cycles(
        thread[shuffle],
        cycle[shuffle],
        variant[shuffle],
        latency[shuffle],
        3,
    )
    expected = [
        [1000 * t + 10 * c + v for v in range(3)]
        for t in range(2)
        for c in range(5)
        if (t, c) != (1, 2)
    ]
    assert paired.tolist() == expected


def test_a_cycle_with_a_variant_twice_is_an_error() -> None:
    zeros = np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="twice"):
        pair_cycles(zeros, zeros, zeros, zeros, 2)


def test_statistics_are_the_textbook_ones() -> None:
    values = RNG.lognormal(3, 0.5, size=(1000, 2)) * [1.0, 1.1]
    found = summarise(values).latency_us
    for k in range(2):
        column = np.sort(values[:, k])
        assert found["mean"][k] == pytest.approx(sum(column) / 1000)
        assert found["p50"][k] == pytest.approx((column[499] + column[500]) / 2)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_in_a_set_each_variant_plays_each_cluster_once(n: int) -> None:
    for number in range(20):
        roles = np.array(roles_of_set(11, number, n))
        for lines in (roles, roles.T):
            assert all(sorted(line) == list(range(n)) for line in lines.tolist())


def test_which_role_comes_first_is_drawn_by_lot_and_comes_again_from_the_seed() -> None:
    sets = [roles_of_set(5, number, 2) for number in range(400)]
    first = Counter(roles[0] for roles in sets)
    assert set(first) == {(0, 1), (1, 0)}
    assert 160 <= first[(0, 1)] <= 240
    assert sets[17] == roles_of_set(5, 17, 2)
    assert sets[:40] != [roles_of_set(6, number, 2) for number in range(40)]
    assert load_seed(5, 3) == load_seed(5, 3) != load_seed(5, 4)


def test_placement_cancels_over_a_set_and_the_effect_stays() -> None:
    """Clusters that differ by 20 %, a variant that costs 1 %: a set says 1 %, exactly."""
    placement, effect = np.array([1.0, 1.2, 0.9]), np.array([1.0, 1.01, 1.0])
    rounds = []
    for roles in roles_of_set(2, 0, 3):
        by_variant = np.empty(3)
        for cluster, variant in enumerate(roles):
            by_variant[variant] = 50 * placement[cluster] * effect[variant]
        summary = summarise(np.tile(by_variant, (30, 1)))
        rounds.append(np.log(summary.latency_us["mean"]))
    ratios = np.array(rounds) - np.array(rounds)[:, [0]]
    assert np.abs(ratios).max() > 0.1
    assert ratios.mean(axis=0) == pytest.approx([0.0, np.log(1.01), 0.0], abs=1e-9)
