"""A fleet's estimate against published examples, statsmodels, and what must not change it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.meta_analysis import combine_effects

from pgtare.estimate.arrays import Floats
from pgtare.estimate.fleet.heterogeneity import (
    tau2_at,
    tau2_interval,
    typical_variance,
    weighted_squares,
)
from pgtare.estimate.fleet.kinds import find_kinds, largest_ratio
from pgtare.estimate.fleet.prediction import intervals, over_tau2
from pgtare.estimate.fleet.random_effects import FleetEstimate, combine, judge_fleet
from pgtare.estimate.fleet.server_effect import ServerEffect, arrays_of, working_variances
from pgtare.estimate.inference import Estimate

#: So many that the standard error is as good as known.
MANY = 1e9

#: Colditz et al., JAMA 1994: vaccinated with and without tuberculosis, and the others; dat.bcg of
#: metafor.
BCG = np.array(
    [
        (4, 119, 11, 128),
        (6, 300, 29, 274),
        (3, 228, 11, 209),
        (62, 13536, 248, 12619),
        (33, 5036, 47, 5761),
        (180, 1361, 372, 1079),
        (8, 2537, 10, 619),
        (505, 87886, 499, 87892),
        (29, 7470, 45, 7232),
        (17, 1699, 65, 1600),
        (186, 50448, 141, 27197),
        (5, 2493, 3, 2338),
        (27, 16886, 29, 17825),
    ],
    dtype=np.float64,
)

#: A key comparison of metrology: Kacker, Metrologia 2004.
KACKER = (
    np.array([61.00, 61.40, 62.21, 62.30, 62.34, 62.60, 62.70, 62.84, 65.90]),
    np.array([0.2025, 1.2100, 0.0900, 0.2025, 0.3844, 0.5625, 0.0676, 0.0225, 1.8225]),
)


def log_risk_ratios() -> tuple[Floats, Floats]:
    a, b, c, d = BCG.T
    return np.log(a / (a + b) / (c / (c + d))), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)


def log_odds_ratios() -> tuple[Floats, Floats]:
    a, b, c, d = BCG.T
    return np.log(a * d / (b * c)), 1 / a + 1 / b + 1 / c + 1 / d


def fleet_of(estimates: Floats, variances: Floats, clusters: float = MANY) -> list[ServerEffect]:
    return [
        ServerEffect(f"s{i:03}", float(y), math.sqrt(v), clusters)
        for i, (y, v) in enumerate(zip(estimates, variances, strict=True))
    ]


def drawn(seed: int, k: int, tau: float = 0.02, clusters: float = 64.0) -> list[ServerEffect]:
    rng = np.random.default_rng(seed)
    se = 0.01 * np.exp(rng.normal(0, 0.4, k))
    estimates = rng.normal(0.01, tau, k) + rng.normal(0, se)
    return fleet_of(estimates, se**2, clusters)


def students_width(fleet: list[ServerEffect]) -> float:
    """Half of Student's prediction interval: τ² taken as estimated."""
    return float(intervals(*arrays_of(sorted(fleet, key=lambda one: one.server))).student_width)


def test_metafor_paule_mandel() -> None:
    # rma(y, v, method="PM", control=list(tol=1e-9)), as statsmodels' own tests have it
    found = combine(fleet_of(*KACKER))
    assert found.tau2.estimate == pytest.approx(0.705395309224248, rel=1e-9)
    assert found.mean.estimate == pytest.approx(KACKER[0].mean())
    se = KACKER[0].std(ddof=1) / 3
    assert found.mean.se == pytest.approx(se)
    assert found.q == pytest.approx(24.801897741835, rel=1e-8)
    assert found.q_p == pytest.approx(0.00167935146372742, rel=1e-7)
    assert found.i2 == pytest.approx(0.837218626490482, rel=1e-8)
    assert found.prediction is not None
    spread = math.sqrt(0.705395309224248 + se**2)
    assert found.prediction.se == pytest.approx(spread, rel=1e-8)


def test_metafor_bcg() -> None:
    # metafor's confint(rma(yi, vi, data=dat.bcg)) and its test against Stata's metan
    estimates, variances = log_risk_ratios()
    q, _ = weighted_squares(estimates, variances, np.zeros(()))
    assert float(q) == pytest.approx(152.2330, abs=5e-5)
    low, high = tau2_interval(estimates, variances)
    assert (float(low), float(high)) == pytest.approx((0.1197, 1.1115), abs=5e-5)
    typical = float(typical_variance(variances))
    assert 100 * 0.3132 / (0.3132 + typical) == pytest.approx(92.22, abs=0.006)
    fixed = (estimates / variances).sum() / (1 / variances).sum()
    assert fixed == pytest.approx(-0.4303, abs=5e-5)


