"""Hostile scenarios with a known truth: each is inside its bound, or the docs say why not."""

from __future__ import annotations

import numpy as np
import pytest
from bench.scenarios import simulator
from bench.scenarios.contents import ALL
from bench.scenarios.registry import Counts, Scenario

from pgtare.estimate.blocks import select


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda s: f"{s.name}, {s.checks}")
def test_scenario_holds(scenario: Scenario) -> None:
    counts = scenario.function(max(scenario.quick, scenario.trials // 5), 1)
    assert scenario.holds(counts) or scenario.stated, counts


def test_names_are_unique() -> None:
    assert len({(s.name, s.checks) for s in ALL}) == len(ALL)


def test_bounds_allow_for_chance_only() -> None:
    least = Scenario("", "", 0.94, lambda n, seed: Counts(0, n))
    assert least.holds(Counts(88, 100))
    assert not least.holds(Counts(80, 100))
    most = Scenario("", "", 0.05, lambda n, seed: Counts(0, n), at_least=False)
    assert most.holds(Counts(12, 100))
    assert not most.holds(Counts(20, 100))
    assert Counts(0, 100).error > 0


def test_simulated_trials_are_whole_ones() -> None:
    design = simulator.design_of(3, 5)
    rng = np.random.default_rng(1)
    made = simulator.simulate([simulator.lognormal(1_000, rng)] * 2, design, lambda x: 2 * x)
    found = select(made.observations, design)
    assert found.foreign == 0
    assert found.used.sum() + 2 * 0.1 * 1_000 / 6 * 1.5 > 2 * 1_000 * 0.95
    assert found.discarded["incomplete"] <= 2
    arm = made.observations["arm"]
    doubled = made.observations["service_ns"] / 1_000 / made.base_us
    assert doubled[arm == 1] == pytest.approx(2, rel=1e-3)
    assert doubled[arm != 1] == pytest.approx(1, rel=1e-3)
