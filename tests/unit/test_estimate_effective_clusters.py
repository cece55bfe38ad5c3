"""How many clusters an estimate rests on, and intervals that allow for few."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pgtare.estimate.effective_clusters import degrees_of_freedom, effective_clusters
from pgtare.estimate.inference import Expansion, Reference
from tests.unit.estimate_textbook import clopper_pearson


def test_clusters_that_are_alike_count_each() -> None:
    rng = np.random.default_rng(1)
    assert effective_clusters(rng.normal(0, 1, 100_000)) == pytest.approx(100_000, rel=0.05)
    assert effective_clusters(np.array([1.0, -1.0] * 50)) == 100


def test_dominant_clusters_are_all_that_counts() -> None:
    influence = np.concatenate([np.full(1_000, 1e-3), [5.0]])
    assert effective_clusters(influence) == pytest.approx(1, abs=0.01)
    assert degrees_of_freedom(influence) == 1
    assert effective_clusters(np.zeros(10)) == 0
    assert effective_clusters(np.empty(0)) == 0


@pytest.mark.parametrize("dominant", [2, 4, 6, 10])
def test_intervals_cover_where_few_clusters_dominate(dominant: int) -> None:
    rng = np.random.default_rng(dominant)
    scale = np.concatenate([np.ones(100), np.full(dominant, 30.0)])
    reference, covered, trials = Reference(10_000, len(scale) - 1), 0, 2_000
    for _ in range(trials):
        x = rng.normal(0, 1, len(scale)) * scale
        found = Expansion(float(x.mean()), (x - x.mean()) / len(x))
        interval = reference.of(found.influence).interval(found.value, found.se)
        covered += interval.lo <= 0 <= interval.hi
    assert clopper_pearson(covered, trials, 0.9999)[1] >= 0.95


def test_a_reference_never_gains_degrees_of_freedom() -> None:
    alike = np.array([1.0, -1.0] * 50)
    assert Reference(1_000, 5).of(alike).df == 5
    assert Reference(1, 0).of(alike).df == 0


def test_the_confidence_sequence_allows_for_few_clusters() -> None:
    many, few = Reference(10_000, 10**7, peeked=True), Reference(10_000, 3, peeked=True)
    assert few.multiplier() > 1.5 * many.multiplier()
    for reference in (many, few):
        z = reference.multiplier()
        assert reference.p_value(1.001 * z) < 0.05 < reference.p_value(0.999 * z)


@pytest.mark.parametrize("df", [2, 3, 10])
def test_the_confidence_sequence_is_never_narrower_than_a_fixed_interval(df: int) -> None:
    peeked, fixed = Reference(1_000, df, peeked=True), Reference(1_000, df)
    for alpha in (0.05, 0.005, 1e-4, 1e-6):
        assert peeked.multiplier(alpha) >= fixed.multiplier(alpha)
    for z in (2.0, 9.2, 14.0, 50.0):
        assert peeked.p_value(z) >= fixed.p_value(z)


def test_values_that_do_not_vary_have_no_interval() -> None:
    reference = Reference(100, 99)
    for estimate, se in ((10.0, 0.0), (10.0, 1e-14), (1e-15, 1e-16), (0.0, 0.0)):
        assert math.isnan(reference.interval(estimate, se).lo)
    assert reference.interval(0.001, 1e-5).lo < 0.001