def test_metafor_van_houwelingen() -> None:
    # metafor's page on van Houwelingen, Arends and Stijnen 2002, log odds ratios of the same trials
    low, high = tau2_interval(*log_odds_ratios())
    assert (float(low), float(high)) == pytest.approx((0.1302, 1.1812), abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_statsmodels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(3, 30))
    variances = np.exp(rng.normal(0, 1, k))
    estimates = rng.normal(0, rng.choice([0.3, 1.0, 5.0]), k) + rng.normal(0, np.sqrt(variances))
    theirs = combine_effects(estimates, variances, method_re="pm", use_t=True, atol=1e-7)
    ours = combine(fleet_of(estimates, variances))
    assert ours.tau2.estimate == pytest.approx(theirs.tau2, rel=1e-6, abs=1e-12)
    assert ours.q == pytest.approx(theirs.q, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_is_that_of_one_sample(seed: int) -> None:
    rng = np.random.default_rng(seed)
    estimates = rng.normal(0.3, 1, int(rng.integers(3, 30)))
    found = combine(fleet_of(estimates, np.full(len(estimates), 1e-6)))
    interval = scipy.stats.ttest_1samp(estimates, 0).confidence_interval()
    assert (found.mean.lo, found.mean.hi) == pytest.approx((interval.low, interval.high), rel=1e-5)


@pytest.mark.slow
def test_a_weight_from_an_error_would_be_a_weight_from_a_cost() -> None:
    """Dear servers have larger errors: the interval of the mean has it in 19 of 20 fleets."""
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(300):
        dear = rng.standard_normal(30)
        se = 0.4 * np.exp(0.8 * dear)
        found = combine(fleet_of(1 + 0.5 * dear + se * rng.standard_normal(30), se**2))
        held += found.mean.lo <= 1 <= found.mean.hi
    assert held >= 270


def test_servers_of_two_kinds_are_named_and_nothing_is_said_of_the_next() -> None:
    rng = np.random.default_rng(4)
    estimates = np.where(np.arange(20) % 5 == 0, 5.0, 1.0) + 0.2 * rng.standard_normal(20)
    found = combine(fleet_of(estimates, np.full(20, 0.01)), margin=10.0)
    assert found.verdict == "kinds"
    assert found.prediction is None
    assert found.kinds is not None
    assert found.kinds.fewer == ("s000", "s005", "s010", "s015")
    assert found.kinds.dearer
    assert "dearer: s000, s005" in found.reason
    cheaper = combine(fleet_of(-estimates, np.full(20, 0.01))).kinds
    assert cheaper is not None
    assert (cheaper.fewer, cheaper.dearer) == (found.kinds.fewer, False)


def test_servers_of_one_kind_are_seldom_said_to_be_of_two() -> None:
    """At 3 %; 300 fleets exceed 25 once in a million runs."""
    rng = np.random.default_rng(6)
    said = 0
    for number in range(300):
        se = 0.5 * np.exp(0.4 * rng.standard_normal(10))
        spread = 0.0 if number % 2 else 1.0
        true = spread * rng.standard_normal(10)
        said += find_kinds(fleet_of(true + se * rng.standard_normal(10), se**2, 64.0)) is not None
    assert said <= 25


def test_the_cut_between_kinds_by_brute_force() -> None:
    estimates = np.random.default_rng(2).normal(0, 1, 9)
    ordered = np.sort(estimates)
    ratios = []
    for cut in range(1, 9):
        parts = ordered[:cut], ordered[cut:]
        within = sum(((part - part.mean()) ** 2).sum() for part in parts)
        ratios.append((((ordered - ordered.mean()) ** 2).sum() - within) / within)
    ratio, below = largest_ratio(estimates)
    assert float(ratio) == pytest.approx(max(ratios))
    assert int(below) == 1 + int(np.argmax(ratios))


def test_equal_errors_have_a_closed_form() -> None:
    # τ² is the variance over servers less that of an estimate
    estimates = np.array([1.0, 4.0, 2.0, 9.0])
    tau2 = tau2_at(estimates, np.full(4, 2.0), 3)
    assert float(tau2) == pytest.approx(estimates.var(ddof=1) - 2.0)
    low, high = tau2_interval(estimates, np.full(4, 2.0))
    squares = 3 * estimates.var(ddof=1)
    assert float(low) == pytest.approx(max(0, squares / scipy.stats.chi2.ppf(0.975, 3) - 2))
    assert float(high) == pytest.approx(squares / scipy.stats.chi2.ppf(0.025, 3) - 2)


def test_the_scale_is_at_least_one() -> None:
    # servers that agree to the last digit do not make the mean known
    found = combine(fleet_of(np.full(6, 0.01), np.full(6, 4.0)))
    assert found.tau2.estimate == 0.0
    assert found.mean.se == pytest.approx(2 / math.sqrt(6))


def test_students_prediction_by_hand() -> None:
    estimates, variances = log_risk_ratios()
    fleet = fleet_of(estimates, variances)
    se2 = estimates.var(ddof=1) / len(estimates)
    spread = math.sqrt(combine(fleet).tau2.estimate + se2)
    assert students_width(fleet) == pytest.approx(scipy.stats.t.ppf(0.975, 11) * spread, rel=1e-6)


def test_without_errors_the_prediction_is_of_the_next_normal() -> None:
    # Student's t with k - 1 degrees of freedom is exact there; with k - 2 it is a little wider
    estimates = np.random.default_rng(3).normal(0, 1, 20)
    fleet = fleet_of(estimates, np.full(20, 1e-12))
    found = combine(fleet)
    spread = estimates.std(ddof=1) * math.sqrt(1 + 1 / 20)
    exact = scipy.stats.t.ppf(0.975, 19) * spread
    assert found.prediction is not None
    half = found.prediction.half_width
    assert exact <= half <= 1.01 * exact
    # Student's is the wider one there, at both ends
    width = students_width(fleet)
    assert found.prediction.lo == pytest.approx(found.mean.estimate - width, rel=1e-6)
    assert found.prediction.hi == pytest.approx(found.mean.estimate + width, rel=1e-6)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_over_tau2_without_errors_is_exactly_the_next_normal(level: float) -> None:
    # τ² is (k - 1) s² / χ² then, so that the mixture is Student's t with k - 1 degrees of freedom
    estimates = np.random.default_rng(3).normal(0.3, 1, 7)
    low, high = over_tau2(estimates, np.full(7, 1e-12), level)
    half = scipy.stats.t.ppf((1 + level) / 2, 6) * estimates.std(ddof=1) * math.sqrt(1 + 1 / 7)
    assert float(low) == pytest.approx(estimates.mean() - half, abs=1e-3 * half)
    assert float(high) == pytest.approx(estimates.mean() + half, abs=1e-3 * half)


def test_over_tau2_with_errors_by_brute_force() -> None:
    estimates = np.array([-1.0, -0.5, 0.3, 0.9, 2.5])
    variances = np.array([0.3, 1.0, 0.5, 2.0, 0.4])

    def q_at(tau2: float) -> float:
        weights = 1 / (variances + tau2)
        return float(weights @ (estimates - weights @ estimates / weights.sum()) ** 2)

    def of(share: float) -> tuple[float, float]:
        target = scipy.stats.chi2.isf(share, 4)
        tau2 = 0.0
        if q_at(0.0) > target:
            tau2 = scipy.optimize.brentq(lambda tau2: q_at(tau2) - target, 0.0, 1e9)
        return estimates.mean(), math.sqrt(tau2 + tau2 / 5 + variances.sum() / 25)

    means, spreads = np.array([of((i + 0.5) / 1000) for i in range(1000)]).T
    low, high = over_tau2(estimates, variances)
    for end, share in ((low, 0.025), (high, 0.975)):
        below = float(scipy.stats.norm.cdf((float(end) - means) / spreads).mean())
        assert below == pytest.approx(share, abs=5e-4)


def test_tau2_zero_by_chance_does_not_make_the_prediction_narrow() -> None:
    # τ² is estimated as 0, but its interval is not
    estimates = 1.4 * np.array([-1.0, -0.5, 0.0, 0.2, 0.4, 0.6, 0.9, -0.8])
    fleet = fleet_of(estimates, np.full(8, 1.0))
    found = combine(fleet)
    assert found.tau2.estimate == 0.0
    assert found.tau2.hi > 0.5
    assert found.prediction is not None
    assert found.prediction.half_width > 1.3 * students_width(fleet)
    half = 1.1 * students_width(fleet)
    assert found.prediction.lo < found.mean.estimate - half
    assert found.prediction.hi > found.mean.estimate + half


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_a_few_servers_are_a_list(k: int) -> None:
    found = combine(drawn(1, k), margin=10.0)
    assert found.verdict == "list"
    assert found.reason.startswith(f"{k} server")
    assert found.prediction is None
    assert math.isfinite(found.mean.lo) == (k >= 1)


def test_five_servers_are_a_sample() -> None:
    assert combine(drawn(1, 5), margin=10.0).verdict == "equivalent"


def between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, 1.0, low, high)


