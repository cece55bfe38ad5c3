"""Hostile scenarios with a known truth: each is inside its bound, or the docs say why not."""

from __future__ import annotations

import pytest
from bench.scenario_table import seed_of
from bench.scenarios.contents import ALL
from bench.scenarios.registry import Counts, Scenario


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda s: f"{s.name}, {s.checks}")
def test_scenario_holds(scenario: Scenario) -> None:
    counts = scenario.function(max(scenario.quick, scenario.trials // 5), 1)
    assert scenario.holds(counts) or scenario.stated, counts


def test_names_are_unique() -> None:
    assert len({(s.name, s.checks) for s in ALL}) == len(ALL)


def test_rows_of_the_table_do_not_share_dice() -> None:
    """With the same assignments two rows miss together, and look as if they confirmed it."""
    seeds = [seed_of(index, part) for index in range(len(ALL)) for part in range(8)]
    assert len(set(seeds)) == len(seeds)


def test_bounds_allow_for_chance_only() -> None:
    least = Scenario("", "", 0.94, lambda n, seed: Counts(0, n))
    assert least.holds(Counts(88, 100))
    assert not least.holds(Counts(80, 100))
    most = Scenario("", "", 0.05, lambda n, seed: Counts(0, n), at_least=False)
    assert most.holds(Counts(12, 100))
    assert not most.holds(Counts(20, 100))
    assert Counts(0, 100).error > 0
