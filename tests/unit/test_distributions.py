"""Probabilities and quantiles are those of scipy, from the middle to the farthest tails."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from scipy import special

from pgtare.estimate import distributions

DEGREES = (0.5, 1, 1.1, 1.5, 1.999, 2, 2.5, 3, 4, 7.3, 31, 63, 300.7, 3601, 1e4, 1e6, 1e9, math.inf)
_TAILS = [10.0**-k for k in (300, 250, 200, 100, 60, 30, 20, 15, 12, 9, 7, 5, 4, 3, 2)]
_TAILS += [0.025, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.49, 0.4999, 0.5 - 1e-9]
PROBABILITIES = [*_TAILS, 0.5, *(1 - p for p in _TAILS if p > 1e-16)]
PLACES = [10.0**k for k in (-12, -4, -2, -1, 2, 3, 5, 8, 20, 100, 250)]
PLACES += [0.5, 0.99, 1, 1.01, 1.7, 1.96, 3, 5, 10, 20, 30, 37]


def farthest(
    ours: Callable[..., float], theirs: Callable[..., float], grid: Iterable[tuple[float, ...]]
) -> tuple[float, tuple[float, ...]]:
    """The largest relative difference, and where; what no float can be is left out."""
    found = []
    for place in grid:
        mine, reference = ours(*place), float(theirs(*place))
        if not 1e-305 < abs(reference) < 1e150:
            continue
        found.append((abs(mine - reference) / abs(reference), place))
    assert len(found) > 20
    return max(found)


def test_student() -> None:
    places = [(df, sign * t) for df in DEGREES for t in PLACES for sign in (-1, 1)]
    # scipy has 1/2 + 4.7e-9 for Cauchy's distribution at 1e-8, which is 1/2 + 3.2e-9
    below = farthest(distributions.student_below, special.stdtr, places)
    assert below[0] < 1e-9, below
    # scipy's quantiles are those of its own probabilities but for the farthest and the nearest
    grid = list(itertools.product(DEGREES, PROBABILITIES))
    back = farthest(
        lambda df, p: float(special.stdtr(df, distributions.student_quantile(df, p))),
        lambda df, p: p,
        [at for at in grid if abs(distributions.student_quantile(*at)) < 1e150],
    )
    assert back[0] < 1e-8, back
    usual = [(df, p) for df, p in grid if p > 1e-199 and abs(p - 0.5) > 1e-3]
    quantile = farthest(distributions.student_quantile, special.stdtrit, usual)
    assert quantile[0] < 1e-9, quantile


def test_cauchy_near_zero() -> None:
    for t in (1e-8, 1e-6, 0.3):
        expected = 0.5 + math.atan(t) / math.pi
        assert distributions.student_below(1, t) == pytest.approx(expected, rel=1e-15)
        assert distributions.student_quantile(1, expected) == pytest.approx(t, rel=1e-7)


def test_normal() -> None:
    places = [(sign * t,) for t in PLACES for sign in (-1, 1)]
    assert farthest(distributions.normal_below, special.ndtr, places)[0] < 1e-12
    grid = [(p,) for p in PROBABILITIES if p != 0.5]
    assert farthest(distributions.normal_quantile, special.ndtri, grid)[0] < 1e-12
    several = np.linspace(-37, 9, 100).reshape(4, 25)
    np.testing.assert_allclose(
        distributions.normals_below(several), special.ndtr(several), rtol=1e-12
    )


def test_binomial() -> None:
    trials = (1, 2, 5, 20, 100, 1000, 100_000)
    grid = [
        (hits, n, share)
        for n in trials
        for hits in {0, 1, n // 10, n // 3, n // 2, n - 1, n}
        for share in (1e-6, 0.01, 0.2, 1 / 3, 0.5, 0.9, 0.99)
    ]
    at_most = farthest(distributions.binomial_at_most, special.bdtr, grid)
    assert at_most[0] < 1e-9, at_most
    at_least = farthest(
        distributions.binomial_at_least,
        lambda hits, n, share: special.bdtrc(hits - 1, n, share) if hits else 1.0,
        grid,
    )
    assert at_least[0] < 1e-9, at_least


def test_beta() -> None:
    sizes = (0.5, 1, 2, 3, 7, 20.5, 100, 1000, 1e5)
    places = (1e-300, 1e-100, 1e-20, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999)
    below = farthest(
        distributions.beta_below, special.betainc, itertools.product(sizes, sizes, places)
    )
    assert below[0] < 1e-9, below


def test_chi_square() -> None:
    degrees = (0.5, 1, 1.5, 2, 3, 5, 31, 100, 1e3, 1e6)
    grid = [
        (df, x)
        for df in degrees
        for x in (1e-10, 1e-3, 0.5, 1, 5, 30, 500, 1300, df / 2, 0.99 * df, df, 1.01 * df, 2 * df)
    ]
    above = farthest(distributions.chi_square_above, special.chdtrc, grid)
    assert above[0] < 1e-9, above
    grid = list(itertools.product(degrees, PROBABILITIES))
    exceeded = farthest(distributions.chi_square_exceeded, special.chdtri, grid)
    assert exceeded[0] < 1e-9, exceeded


def test_digamma_and_trigamma() -> None:
    x = np.array([0.5, 1, 1.7, 2, 5, 9.9, 10, 31, 1e4, 5e8])
    np.testing.assert_allclose(distributions.digamma(x), special.digamma(x), rtol=1e-13)
    np.testing.assert_allclose(distributions.trigamma(x), special.polygamma(1, x), rtol=1e-13)


def test_the_ends_and_what_is_no_number() -> None:
    nan, inf = math.nan, math.inf
    assert distributions.student_quantile(5, 0) == -inf
    assert distributions.student_quantile(5, 1) == inf
    assert distributions.student_quantile(5, 0.5) == 0
    assert distributions.student_quantile(0.3, 1e-300) == -inf
    assert [distributions.student_below(5, t) for t in (-inf, 0, 1e-200, inf)] == [0, 0.5, 0.5, 1]
    assert [distributions.normal_quantile(p) for p in (0, 1)] == [-inf, inf]
    assert [distributions.beta_below(2, 3, x) for x in (0, 1)] == [0, 1]
    assert [distributions.chi_square_exceeded(2, p) for p in (0, 1)] == [inf, 0]
    assert [distributions.chi_square_above(2, x) for x in (-1, 0, 5e-324, inf)] == [1, 1, 1, 0]
    assert distributions.chi_square_above(1e7, 1e-322) == 1
    assert distributions.beta_below(1e6, 1e-2, 1e-322) == 0
    nothing = [
        distributions.student_below(nan, 1),
        distributions.student_below(3, nan),
        distributions.student_below(0, 1),
        distributions.student_quantile(nan, 0.5),
        distributions.student_quantile(3, nan),
        distributions.student_quantile(3, 1.1),
        distributions.student_quantile(-1, 0.9),
        distributions.normal_below(nan),
        distributions.normal_quantile(nan),
        distributions.normal_quantile(-0.1),
        distributions.binomial_at_most(1, 3, nan),
        distributions.binomial_at_least(1, 3, nan),
        distributions.beta_below(nan, 1, 0.5),
        distributions.beta_below(1, 1, nan),
        distributions.chi_square_above(nan, 1),
        distributions.chi_square_above(1, nan),
        distributions.chi_square_exceeded(1, nan),
    ]
    assert all(math.isnan(value) for value in nothing)


@pytest.mark.parametrize("df", [1.5, 10.25, 63.1, 1000.7, 1e6])
def test_a_quantile_takes_microseconds(df: float) -> None:
    begin = time.process_time()
    for i in range(500):
        distributions.student_quantile(df + i / 1e5, 0.975)
    assert (time.process_time() - begin) / 500 < 500e-6  # it takes 20 to 50


@pytest.mark.slow
def test_an_agent_does_not_load_scipy() -> None:
    code = "import sys, pgtare.cli.agent; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
