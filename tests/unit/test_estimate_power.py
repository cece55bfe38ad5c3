"""Power of the sign-flip tests: the very tests on fresh studies, with the rounds that are named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pgtare.estimate.study import power
from pgtare.estimate.study.rounds import Flips
from tests.unit.estimate_textbook import clopper_pearson


def test_it_is_the_same_every_time() -> None:
    first = power.settled(0.005, 0.006, 0.005, 16, 12)
    power._ends.cache_clear()
    assert power.settled(0.005, 0.006, 0.005, 16, 12) == first


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
