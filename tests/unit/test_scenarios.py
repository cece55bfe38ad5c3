"""Hostile scenarios with a known truth: each is inside its bound, or the docs say why not."""

from __future__ import annotations

import numpy as np
import pytest
from bench.scenario_table import seed_of
from bench.scenarios import simulator, verdicts
from bench.scenarios.contents import ALL
from bench.scenarios.registry import Counts, Scenario

from pgtare.estimate.trial import analyse
from pgtare.estimate.trial.blocks import select


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


@pytest.mark.slow
def test_stalls_below_the_threshold_that_a_session_s_end_cuts_short_count_in_full() -> None:
    design, life_us, stall_us = simulator.design_of(2, 5), 36_000.0, 10_800.0
    rng = np.random.default_rng(3)
    found = truth = 0.0
    for _ in range(10):
        made = simulator.simulate(
            [simulator.lognormal(300, rng, 0.1) for _ in range(120)],
            design,
            lambda x: x + stall_us * (rng.random(len(x)) < 0.01),
            life_us=life_us,
        )
        assert len(made.base_us) == len(made.treated_us) == len(made.observations)
        arm = analyse(made.observations, design, seed=1).arms[1]
        assert arm.effect is not None
        assert arm.threshold_us is not None
        found += arm.effect.body_us.estimate
        truth += made.truth_of_body(arm.threshold_us)
    assert found / truth == pytest.approx(1, abs=0.12)  # whole blocks alone gave .72


@pytest.mark.slow
def test_a_cost_that_lasts_is_equivalent_within_limits_only() -> None:
    assert verdicts.lasting(6, 10, 77).hits == 0
