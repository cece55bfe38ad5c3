"""Layout as a random effect: textbook data, and what intervals cover over thousands of builds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pgtare.estimate.study import layouts
from pgtare.estimate.trial.pseudo_trials import clopper_pearson

#: Yields of six batches of a dye (Davies and Goldsmith 1972); REML: 42.00 between, 49.51 within.
DYESTUFF = [
    np.array(batch, dtype=np.float64)
    for batch in (
        (1545, 1440, 1440, 1520, 1580),
        (1540, 1555, 1490, 1560, 1495),
        (1595, 1550, 1605, 1510, 1560),
        (1445, 1440, 1595, 1465, 1545),
        (1595, 1630, 1515, 1635, 1625),
        (1520, 1455, 1450, 1480, 1445),
    )
]


def test_textbook_variance_components() -> None:
    found = layouts.one_way(DYESTUFF)
    assert found.mean.estimate == pytest.approx(1527.5)
    assert found.mean.se == pytest.approx(19.383, abs=0.001)
    assert found.sd_layout == pytest.approx(42.00, abs=0.01)
    assert found.sd_round == pytest.approx(49.51, abs=0.01)
    assert found.p_layout == pytest.approx(float(stats.f_oneway(*DYESTUFF).pvalue))
    means = [group.mean() for group in DYESTUFF]
    lo, hi = stats.t.interval(0.95, 5, loc=np.mean(means), scale=stats.sem(means))
    assert (found.mean.lo, found.mean.hi) == pytest.approx((lo, hi))
    assert found.sd_layout_lo <= 42.0 <= found.sd_layout_hi


def test_linkings_crossed_with_sets_reject_as_often_as_they_say() -> None:
    """One-way on values less their set's mean forgets the degrees of freedom that the means took.

    Three sets of six linkings that are all alike, each set at a level of its own.
    """
    rng = np.random.default_rng(5)
    studies, alike, outside = 4_000, 0, 0
    for _ in range(studies):
        values = rng.normal(0, 1, (3, 6)) + rng.normal(0, 5, (3, 1))
        found = layouts.two_way(values)
        alike += found.p_layout < 0.05
        spread = np.ptp(values.mean(axis=0))
        outside += spread > 4.912 * found.sd_round / math.sqrt(3)  # Tukey's table: 6 of 10 df
    assert found.df == 10
    for hits in (alike, outside):
        lo, hi = clopper_pearson(hits, studies, 0.9999)
        assert lo <= 0.05 <= hi, hits / studies
    q = layouts.range_half_width(found, 3) * math.sqrt(3) / found.sd_round
    assert q == pytest.approx(4.912, abs=0.002)


def test_two_builds_are_welch_over_layout_means() -> None:
    rng = np.random.default_rng(1)
    arm = [rng.normal(0.01, 0.02, 4) for _ in range(5)]
    base = [rng.normal(0, 0.001, 4) for _ in range(7)]
    found = layouts.two_builds(arm, base)
    sides = [[g.mean() for g in side] for side in (arm, base)]
    expected = stats.ttest_ind(*sides, equal_var=False).confidence_interval(0.95)
    assert (found.lo, found.hi) == pytest.approx((expected.low, expected.high))


def test_rounds_are_distinguished_by_the_layout_they_used() -> None:
    d = np.array([0.01, 0.03, 0.012, 0.028, 0.011, 0.031])
    layout = np.array([1, 2, 1, 2, 1, 2])
    compared, found = layouts.paired(d, layout, margin=0.005, family=3)
    by_hand = layouts.one_way([d[::2], d[1::2]])
    assert (compared.n, compared.positive, found.layouts) == (6, 6, 2)
    assert (compared.lo, compared.hi) == (by_hand.mean.lo, by_hand.mean.hi)
    assert compared.lo < 0 < compared.hi  # six rounds above 0, but of two layouts only
    assert compared.p == by_hand.p
    assert compared.mde > compared.se


@pytest.mark.parametrize(("k", "half_width"), [(10, 0.94), (30, 0.52)])
def test_one_percent_of_layout_needs_many_linkings(k: int, half_width: float) -> None:
    assert layouts.expected_half_width(1.0, k) == pytest.approx(half_width, abs=0.005)


def test_unequal_numbers_of_rounds_count_layouts_alike() -> None:
    groups = [np.array([1.0, 1.0, 1.0, 1.0, 1.1, 0.9]), np.array([2.0]), np.array([3.0, 3.2])]
    found = layouts.one_way(groups)
    assert found.mean.estimate == pytest.approx((1.0 + 2.0 + 3.1) / 3)
    assert (found.layouts, found.rounds, found.df) == (3, 9, 2)


def test_one_layout_bears_no_interval_over_layouts() -> None:
    found = layouts.one_way([np.array([0.01, 0.02, 0.015])])
    assert math.isnan(found.mean.lo)
    assert math.isnan(found.p)
    assert math.isnan(layouts.equivalence_p(found, 0.005))


def test_layouts_that_rounds_explain_have_no_spread_of_their_own() -> None:
    groups = [np.array([0.0, 1.0]), np.array([0.1, 0.9]), np.array([0.05, 0.95])]
    found = layouts.one_way(groups)
    assert found.sd_layout == 0
    assert found.sd_layout_lo == 0
    assert found.p_layout > 0.9


def test_intervals_cover_the_builds_true_difference() -> None:
    """4,000 studies of two builds, 1 % SD of layout each, 0.3 % true: t over layouts covers it.

    Rounds taken as the unit, as the usual ladder does, cover it far less often: the test would see
    an estimator that forgets the layouts.
    """
    rng = np.random.default_rng(7)
    studies, k, rounds = 4_000, 5, 4
    true = 0.003
    pairs = rng.normal(0, 0.01, (studies, k)) - rng.normal(0, 0.01, (studies, k))
    values = true + pairs[:, :, None] + rng.normal(0, 0.006, (studies, k, rounds))
    covered = over = 0
    for study in values:
        found = layouts.one_way(list(study))
        covered += found.mean.lo <= true <= found.mean.hi
        over += found.sd_layout_lo <= math.hypot(0.01, 0.01) <= found.sd_layout_hi
    flat = values.reshape(studies, -1)
    width = stats.t.ppf(0.975, k * rounds - 1) * stats.sem(flat, axis=1)
    naive = int((np.abs(flat.mean(axis=1) - true) <= width).sum())
    lo, hi = clopper_pearson(covered, studies, 0.9999)
    assert lo <= 0.95 <= hi
    assert naive / studies < 0.80
    assert clopper_pearson(over, studies, 0.99)[1] >= 0.95


def test_equivalence_is_claimed_at_the_margin_in_one_of_twenty() -> None:
    rng = np.random.default_rng(8)
    studies, k = 4_000, 6
    margin = 0.02
    claimed = 0
    for _ in range(studies):
        pairs = math.log1p(margin) + rng.normal(0, 0.003, k)
        found = layouts.one_way([pair + rng.normal(0, 0.002, 3) for pair in pairs])
        claimed += layouts.equivalence_p(found, margin) <= 0.05
    lo, hi = clopper_pearson(claimed, studies, 0.99)
    assert lo <= 0.05 <= hi
