"""Whole runs: what is made of pgbench's figures."""

from __future__ import annotations

import numpy as np
import pytest

from pgtare.postgres.load import LoadSpec
from pgtare.postgres.load.pgbench import RunResult
from pgtare.weighing.ladder import rounds


def mean_us(got: RunResult, latencies: list[float], spec: LoadSpec) -> float | None:
    return rounds._metrics(got, np.array(latencies), 0, spec).get("latency_mean_us")


def test_a_mean_latency_is_finer_than_what_pgbench_prints() -> None:
    got = RunResult(tps=16_611.3, transactions=166_113, latency_ms=0.060)
    assert mean_us(got, [60.0, 61.0], LoadSpec()) == pytest.approx(60.2, abs=0.01)
    assert mean_us(got, [], LoadSpec(clients=4)) == pytest.approx(240.8, abs=0.01)
    nothing = RunResult(tps=0.0, transactions=0)
    assert mean_us(nothing, [], LoadSpec()) is None


def test_with_a_rate_the_mean_is_that_of_the_log_within_what_was_printed() -> None:
    got = RunResult(tps=5_000.0, transactions=50_000, latency_ms=0.060)
    paced = LoadSpec(rate=5_000.0)
    assert mean_us(got, [60.0, 61.0], paced) == pytest.approx(60.5)
    assert mean_us(got, [60.0, 59.5], paced) == pytest.approx(59.75)
    assert mean_us(got, [60.0, 70.0], paced) == pytest.approx(60.5)  # few of many were written
    assert mean_us(got, [], paced) == pytest.approx(60.0)
