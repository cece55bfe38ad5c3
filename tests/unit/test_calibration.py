"""Calibration: the estimators err as often as they say."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pgtare.estimate import Calibration, Rate, analyse, calibrate, clopper_pearson
from pgtare.estimate.blocks import select
from pgtare.estimate.effects import Effects, threshold
from pgtare.estimate.inference import Expansion
from pgtare.observations import OBSERVATION, Observations
from tests.unit.estimate_textbook import design_of, noise, simulate


def recording(units: int = 40_000, backends: int = 2) -> Observations:
    """A recording without effects."""
    rng = np.random.default_rng(12)
    obs = np.zeros(units, OBSERVATION)
    share = units // backends
    obs["backend"] = np.arange(units) // share
    obs["unit"] = np.arange(units) % share
    obs["service_ns"] = np.rint(1000 * noise(units, rng))
    return obs


@cache
def calibration() -> Calibration:
    return calibrate(recording(), trials=4_000, seed=1)


def test_clopper_pearson() -> None:
    assert clopper_pearson(0, 10) == pytest.approx((0, 0.308498), abs=1e-5)
    assert clopper_pearson(10, 10) == pytest.approx((0.691502, 1), abs=1e-5)
    assert clopper_pearson(200, 4000) == pytest.approx((0.043456, 0.057217), abs=1e-4)
    assert Rate(5, 100).rate == 0.05


def test_false_positive_rate() -> None:
    found = calibration()
    assert 0.04 <= found.false_positives.rate <= 0.06
    assert 0.04 <= found.false_positives_plain.rate <= 0.06


@pytest.mark.parametrize("kind", ["shift", "proportional", "tail", "carry_over"])
def test_coverage(kind: str) -> None:
    found = calibration()
    # 1,000 pseudo-trials of each kind: 95 % and three standard errors of it.
    assert 0.93 <= found.body_coverage[kind].rate <= 0.97
    # With rare huge stalls an interval of the raw mean covers too often, never too seldom.
    assert found.raw_coverage[kind].rate >= 0.93


def test_six_arms_and_few_blocks() -> None:
    """A/A of every arm at 120 blocks, in clusters of three."""
    design = design_of(6)
    wrong = looks = 0
    for seed in range(150):
        blocks = select(simulate(design, 120, stalls=0, seed=seed), design).blocks
        effects = Effects(blocks, threshold(blocks.service_us))
        for arm in range(1, 6):
            interval = effects.interval(effects.body_cost(arm))
            wrong += not interval.lo <= 0 <= interval.hi
            looks += 1
    assert 0.03 <= wrong / looks <= 0.075


def test_family_wise_error() -> None:
    """A claim of at most 5 %: it fails only where the lower 99 % bound exceeds that."""
    design = design_of(5)
    proven = {arm.name: True for arm in design.arms}
    wrong = 0
    for seed in range(100):
        obs = simulate(design, 80, stalls=0, seed=1000 + seed)
        arms = analyse(obs, design, proven=proven, seed=seed).arms[2:]
        wrong += any(arm.verdict in ("cost", "gain") for arm in arms)
    assert clopper_pearson(wrong, 100, 0.98)[0] <= 0.05


def test_equivalence_at_the_margin_is_seldom_claimed() -> None:
    design = design_of(3)
    wrong = 0
    for seed in range(150):
        obs = simulate(design, 300, stalls=0, own=(0, 0, 1.4), seed=2000 + seed)
        blocks = select(obs, design).blocks
        effects = Effects(blocks, threshold(blocks.service_us))
        interval = effects.interval(effects.body_cost(2), alpha=0.10)
        wrong += interval.lo > -1.4 and interval.hi < 1.4
    assert clopper_pearson(wrong, 150, 0.98)[0] <= 0.05


def test_a_standard_error_too_small_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration that cannot fail proves nothing: claim half the standard error."""
    honest = Expansion.se.fget
    assert honest is not None
    monkeypatch.setattr(Expansion, "se", property(lambda self: honest(self) / 2))
    found = calibrate(recording(), trials=300, blocks=300, seed=1)
    assert found.false_positives.interval(0.99)[0] > 0.06
    assert found.body_coverage["shift"].rate < 0.9


def test_a_short_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="2001"):
        calibrate(recording(1_000), seed=1)
