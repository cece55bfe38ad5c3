"""Percentiles within ties: parts of a unit, and what whole ones would call equivalent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pgtare.estimate.study.rounds import Flips
from pgtare.estimate.ties import mid_quantiles
from pgtare.postgres.load import LoadSpec
from pgtare.postgres.load.pgbench import RunResult
from pgtare.weighing.ladder.rounds import _metrics


def test_by_hand() -> None:
    values = np.array([1.0, 2.0, 2.0, 3.0])
    # F is 1/8 at 1, 1/2 at 2, 7/8 at 3
    assert mid_quantiles(values, (0.125, 0.5, 0.6875, 0.875, 0.99)) == pytest.approx(
        [1, 2, 2.5, 3, 3]
    )
    assert mid_quantiles(np.full(9, 4.0), (0.5,)) == pytest.approx([4])


def test_of_values_without_ties_it_is_the_usual_quantile() -> None:
    values = np.random.default_rng(1).normal(100, 10, 5_001)
    usual = np.quantile(values, (0.5, 0.95, 0.99))
    assert mid_quantiles(values, (0.5, 0.95, 0.99)) == pytest.approx(usual, rel=1e-3)


def test_a_shift_of_less_than_a_unit_is_neither_lost_nor_rounded_up() -> None:
    """Twelve rounds at a median of 90.6 us, 0.7 % apart: outside a margin of 0.5 %."""
    rng = np.random.default_rng(2)
    margin, studies, equivalent, shifts = math.log1p(0.005), 60, 0, []

    def median(true_us: float) -> float:
        level = true_us * math.exp(rng.normal(0, 0.0015))
        written = np.round(level * np.exp(rng.normal(0, 0.05, 4_000)))
        return _metrics(RunResult(1.0, 1), written, 0, LoadSpec())["latency_p50_us"]

    for _ in range(studies):
        d = np.array([math.log(median(90.6 * 1.007) / median(90.6)) for _ in range(12)])
        shifts.append(d.mean())
        equivalent += Flips(d).equivalence_p(-margin, margin) <= 0.05
    assert 100 * np.mean(shifts) == pytest.approx(0.7, abs=0.05)
    assert equivalent == 0