@pytest.mark.parametrize(
    ("mean", "prediction", "margin", "verdict"),
    [
        ((0.1, 0.2), (-0.5, 0.5), 0.501, "equivalent"),
        # an end on the margin is not inside, nor is an end on zero apart from zero
        ((-0.1, 0.2), (-0.5, 0.4), 0.5, "inconclusive"),
        ((-0.1, 0.2), (-0.4, 0.5), 0.5, "inconclusive"),
        ((-0.1, 0.2), (-0.6, 0.4), 0.5, "inconclusive"),
        ((-0.1, 0.2), (-0.4, 0.6), 0.5, "inconclusive"),
        ((0.0, 0.2), (-0.6, 0.6), 0.5, "inconclusive"),
        ((-0.2, 0.0), (-0.6, 0.6), 0.5, "inconclusive"),
        ((-0.1, 0.2), (-0.1, 0.2), None, "inconclusive"),
        ((0.1, 0.2), (-0.6, 0.6), 0.5, "cost, but not"),
        ((0.1, 0.2), (0.0, 0.6), 0.5, "cost, but not"),
        ((0.1, 0.2), (0.05, 0.6), 0.5, "cost, too"),
        ((-0.2, -0.1), (-0.6, 0.6), 0.5, "gain, but not"),
        ((-0.2, -0.1), (-0.6, 0.0), 0.5, "gain, but not"),
        ((-0.2, -0.1), (-0.6, -0.05), 0.5, "gain, too"),
    ],
)
def test_the_verdict_on_a_fleet(
    mean: tuple[float, float],
    prediction: tuple[float, float],
    margin: float | None,
    verdict: str,
) -> None:
    found, reason = judge_fleet(5, between(*mean), between(*prediction), margin)
    name, _, rest = verdict.partition(", ")
    assert found == name
    assert rest in reason
    few, why = judge_fleet(4, between(*mean), between(*prediction), margin)
    assert (few, why) == ("list", "4 servers: a list, not a sample of a fleet")
    assert judge_fleet(5, between(*mean), None, margin)[0] == "list"
    assert judge_fleet(1, between(*mean), None, margin)[1].startswith("1 server: ")


