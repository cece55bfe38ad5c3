"""Canary first: which servers are exposed when, and to how much."""

from __future__ import annotations

import pytest

from pgtare.weighing.fleet import stages
from pgtare.weighing.fleet.stages import ServerTraffic

TRAFFIC = {
    "busy": ServerTraffic(1000, 50, 1),
    "calm": ServerTraffic(100, 20, 1),
    "idle": ServerTraffic(0, 3, 0.1),
    "precious": ServerTraffic(10, 5, 8),
}


def test_the_calmest_of_those_that_matter_least_is_the_canary() -> None:
    assert stages.order(TRAFFIC) == ["calm", "busy", "precious", "idle"]


@pytest.mark.parametrize(
    ("servers", "sizes"),
    [(1, [1, 1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 3, 6]), (100, [1, 10, 100])],
)
def test_one_then_a_few_then_all(servers: int, sizes: list[int]) -> None:
    names = [f"s{n}" for n in range(servers)]
    plan = stages.plan(names, 120, 1.0)
    assert [len(stage.servers) for stage in plan] == sizes
    assert [stage.last for stage in plan] == [False] * (len(plan) - 1) + [True]
    assert plan[0].participation == 0.01
    assert (plan[0].seconds, plan[-1].seconds) == (20, 120)
    assert all(stage.servers == tuple(names[: len(stage.servers)]) for stage in plan)


@pytest.mark.parametrize(("seconds", "before"), [(6, 5), (60, 10), (3600, 60)])
def test_how_long_stages_before_the_last_take(seconds: float, before: float) -> None:
    assert stages.plan(["a", "b"], seconds, 1.0)[0].seconds == before
    assert stages.plan(["a", "b"], seconds, 1.0, canary_s=33)[0].seconds == 33


def test_no_stage_has_a_larger_share_than_the_last() -> None:
    shares = [stage.participation for stage in stages.plan(list("abcd"), 60, 0.05)]
    assert shares == [0.01, 0.05, 0.05]


def test_exposure_in_transactions() -> None:
    plan = stages.plan(["calm", "busy"], 60, 0.5)
    canary, last = stages.exposures(plan, TRAFFIC, 0.25, lease_s=15, at_once=16)
    # 20 sessions: one at least takes part, which is more than 1 %
    assert canary.transactions == pytest.approx(100 * 0.05 * 10 * 0.25)
    assert canary.cut_off == pytest.approx(100 * 0.05 * 15 * 0.25)
    assert last.transactions == pytest.approx(1100 * 0.5 * 60 * 0.25)
    assert last.cut_off == pytest.approx(1100 * 0.5 * 15 * 0.25)
    (_, one) = stages.exposures(plan, TRAFFIC, 0.25, lease_s=15, at_once=1)
    assert one.cut_off == pytest.approx(1000 * 0.5 * 15 * 0.25)
