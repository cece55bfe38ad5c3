"""Slices are long enough for 64 transactions of a session, and no shorter than they were."""

from __future__ import annotations

import pytest

from pgtare.weighing.weigh.plan import slice_lengths


@pytest.mark.parametrize(
    ("rate", "sessions", "lengths"),
    [
        (10_000.0, 1, (50, 150)),
        (640.0, 1, (50, 150)),
        (200.0, 1, (160, 480)),  # 64 transactions take 320 ms
        (400.0, 2, (160, 480)),
        (10.0, 10, (1000, 1000)),
        (None, 4, (50, 150)),
        (0.0, 4, (50, 150)),
        (100.0, 0, (50, 150)),
    ],
)
def test_lengths_follow_the_rate(
    rate: float | None, sessions: int, lengths: tuple[float, float]
) -> None:
    assert slice_lengths(rate, sessions) == pytest.approx(lengths)
