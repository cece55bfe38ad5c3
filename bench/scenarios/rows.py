"""Row sources: plan nodes with seldom long calls, and with calls of exponential length."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
from tests.unit.simulated_rows import Estimator

from bench.scenarios.registry import Counts, Scenario


@cache
def _estimator() -> Estimator:
    with tempfile.TemporaryDirectory(prefix="pgtare-rows-") as directory:
        return Estimator(Path(directory))


def covered(calls: int, outside: float, trials: int, seed: int) -> Counts:
    """How often the interval holds a node's time. outside: mean time between its calls of 20."""
    rng = np.random.default_rng((seed, calls, int(outside)))
    hits = 0
    for _ in range(trials):
        long = np.where(rng.random(calls) < 0.001, 1_000, 1)
        inside = rng.gamma(9, 20 / 9, calls) * long
        found = _estimator().sample(inside, rng.gamma(9, outside / 9, calls), 128, rng)
        truth = float(inside.sum())
        hits += found.low <= truth * (1 + 1e-6) and found.high >= truth * (1 - 1e-6)
    return Counts(hits, trials)


def exponential(calls: int, outside: float, trials: int, seed: int) -> Counts:
    """The same of calls of exponential length, while the time between them is even."""
    rng = np.random.default_rng((seed, calls, int(outside)))
    hits = 0
    for _ in range(trials):
        inside = rng.exponential(20, calls)
        found = _estimator().sample(inside, rng.gamma(9, outside / 9, calls), 128, rng)
        truth = float(inside.sum())
        hits += found.low <= truth * (1 + 1e-6) and found.high >= truth * (1 - 1e-6)
    return Counts(hits, trials)


_EXPONENTIAL = (
    "A small sample of skewed lengths tells less of their mean than its variance says. One with "
    "few of the long calls gives a time that is too small and an interval that is too narrow."
)
SCENARIOS = tuple(
    Scenario(
        f"row source, 1 call in 1,000 × 1,000, {calls:,} calls, {share} of its parent's time",
        "95 % interval covers",
        0.94,
        partial(covered, calls, outside),
        trials=1_000,
    )
    for calls in (20_000, 100_000)
    for outside, share in ((2.0, "nearly all"), (20.0, "half"), (200.0, "a tenth"))
) + tuple(
    Scenario(
        f"row source, exponential lengths, {calls:,} calls, {share} of its parent's time",
        "95 % interval covers",
        0.94,
        partial(exponential, calls, outside),
        trials=1_000,
        stated=_EXPONENTIAL,
    )
    for calls in (1_000, 10_000)
    for outside, share in ((20.0, "half"), (180.0, "a tenth"))
)
