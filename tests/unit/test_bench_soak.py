"""The slopes of a soak: a leak is seen, and what only wanders is none."""

from __future__ import annotations

import numpy as np
import pytest
from bench.soak import slope


def wandering(seed: int, leak_an_hour: float) -> tuple[list[float], list[float]]:
    """Three hours of readings that hang together, as memory does, and a leak."""
    rng = np.random.default_rng(seed)
    minutes = np.arange(540) / 3
    noise = np.zeros(540)
    for i in range(1, 540):
        noise[i] = 0.8 * noise[i - 1] + rng.normal(0, 1)
    return list(minutes), list(100 + noise + leak_an_hour * minutes / 60)


@pytest.mark.parametrize("leak", [0.0, 5.0])
def test_the_interval_has_the_leak(leak: float) -> None:
    found = [slope(*wandering(seed, leak)) for seed in range(200)]
    held = sum(one.low <= leak <= one.high for one in found)
    assert held >= 188  # of 200 at 99 %, with what hangs together from block to block
    assert np.mean([one.estimate for one in found]) == pytest.approx(leak, abs=0.2)
    if leak:
        assert all(one.low > 0 for one in found)


def test_what_rises_at_the_start_only_is_no_leak() -> None:
    minutes, values = wandering(1, 0.0)
    rising = [value + min(minute, 40.0) for minute, value in zip(minutes, values, strict=True)]
    found = slope(minutes, rising)
    assert found.low < 0 < found.high


def test_what_stays_as_it_is_has_no_slope() -> None:
    found = slope([float(minute) for minute in range(180)], [4.0] * 180)
    assert (found.estimate, found.low, found.high) == (0.0, 0.0, 0.0)
