"""Power of the sign-flip tests: the very tests on fresh studies, at the effects that are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from pgtare.estimate.study import power
from pgtare.estimate.study.rounds import Flips, paired
from tests.unit.estimate_textbook import clopper_pearson


@pytest.mark.parametrize(("n", "family"), [(6, 1), (9, 12), (12, 36), (12, 4)])
def test_the_test_finds_the_mde_in_four_of_five_studies(n: int, family: int) -> None:
    """Each has an effect of the size that an earlier one named, whose SD was as badly known."""
    rng = np.random.default_rng(n)
    studies, found = 600, 0
    for _ in range(studies):
        named = power.detectable(Flips(rng.normal(0, 1, n)).se, n, family)
        found += Flips(rng.normal(named, 1, n)).p() <= 0.05 / family
    # 1,000 simulated studies stand behind the figure, so that it is some 1.3 % off itself
    lo, hi = clopper_pearson(found, studies, 0.9999)
    assert lo - 0.03 <= power.POWER <= hi + 0.03, found / studies


def test_what_cannot_be_found_has_no_mde() -> None:
    assert power.detectable(0.01, 5, 12) == math.inf
    assert power.detectable(0.01, 3, 16) == math.inf
    assert math.isnan(power.detectable(0.0, 12, 12))
    assert paired(np.random.default_rng(1).normal(0, 1, 5), margin=0.005, family=12).mde == math.inf


def test_many_rounds_are_students() -> None:
    exact, drawn, t = (power.detectable(1.0, n, 12) for n in (14, 28, 60))
    for n, found in ((28, drawn), (60, t)):
        student = power.detectable_by_t(1.0, n - 1, special.stdtrit(n - 1, 1 - 0.05 / 24))
        assert found == pytest.approx(student, rel=0.05)
    assert exact > drawn > t


def test_by_t_the_noncentral_distribution_says_it() -> None:
    threshold = special.stdtrit(9, 0.975)
    rng = np.random.default_rng(4)
    earlier = rng.normal(0, 1, (20_000, 10)).std(axis=1, ddof=1) / math.sqrt(10)
    named = earlier * power.detectable_by_t(2.0, 9, threshold) / 2
    x = rng.normal(named[:, np.newaxis], 1, (20_000, 10))
    t = math.sqrt(10) * x.mean(axis=1) / x.std(axis=1, ddof=1)
    assert (t > threshold).mean() == pytest.approx(power.POWER, abs=0.015)


@pytest.mark.parametrize("df", [1, 3, 9, 60])
@pytest.mark.parametrize("threshold", [0.5, 2.3, 12.7])
def test_by_t_it_is_what_scipy_says(df: int, threshold: float) -> None:
    sds = np.sqrt(special.chdtri(df, (np.arange(5_000) + 0.5) / 5_000) / df)
    effect = power.detectable_by_t(1.0, df, threshold)
    missed = float(special.nctdtr(df, effect * sds, threshold).mean())
    assert missed == pytest.approx(1 - power.POWER, abs=5e-4)


def test_it_is_the_same_every_time() -> None:
    first = power.detectable(1.0, 16, 12)
    power._ends.cache_clear()
    assert power.detectable(1.0, 16, 12) == first


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.0, 0.01])
def test_rounds_to_settle_are_more_than_were_done_and_settle(effect: float) -> None:
    sd, margin, family, done = 0.006, 0.005, 36, 12
    needed = power.rounds_to_settle(effect, sd, margin, family, done=done)
    assert needed is not None
    assert needed > done
    rng = np.random.default_rng(2)
    edge, studies, settled = math.log1p(margin), 150, 0
    for _ in range(studies):
        flips = Flips(rng.normal(effect, sd, needed))
        settled += flips.equivalence_p(-edge, edge) <= 0.05 or flips.p() <= 0.05 / family
    assert clopper_pearson(settled, studies, 0.9999)[1] >= power.POWER
    fewer = power.settled(effect, sd, margin, needed - 1, family)
    assert fewer < power.POWER or needed - 1 <= done or needed in power._STEPS


@pytest.mark.parametrize("done", [29, 40])
def test_rounds_that_were_done_do_not_settle_what_they_left_open(done: int) -> None:
    """As if an estimate is just short of a difference, and of equivalence: chance decides which."""
    mean, margin = 1.95 / math.sqrt(done), math.expm1(3.65 / math.sqrt(done))
    assert power.settled(mean, 1.0, margin, done, 1) >= power.POWER
    needed = power.rounds_to_settle(mean, 1.0, margin, 1, done=done)
    assert needed is not None
    assert needed > done


def test_at_the_margin_more_rounds_tell_it_from_zero_and_never_call_it_equivalent() -> None:
    small = power.rounds_to_settle(0.0045, 0.006, 0.005, 36, done=12)
    assert small is not None
    assert small > 20
    assert power.rounds_to_settle(1e-5, 10.0, 1e-5, 36, done=12) is None
    assert power.rounds_to_settle(0.0, 0.0, 0.005, 12, done=12) is None
