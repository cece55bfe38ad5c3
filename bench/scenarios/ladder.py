"""Rounds: what one dear round of six does to the others."""

from __future__ import annotations

from functools import partial

import numpy as np

from bench.scenarios.registry import Counts, Scenario
from pgtare.estimate.study.rounds import paired

#: What one of six rounds costs more, and the noise of each, as log-ratios.
_DEAR, _NOISE, _MARGIN = (0.01, 0.03, 0.1), (0.001, 0.003, 0.01), 0.005


def one_dear(what: str, trials: int, seed: int) -> Counts:
    """How often the interval has the mean over the rounds that ran; or "equivalent" is wrong."""
    rng = np.random.default_rng((seed, 6))
    hits = 0
    for trial in range(trials):
        dear, noise = _DEAR[trial % 3], _NOISE[trial // 3 % 3]
        ratios = rng.normal(0, noise, 6)
        ratios[rng.integers(6)] += dear
        mean = dear / 6
        found = paired(ratios, margin=_MARGIN)
        if what == "covered":
            hits += found.lo <= mean <= found.hi
        else:
            hits += found.p_equivalence <= 0.05 and mean > _MARGIN
    return Counts(hits, trials)


SCENARIOS = (
    Scenario(
        "ladder, one of six rounds is dear",
        "the mean over these rounds is in its interval",
        0.95,
        partial(one_dear, "covered"),
        trials=5_000,
        quick=300,
    ),
    Scenario(
        "ladder, one of six rounds is dear",
        '"equivalent" is wrong',
        0.05,
        partial(one_dear, "equivalent"),
        at_least=False,
        trials=5_000,
        quick=300,
    ),
)
