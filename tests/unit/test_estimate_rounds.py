"""Sign flips of paired rounds against flips done one by one, and what n rounds can reach."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pgtare.estimate.study import rounds
from pgtare.estimate.study.attainable import attainable_p, rounds_for_level
from pgtare.estimate.study.rounds import Flips
from pgtare.estimate.study.stopped_early import Closed
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing.ladder import wording
from pgtare.weighing.ladder.result import Effect
from tests.unit import estimate_textbook as textbook
from tests.unit.estimate_textbook import clopper_pearson


def _sample(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.002, 0.006, n)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 10])
def test_p_is_that_of_all_flips(n: int) -> None:
    d = _sample(n, n)
    for theta in (0.0, 0.001, -0.004, float(d[0])):
        assert Flips(d).p(theta) == pytest.approx(textbook.sign_flip_p(list(d), theta), abs=1e-12)
        for above in (True, False):
            fast = Flips(d).p_above(theta) if above else Flips(d).p_below(theta)
            slow = textbook.one_sided_flip_p(list(d), theta, above=above)
            assert fast == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize(("n", "alpha"), [(5, 0.05), (6, 0.05), (8, 0.05), (9, 0.1), (10, 0.05)])
def test_the_interval_inverts_the_test(n: int, alpha: float) -> None:
    d = _sample(n, 30 + n)
    assert Flips(d).interval(alpha) == pytest.approx(
        textbook.sign_flip_interval(list(d), alpha), abs=1e-9
    )


def test_ties_are_counted_as_extreme() -> None:
    d = np.array([0.01] * 6)
    assert Flips(d).p() == 2 / 64
    assert Flips(np.array([0.1, -0.1, 0.2, -0.2])).p() == 1.0


@pytest.mark.parametrize("peeked", [False, True])
@pytest.mark.parametrize("d", [[0.01] * 12, [0.1 + 0.2, 0.3] * 6, [0.0] * 30])
def test_rounds_that_do_not_vary_give_no_interval(d: list[float], peeked: bool) -> None:
    found = rounds.paired(np.array(d), margin=0.005, peeked=peeked, planned=len(d))
    assert found.mean == pytest.approx(d[0])
    assert (found.lo, found.hi) == (-math.inf, math.inf)
    assert all(math.isnan(x) for x in (found.p, found.p_equivalence, found.se))


def test_no_interval_is_printed_without_a_width() -> None:
    effect = Effect(pct=1.0, lo_pct=0.99998, hi_pct=1.00002)
    assert wording.interval(effect) == "[+0.99998, +1.00002]"
    narrow = Interval(estimate=5.0, lo=4.99999, hi=5.00001)
    assert numbers.bounds(narrow) == "[+4.99999, +5.00001]"


def test_more_than_twenty_rounds_are_drawn_and_agree_with_student() -> None:
    d = _sample(30, 5)
    flips = Flips(d, seed=3)
    assert not flips.exact
    t = abs(d.mean()) / (d.std(ddof=1) / math.sqrt(30))
    from scipy import special

    student = 2 * special.stdtr(29, -t)
    assert flips.p() == pytest.approx(student, rel=0.15)
    width = special.stdtrit(29, 0.975) * flips.se
    assert flips.interval() == pytest.approx((d.mean() - width, d.mean() + width), rel=0.15)
    assert flips.p() == Flips(d, seed=3).p()


def test_twenty_rounds_are_exact() -> None:
    flips = Flips(_sample(20, 4))
    assert flips.exact
    assert len(flips.subset_means) == 2**20 - 1


def test_equivalence_is_the_inner_interval_within_the_margin() -> None:
    rng = np.random.default_rng(6)
    margin, equivalent = 0.005, []
    for _ in range(300):
        found = rounds.paired(rng.normal(0.001, 0.007, 12), margin=margin)
        lo, hi = found.within
        equivalent.append(found.p_equivalence <= 0.05)
        assert equivalent[-1] == (-math.log1p(margin) < lo and hi < math.log1p(margin))
        assert found.lo < lo < hi < found.hi
    assert 30 < sum(equivalent) < 270


def test_what_few_rounds_can_reach() -> None:
    assert attainable_p(5) == 0.0625
    assert attainable_p(10) == 2 / 1024
    assert attainable_p(30) == 2 / 100_000  # no smaller p comes of so many draws
    assert Flips(np.linspace(0.9, 1.1, 30)).p() == attainable_p(30)
    assert rounds_for_level(0.05, 1) == 6
    assert rounds_for_level(0.05, 12) == 9
    assert Flips(_sample(5, 1)).interval() == (-math.inf, math.inf)


def test_equivalence_is_the_larger_of_two_sides() -> None:
    d = _sample(10, 8) * 0.1
    found = rounds.paired(d, margin=0.005)
    high, low = math.log1p(0.005), -math.log1p(0.005)
    assert found.p_equivalence == max(
        textbook.one_sided_flip_p(list(d), low, above=True),
        textbook.one_sided_flip_p(list(d), high, above=False),
    )


def test_stopped_by_hand_has_the_wider_interval_and_no_equivalence() -> None:
    d = _sample(12, 3)
    usual = rounds.paired(d, margin=0.01)
    peeked = rounds.paired(d, margin=0.01, peeked=True, planned=12)
    assert peeked.hi - peeked.lo > 1.2 * (usual.hi - usual.lo)
    assert peeked.hi - peeked.lo < 3 * (usual.hi - usual.lo)  # not dozens of standard errors
    assert peeked.p > usual.p
    assert math.isnan(peeked.p_equivalence)


def test_stopped_by_hand_holds_at_all_looks_together() -> None:
    """Whoever looks after every round and stops as soon as zero is excluded is wrong in 5 %."""
    planned, studies = 12, 4_000
    x = np.random.default_rng(9).normal(0, 1, (studies, planned))
    wrong = np.zeros(studies, dtype=bool)
    for n in range(2, planned + 1):
        closed = Closed(n, planned)
        t = x[:, :n].mean(axis=1) / (x[:, :n].std(axis=1, ddof=1) / math.sqrt(n))
        wrong |= np.abs(t) > closed.multiplier
        for value in t[:20]:
            assert (closed.p_value(value) < 0.05) == (abs(value) > closed.multiplier)
    assert clopper_pearson(int(wrong.sum()), studies, 0.99)[0] <= 0.05, wrong.mean()
