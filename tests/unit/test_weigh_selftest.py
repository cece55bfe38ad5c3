"""What the self-test takes for sound."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pgtare.estimate.inference import Expansion
from pgtare.estimate.trial.observations import OBSERVATION
from pgtare.estimate.trial.pseudo_trials import Calibration, calibrate
from pgtare.weighing.weigh.selftest import _estimator_checks


def recorded(stalls: float, trials: int) -> Calibration:
    """Of a machine on which this share of the transactions waits for the processor."""
    rng = np.random.default_rng(3)
    obs = np.zeros(50_000, OBSERVATION)
    obs["unit"] = np.arange(len(obs))
    waiting = (rng.random(len(obs)) < stalls) * 3_000_000 * rng.pareto(1.2, len(obs))
    obs["service_ns"] = 50_000 * rng.lognormal(0, 0.3, len(obs)) + waiting
    return calibrate(obs, trials=trials, units=1_200, seed=5)


@cache
def busy() -> Calibration:
    return recorded(0.002, 800)


@pytest.mark.slow
def test_intervals_that_are_wide_on_a_busy_machine_are_sound() -> None:
    found = busy()
    assert found.false_positives.rate < 0.04  # 24 of 800; of 5 in 100 that intervals allow
    assert max(rate.rate for rate in found.body_coverage.values() if rate.trials) > 0.975
    assert [check.name for check in _estimator_checks(found) if not check.passed] == []


@pytest.mark.parametrize("factor", [0.8, pytest.param(1.6, marks=pytest.mark.slow)])
def test_intervals_that_are_too_narrow_or_absurdly_wide_are_not(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    honest = Expansion.se.fget
    assert honest is not None
    monkeypatch.setattr(Expansion, "se", property(lambda self: factor * honest(self)))
    checks = _estimator_checks(recorded(0.0, 400))
    assert not checks[0].passed, checks[0]
