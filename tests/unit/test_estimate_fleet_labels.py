"""Outliers of a fleet and what they share, and subgroups by label."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy
from statsmodels.stats.meta_analysis import combine_effects

from pgtare.estimate.fleet.outliers import deleted_residuals
from pgtare.estimate.fleet.random_effects import combine
from pgtare.estimate.fleet.server_effect import ServerEffect, arrays_of
from pgtare.estimate.fleet.subgroups import subgroups


def fleet(k: int, seed: int = 1, shift: dict[int, float] | None = None) -> list[ServerEffect]:
    """Servers with effects of 1 % ± 1 %, some of them shifted; labels by number."""
    rng = np.random.default_rng(seed)
    return [
        ServerEffect(
            f"s{i:02}",
            float(rng.normal(0.01, 0.01)) + (shift or {}).get(i, 0.0),
            0.01,
            64.0,
            {"version": str(15 + i % 3), "place": "north" if i < k / 2 else "south"},
        )
        for i in range(k)
    ]


def test_deleted_residuals_by_statsmodels() -> None:
    rng = np.random.default_rng(4)
    variances = np.exp(rng.normal(0, 0.5, 9))
    estimates = rng.normal(0, 2, 9)
    found = deleted_residuals(estimates, variances)
    for i in range(9):
        y, v = np.delete(estimates, i), np.delete(variances, i)
        rest = combine_effects(y, v, method_re="pm", atol=1e-7)
        error2 = max(y.var(ddof=1) / len(y), v.sum() / len(y) ** 2)
        spread = math.sqrt(variances[i] + rest.tau2 + error2)
        assert found[i] == pytest.approx((estimates[i] - y.mean()) / spread, rel=1e-6)


def test_an_injected_cost_names_its_server() -> None:
    for seed in range(5):
        found = combine(fleet(6, seed, {4: 0.25})).outliers
        assert [outlier.server for outlier in found] == ["s04"]
        assert found[0].residual > 5
        assert found[0].p < 0.05


@pytest.mark.slow
def test_a_fleet_of_one_kind_rarely_has_outliers() -> None:
    with_any = sum(bool(combine(fleet(10, 100 + seed)).outliers) for seed in range(300))
    # 5 % of 300 is 15; 30 is exceeded once in 10,000 runs
    assert with_any <= 30


def test_an_error_from_few_clusters_makes_no_outlier() -> None:
    # the same distance, with a standard error that rests on four clusters and on 64
    far = fleet(30, 3, {4: 0.08})
    assert [outlier.server for outlier in combine(far).outliers] == ["s04"]
    unsure = [replace(e, clusters=4.0) if e.server == "s04" else e for e in far]
    assert combine(unsure).outliers == ()


def test_three_servers_have_no_outlier() -> None:
    assert combine(fleet(3, 1, {0: 100.0})).outliers == ()


def test_four_servers_can_have_an_outlier_and_its_p_is_holms() -> None:
    effects = fleet(4, 1, {0: 100.0})
    (found,) = combine(effects).outliers
    residuals = deleted_residuals(*arrays_of(effects))
    assert found.server == "s00"
    assert found.residual == pytest.approx(residuals[0])
    assert found.p == pytest.approx(4 * 2 * scipy.stats.t.sf(residuals[0], 2))


def test_outliers_share_only_what_all_of_them_have() -> None:
    far = fleet(30, 3, {4: 0.5, 10: 0.6})
    marked = [
        replace(e, labels={"disk": e.server if e.server in ("s04", "s10") else "fast"}) for e in far
    ]
    found = combine(marked).outliers
    assert [outlier.server for outlier in found] == ["s10", "s04"], "the farthest is first"
    assert [dict(outlier.labels) for outlier in found] == [{}, {}]


def test_labels_that_only_outliers_have() -> None:
    far = fleet(30, 3, {4: 0.5, 10: 0.55})
    marked = [
        replace(e, labels={**e.labels, "disk": "slow" if e.server in ("s04", "s10") else "fast"})
        for e in far
    ]
    found = combine(marked).outliers
    assert {outlier.server for outlier in found} == {"s04", "s10"}
    # both are version 16 and in the north, but so are others
    assert [dict(outlier.labels) for outlier in found] == [{"disk": "slow"}] * 2


def test_outliers_on_two_sides_do_not_share_labels() -> None:
    both = fleet(40, 3, {4: 0.6, 10: -0.65})
    marked = [
        replace(e, labels={"disk": {"s04": "slow", "s10": "new"}.get(e.server, "fast")})
        for e in both
    ]
    outliers = combine(marked).outliers
    assert [outlier.server for outlier in outliers] == ["s10", "s04"], "the farthest is first"
    found = {outlier.server: outlier.labels for outlier in outliers}
    assert found == {"s04": {"disk": "slow"}, "s10": {"disk": "new"}}


def test_subgroups_of_equal_errors_are_a_t_test() -> None:
    # with large differences within groups and equal errors, this is Welch's t test
    rng = np.random.default_rng(8)
    estimates = rng.normal(0, 1, 12) + np.repeat([0.0, 1.5], 6)
    effects = [
        ServerEffect(f"s{i:02}", float(y), 1e-6, 1e9, {"place": "north" if i < 6 else "south"})
        for i, y in enumerate(estimates)
    ]
    north, south = subgroups(effects, "place")
    expected = scipy.stats.ttest_ind(estimates[:6], estimates[6:], equal_var=False)
    assert north.p == pytest.approx(expected.pvalue, rel=1e-6)
    interval = expected.confidence_interval()
    assert (north.difference.lo, north.difference.hi) == pytest.approx(
        (interval.low, interval.high), rel=1e-6
    )
    assert north.mean.estimate == pytest.approx(estimates[:6].mean())
    errors = [part.std(ddof=1) / math.sqrt(6) for part in (estimates[:6], estimates[6:])]
    half = scipy.stats.t.ppf(0.975, 5) * errors[0]
    assert north.mean.se == pytest.approx(errors[0], rel=1e-6)
    assert (north.mean.lo, north.mean.hi) == pytest.approx(
        (estimates[:6].mean() - half, estimates[:6].mean() + half), rel=1e-6
    )
    assert north.difference.se == pytest.approx(math.hypot(*errors), rel=1e-6)
    # the two are one split, so that Holm counts it once
    assert north.p_adjusted == north.p == south.p_adjusted
    assert south.difference.estimate == pytest.approx(-north.difference.estimate)


def test_servers_that_agree_by_chance_are_no_surer_than_their_errors() -> None:
    effects = [
        ServerEffect(f"s{i}", 1.0 + (i >= 3), 0.5, 1e9, {"place": "north" if i < 3 else "south"})
        for i in range(6)
    ]
    north, _ = subgroups(effects, "place")
    assert north.mean.se == pytest.approx(0.5 / math.sqrt(3))
    assert north.difference.se == pytest.approx(0.5 * math.sqrt(2 / 3))


def test_a_side_that_differs_more_from_itself_makes_no_false_differences() -> None:
    """p < 5 % in 5 % of fleets: 400 fleets exceed 42 once in 100,000 runs."""
    rng = np.random.default_rng(12)
    below = 0
    for _ in range(400):
        estimates = rng.standard_normal(40) * np.repeat([3.0, 0.3], [10, 30])
        effects = [
            ServerEffect(f"s{i:02}", float(y), 0.1, 64.0, {"place": "a" if i < 10 else "b"})
            for i, y in enumerate(estimates)
        ]
        below += subgroups(effects, "place")[0].p < 0.05
    assert below <= 42


def test_subgroups_are_corrected_over_all_labels() -> None:
    effects = fleet(24, 5, {i: 0.05 for i in range(12)})
    found = subgroups(effects, "place", "version")
    assert [(g.label, g.value) for g in found] == [
        ("place", "north"),
        ("place", "south"),
        ("version", "15"),
        ("version", "16"),
        ("version", "17"),
    ]
    north = found[0]
    assert north.p_adjusted == pytest.approx(4 * north.p)
    assert north.p_adjusted < 0.05
    assert min(group.p_adjusted for group in found[2:]) > 0.05
    assert north.servers == tuple(f"s{i:02}" for i in range(12))


def test_a_label_that_splits_nothing_has_no_test() -> None:
    effects = [replace(e, labels={"place": "north", "one": e.server}) for e in fleet(6)]
    found = subgroups(effects, "place", "one", "unknown")
    assert len(found) == 7
    assert all(math.isnan(g.p) and math.isnan(g.p_adjusted) for g in found)


def test_two_servers_on_each_side_are_enough_and_one_is_not() -> None:
    places = ("north", "north", "south", "south")
    four = [replace(e, labels={"place": p}) for e, p in zip(fleet(4), places, strict=True)]
    assert all(math.isfinite(g.p) for g in subgroups(four, "place"))
    six = [replace(e, labels={"place": "north" if e.server != "s03" else "x"}) for e in fleet(6)]
    assert all(math.isnan(g.p) for g in subgroups(six, "place"))


def test_servers_without_the_label_or_an_estimate_are_in_no_subgroup() -> None:
    effects = fleet(8)
    without = [ServerEffect("a", 5.0, 0.01, 64.0), replace(effects[0], server="b", se=math.nan)]
    assert subgroups([*without, *effects], "place") == subgroups(effects, "place")


def test_subgroups_under_the_null() -> None:
    # p < 5 % in 5 % of fleets: 400 fleets exceed 39 once in 10,000 runs
    below = 0
    for seed in range(400):
        effects = fleet(9, 1000 + seed)
        below += min(g.p_adjusted for g in subgroups(effects, "place", "version")) < 0.05
    assert below <= 39