def test_one_server_has_its_own_interval() -> None:
    found = combine([ServerEffect("a", 0.03, 0.01, 11.0)])
    assert found.mean.hi == pytest.approx(0.03 + 0.01 * scipy.stats.t.ppf(0.975, 10))
    found = combine([ServerEffect("a", 0.03, 0.01, 1.5)])  # no less than one degree of freedom
    assert found.mean.hi == pytest.approx(0.03 + 0.01 * scipy.stats.t.ppf(0.975, 1))
    found = combine([ServerEffect("b", math.nan, 0.01, 11.0), ServerEffect("a", 0.03, 0.01, 11.0)])
    assert found.mean.hi == pytest.approx(0.03 + 0.01 * scipy.stats.t.ppf(0.975, 10))


def test_equivalent_only_by_the_prediction_interval() -> None:
    effects = drawn(5, 12, tau=0.01)
    found = combine(effects)
    assert found.prediction is not None
    ends = found.prediction.lo, found.prediction.hi
    wide, narrow = max(map(abs, ends)) * 1.001, max(map(abs, ends)) * 0.999
    assert combine(effects, margin=wide).verdict == "equivalent"
    assert combine(effects, margin=narrow).verdict != "equivalent"
    # the mean's interval is inside such a margin, and that is not enough
    assert max(abs(found.mean.lo), abs(found.mean.hi)) < narrow


@pytest.mark.parametrize(("shift", "verdict"), [(1.0, "cost"), (-1.0, "gain")])
def test_cost_and_gain_by_the_mean(shift: float, verdict: str) -> None:
    moved = [replace(e, estimate=e.estimate + shift) for e in drawn(2, 8)]
    assert combine(moved, margin=0.1).verdict == verdict


