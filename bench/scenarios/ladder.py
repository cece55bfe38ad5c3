"""Rounds: the power at the stated MDE, and coverage."""

from __future__ import annotations

from functools import partial

import numpy as np

from bench.scenarios.registry import Counts, Scenario
from pgtare.estimate.study.rounds import paired


def power(rounds: int, family: int, trials: int, seed: int) -> Counts:
    """How often a study finds an effect of the size that an earlier study named as its MDE."""
    rng = np.random.default_rng((seed, rounds))
    hits = 0
    for _ in range(trials):
        named = paired(rng.normal(0, 0.006, rounds), margin=0.005, family=family).mde
        found = paired(rng.normal(named, 0.006, rounds), margin=0.005, family=family)
        hits += found.p <= 0.05 / family
    return Counts(hits, trials)


SCENARIOS = tuple(
    Scenario(
        f"ladder, {rounds} rounds, 1 of {family} comparisons"
        if family > 1
        else f"ladder, {rounds} rounds",
        "effects of the stated MDE are found",
        0.80,
        partial(power, rounds, family),
        trials=5_000,
        quick=300,
    )
    for rounds, family in ((6, 1), (12, 1), (12, 12))
)
