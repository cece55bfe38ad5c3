"""Calibration: the estimators err as often as they say."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from pgtare.estimate.inference import Expansion
from pgtare.estimate.trial import Calibration, Rate, analyse, calibrate, clopper_pearson
from pgtare.estimate.trial.blocks import by_arm, select
from pgtare.estimate.trial.effects import Effects, split
from pgtare.estimate.trial.observations import OBSERVATION, Observations
from pgtare.estimate.trial.pseudo_trials import (
    _STALLS,
    LAYOUTS,
    _draw,
    _effects,
    _Injection,
)
from pgtare.estimate.trial.threshold import threshold
from tests.unit.estimate_textbook import design_of, noise, simulate

KINDS = ("shift", "proportional effect", "delay of one in fifty", "carry-over")


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
def calibration(trials: int = 1_600) -> Calibration:
    return calibrate(recording(100_000), trials=trials, units=1_800, seed=1)


def test_clopper_pearson() -> None:
    assert clopper_pearson(0, 10) == pytest.approx((0, 0.308498), abs=1e-5)
    assert clopper_pearson(10, 10) == pytest.approx((0.691502, 1), abs=1e-5)
    assert clopper_pearson(200, 4000) == pytest.approx((0.043456, 0.057217), abs=1e-4)
    assert Rate(5, 100).rate == 0.05


def test_false_positive_rate() -> None:
    found = calibration()
    assert 0.036 <= found.false_positives.rate <= 0.064
    assert 0.036 <= found.false_positives_plain.rate <= 0.064


def test_percentages_and_failures() -> None:
    found = calibration()
    assert found.percent_differs.hits == 0
    assert set(found.percent_coverage) == set(KINDS) - {"carry-over"}
    for rate in found.percent_coverage.values():
        assert 0.907 <= rate.rate <= 0.993
    assert found.false_failures.rate <= 0.072  # 5 % and four standard errors
    assert found.failures_found.rate > 0.9
    assert [layout.count(0) - layout.count(1) for layout in LAYOUTS] == [0, 0, 0, 1]


@pytest.mark.slow
def test_false_positive_rate_and_coverage_at_length() -> None:
    """So long that a true rate of 7 % would be found out in 99 of 100."""
    found = calibration(4_000)
    assert 0.04 <= found.false_positives.rate <= 0.06
    assert 0.04 <= found.false_positives_plain.rate <= 0.06
    for kind in KINDS:
        # 1,000 pseudo-trials of each kind: 95 % and three standard errors of it.
        assert 0.93 <= found.body_coverage[kind].rate <= 0.97, kind
    assert 0.92 <= found.body_coverage["rare stall"].rate <= 0.98
    assert found.raw_coverage["rare stall"].rate >= 0.93
    assert found.raw_coverage["rare stall"].trials > 225


@pytest.mark.parametrize("kind", KINDS)
def test_coverage(kind: str) -> None:
    # 400 pseudo-trials of each kind: what 95 % leaves once in 10,000 times (3.9 standard errors)
    assert 0.907 <= calibration().body_coverage[kind].rate <= 0.993


def test_coverage_of_stalls_above_the_threshold() -> None:
    found = calibration()
    assert found.stall_units == 96_000
    # 100 pseudo-trials
    assert 0.885 <= found.body_coverage["rare stall"].rate <= 1
    # With stalls of its own in the recording, the interval covers too often, never too seldom.
    assert found.raw_coverage["rare stall"].rate >= 0.9
    assert found.raw_coverage["rare stall"].trials > 90


def test_rare_stalls_lie_in_the_tail() -> None:
    """Else their coverage would say nothing of it: nearly all of their cost is excess."""
    x = noise(96_000, np.random.default_rng(3), stalls=0)
    stall = _STALLS["rare stall"]
    treated = np.arange(len(x)) % 2 == 0
    injected = stall.apply(x, treated, np.random.default_rng(4))
    with_stalls = injected.service_us
    c = threshold(with_stalls)
    assert injected.truth(c) < 0.02 * injected.truth(np.inf)
    assert (with_stalls[treated] - x[treated]).mean() == pytest.approx(
        injected.truth(np.inf), rel=0.5
    )


def test_truth_of_an_injection_by_hand() -> None:
    x = np.array([20.0, 10.0, 20.0, 30.0])  # the first is not part of a block
    treated, rng = np.array([False, True, False, True]), np.random.default_rng(1)
    half = _Injection(lambda x: np.full_like(x, 10.0), share=0.5, carry=0.1)  # carry 2
    found = half.apply(x, treated, rng)
    assert found.truth(math.inf) == pytest.approx(0.5 * 10 + 2)
    # Half of (20, 30, 30 after both) and half of (12, 22, 30), less (10, 20, 30).
    assert found.truth(30.0) == pytest.approx((0.5 * (12 + 10 + 0) + 0.5 * (2 + 2 + 0)) / 3)
    every = _Injection(lambda x: np.full_like(x, 10.0), carry=0.1)
    assert every.apply(x, treated, rng).service_us.tolist() == [20.0, 20.0, 22.0, 40.0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trials_estimated_together_are_as_each_by_itself(layout: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    drawn = [_draw(noise(601, rng), layout, None, rng) for _ in range(4)]
    for one, effects in zip(drawn, _effects(drawn), strict=True):
        arm, size = effects.blocks.n_arms - 1, (one.blocks, len(layout))
        blocks = by_arm(
            arm=one.arm[1:].reshape(size),
            service_us=one.service_us[1:].reshape(size),
            cpu_us=np.full(size, np.nan),
            backend=np.zeros(one.blocks, dtype=np.int64),
            previous=np.stack([one.arm[:-1].reshape(size), np.full(size, -1)]),
            block=layout,
        )
        reference = (0, 1) if arm > 1 else (0,)
        alone = split(blocks, reference).of(arm, reference)
        assert (effects.c, effects.base_c) == (alone.c, alone.base_c)
        assert vars(effects.interval(effects.body_cost(arm))) == pytest.approx(
            vars(alone.interval(alone.body_cost(arm))), rel=1e-9
        )
        assert vars(effects.percent(effects.body_cost(arm))) == pytest.approx(
            vars(alone.percent(alone.body_cost(arm))), rel=1e-9
        )
        assert effects.total_cost(arm).value == pytest.approx(alone.total_cost(arm).value)


def test_no_interval_of_the_tail_of_a_short_recording() -> None:
    found = calibrate(recording(59_000), trials=24, seed=1)
    assert found.stall_units == 0
    assert found.raw_coverage["rare stall"].trials == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_false_positives_in_every_layout(layout: tuple[int, ...]) -> None:
    """A defect of one layout must not drown in the others."""
    x = noise(40_000, np.random.default_rng(2), stalls=0)
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(600):
        start = int(rng.integers(len(x) - 1_501))
        effects = _effects([_draw(x[start : start + 1_501], layout, None, rng)])[0]
        interval = effects.interval(effects.body_cost(effects.blocks.n_arms - 1))
        wrong += not interval.lo <= 0 <= interval.hi
    assert 0.025 <= wrong / 600 <= 0.08


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
    found = calibrate(recording(), trials=300, units=900, seed=1)
    assert found.false_positives.interval(0.99)[0] > 0.06
    assert found.body_coverage["shift"].rate < 0.9


def test_a_short_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="3001"):
        calibrate(recording(1_000), seed=1)