def test_what_is_not_known_is_left_out() -> None:
    effects = drawn(9, 6)
    bad = [
        ServerEffect("no estimate", math.nan, 0.01, 64),
        ServerEffect("no error", 0.0, math.nan, 64),
        ServerEffect("no end of error", 0.0, math.inf, 64),
        ServerEffect("does not vary", 0.0, 0.0, 64),
        ServerEffect("one cluster", 0.0, 1e-9, 1.0),
    ]
    found = combine([*bad, *effects])
    assert found.k == 6
    assert found == _same(combine(effects), found)


def _same(a: FleetEstimate, b: FleetEstimate) -> FleetEstimate:
    """a, with the NaN of b, as one NaN does not equal another."""
    return replace(a, tau2=replace(a.tau2, se=b.tau2.se))


@pytest.mark.parametrize(
    ("clusters", "bias", "drawn"),
    [(2.0, 1.270363, 0.831503), (8.0, 0.149606, 0.248320), (MANY, 0.0, 0.0)],
)
def test_an_error_is_drawn_to_the_others_by_what_it_is_unsure(
    clusters: float, bias: float, drawn: float
) -> None:
    # log(df/2) - digamma(df/2), and trigamma(df/2) / (1 + trigamma(df/2)), from π²/2 and Euler's
    # constant; the median is that of the others, 0
    se = np.array([1e-3, 1.0, 1.0, 1.0, 1.0])
    used = working_variances(se, np.array([clusters, MANY, MANY, MANY, MANY]))
    own = 2 * math.log(1e-3) + bias
    assert math.log(used[0]) == pytest.approx((1 - drawn) * own, abs=1e-4)
    assert used[1:] == pytest.approx(1.0)


@pytest.mark.parametrize("clusters", [2.0, 3.5, 8.0, 64.0, MANY, math.inf])
def test_no_server_is_surer_than_it_is(clusters: float) -> None:
    se = np.array([1e-6, 0.5, 1.0, 2.0, 1e3])
    used = working_variances(se, np.full(5, clusters))
    assert np.isfinite(used).all()
    assert (used >= se**2).all()


FLEETS = st.lists(
    st.tuples(st.floats(-1, 1), st.floats(1e-3, 1), st.floats(2, 100)), min_size=2, max_size=12
)


def _drawn_by(servers: list[tuple[float, float, float]]) -> list[ServerEffect]:
    return [ServerEffect(f"s{i:02}", *server) for i, server in enumerate(servers)]


@pytest.mark.slow
@settings(max_examples=60)
@given(FLEETS, st.randoms(use_true_random=False))
def test_the_order_of_servers_changes_nothing(servers: list, random) -> None:
    effects = _drawn_by(servers)
    shuffled = effects[:]
    random.shuffle(shuffled)
    one, other = combine(effects, margin=0.1), combine(shuffled, margin=0.1)
    assert one == _same(other, one)


@settings(max_examples=60)
@given(FLEETS, st.floats(1e-3, 1e3), st.floats(-5, 5))
def test_units_and_offsets_move_intervals_with_them(
    servers: list, factor: float, offset: float
) -> None:
    effects = _drawn_by(servers)
    moved = [replace(e, estimate=factor * (e.estimate + offset), se=factor * e.se) for e in effects]
    one, other = combine(effects), combine(moved)
    near = 1e-6 * max(1, abs(offset))
    assert other.mean.estimate / factor - offset == pytest.approx(one.mean.estimate, abs=near)
    assert other.mean.half_width / factor == pytest.approx(one.mean.half_width, rel=1e-5)
    assert other.tau2.hi / factor**2 == pytest.approx(one.tau2.hi, rel=1e-4, abs=1e-8)
    if one.prediction is not None and other.prediction is not None:
        assert other.prediction.half_width / factor == pytest.approx(
            one.prediction.half_width, rel=1e-4
        )


@settings(max_examples=60)
@given(FLEETS)
def test_intervals_hold_each_other(servers: list) -> None:
    fleet = _drawn_by(servers)
    found = combine(fleet)
    assert found.tau2.lo <= found.tau2.hi
    assert found.tau2.estimate <= found.tau2.hi * (1 + 1e-9)
    assert 0 <= found.i2 < 1
    if found.prediction is not None:
        width = students_width(fleet)
        assert found.prediction.lo <= found.mean.estimate - width
        assert found.prediction.hi >= found.mean.estimate + width
        assert found.prediction.lo <= found.mean.lo
