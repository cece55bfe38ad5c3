"""Calibration: the estimators err as often as they say."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from pgtare.estimate.inference import Expansion
from pgtare.estimate.trial.design import block_layout
from pgtare.estimate.trial.effects import Strata, effects_of
from pgtare.estimate.trial.observations import NO_SLICE, OBSERVATION, Observations
from pgtare.estimate.trial.pseudo_trials import (
    _STALLS,
    LAYOUTS,
    Calibration,
    _drawn,
    _effects,
    _Injection,
    _Place,
    calibrate,
)
from pgtare.estimate.trial.runs import DROPPED, select
from pgtare.estimate.trial.threshold import threshold
from tests.unit.estimate_textbook import clopper_pearson, design_of, noise, simulate

KINDS = ("shift", "proportional effect", "delay of one in fifty", "carry-over", "cold start")


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
def calibration(trials: int = 240, units: int = 6_000) -> Calibration:
    return calibrate(recording(100_000), trials=trials, units=units, seed=1)


def test_false_positive_rate() -> None:
    # 240 pseudo-trials: what 5 % gives less than once in 10,000 times
    assert calibration().false_positives.rate <= 0.11


def test_percentages_and_failures() -> None:
    found = calibration()
    assert set(found.percent_coverage) == set(KINDS)
    for rate in found.percent_coverage.values():
        assert rate.rate >= 0.83
    assert found.false_failures.rate <= 0.11
    assert found.failures_found.rate > 0.8
    assert [layout.count(0) - layout.count(1) for layout in LAYOUTS] == [0, 0, 1]


@pytest.mark.slow
def test_false_positive_rate_and_coverage_at_length() -> None:
    """So long that a true rate of 7 % would be found out in 99 of 100."""
    found = calibration(4_000, 12_000)
    assert found.failures_found.rate > 0.9
    assert found.false_failures.rate <= 0.065
    assert 0.04 <= found.false_positives.rate <= 0.06
    for kind in KINDS:
        # 1,000 pseudo-trials of each kind: 95 % and three standard errors of it.
        assert 0.93 <= found.body_coverage[kind].rate <= 0.97, kind
    assert 0.92 <= found.body_coverage["rare stall"].rate <= 0.98
    assert found.raw_coverage["rare stall"].rate >= 0.93
    assert found.raw_coverage["rare stall"].trials > 225


@pytest.mark.parametrize("kind", KINDS)
def test_coverage(kind: str) -> None:
    # 60 pseudo-trials of each kind: what 95 % leaves less than once in 10,000 times
    assert calibration().body_coverage[kind].rate >= 0.83


@pytest.mark.slow
def test_coverage_of_stalls_above_the_threshold() -> None:
    found = calibration(1_600, 12_000)
    # 100 pseudo-trials
    assert 0.85 <= found.body_coverage["rare stall"].rate <= 1
    # With stalls of its own in the recording, the interval covers too often, never too seldom.
    assert found.raw_coverage["rare stall"].rate >= 0.9
    assert found.raw_coverage["rare stall"].trials > 90


def place_of(treated: list[bool]) -> _Place:
    """One run of each of two arms after the other, or whatever is given."""
    n = len(treated)
    return _Place(
        layout=(0, 1),
        arm=np.array(treated).astype(np.int64),
        block=np.zeros(n, dtype=np.int64),
        run=np.zeros(n, dtype=np.int64),
        position=np.arange(n),
    )


def test_rare_stalls_lie_in_the_tail() -> None:
    """Else their coverage would say nothing of it: nearly all of their cost is excess."""
    rng = np.random.default_rng(4)
    x = noise(96_000, np.random.default_rng(3), stalls=0)
    place = _drawn(len(x), (0, 1), rng)
    injected = _STALLS["rare stall"].apply(x, place, rng)
    with_stalls = injected.service_us
    c = threshold(with_stalls)
    assert injected.truth(c) < 0.02 * injected.truth(np.inf)
    assert (with_stalls - x)[place.treated].mean() == pytest.approx(injected.truth(np.inf), rel=0.5)


def test_truth_of_an_injection_by_hand() -> None:
    x = np.array([20.0, 10.0, 20.0, 30.0])
    place, rng = place_of([False, True, True, True]), np.random.default_rng(1)
    half = _Injection(lambda x: np.full_like(x, 10.0), share=0.5, carry=0.1)  # carry 2
    found = half.apply(x, place, rng)
    assert found.truth(math.inf) == pytest.approx(0.5 * 10 + 2)
    # half of (30, 22, 30, 30 after both) and half of (22, 12, 22, 30), less (20, 10, 20, 30)
    assert found.truth(30.0) == pytest.approx((10 + 12 + 10 + 0 + 2 + 2 + 2 + 0) / 8)
    every = _Injection(lambda x: np.full_like(x, 10.0), carry=0.1, cold=0.5)
    # the base is 20, 10, 20, 30; 10 more for the arm, 10 in its first four, 2 after each of it
    found = every.apply(x, place, rng)
    assert found.service_us.tolist() == [20.0, 30.0, 42.0, 52.0]
    assert found.truth(math.inf) == 12.0  # when left on it is not cold


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pseudo_trials_are_drawn_as_by_the_server(layout: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    place = _drawn(5_000, layout, rng)
    assert len(place.arm) == 5_000
    for block in range(place.block[-1]):
        mine = place.block == block
        length = int(place.position[mine].max()) + 1
        assert 16 <= length <= 32
        assert mine.sum() == length * len(layout)
        arms = place.arm[mine].reshape(len(layout), length)
        assert (arms == arms[:, :1]).all()
        assert sorted(arms[:, 0]) == sorted(layout)
    firsts = [place.arm[place.block == block][0] for block in range(place.block[-1])]
    assert len(set(firsts)) > 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_estimators_are_those_of_a_trial(layout: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    x, place = np.round(noise(6_000, rng), 3), _drawn(6_000, layout, rng)
    obs = np.zeros(len(x), OBSERVATION)
    obs["service_ns"], obs["slice"] = np.rint(1_000 * x), NO_SLICE
    obs["unit"], obs["position"] = np.arange(len(x)), place.position
    obs["block"], obs["run"], obs["arm"] = place.block, place.run, place.arm
    design = design_of(max(layout) + 1, block=layout)
    reference = (0, 1) if place.judged > 1 else (0,)
    strata = Strata.of(select(obs, design))
    base_c, base_us, alone = effects_of(strata, reference, [place.judged])
    found, c = _effects(x, place)
    assert DROPPED == 8
    assert (found.c, c, found.base_us) == (alone[place.judged].c, base_c, base_us)
    assert vars(found.interval(found.body)) == pytest.approx(
        vars(alone[place.judged].interval(alone[place.judged].body)), rel=1e-9
    )


def test_no_interval_of_the_tail_of_a_short_recording() -> None:
    found = calibrate(recording(59_000), trials=24, seed=1)
    assert found.raw_coverage["rare stall"].trials == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_false_positives_in_every_layout(layout: tuple[int, ...]) -> None:
    """A defect of one layout must not drown in the others."""
    x = noise(40_000, np.random.default_rng(2), stalls=0)
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(600):
        start = int(rng.integers(len(x) - 12_000))
        effects, _ = _effects(x[start : start + 12_000], _drawn(12_000, layout, rng))
        interval = effects.interval(effects.body)
        wrong += not interval.lo <= 0 <= interval.hi
    assert 0.025 <= wrong / 600 <= 0.08


@pytest.mark.slow
def test_six_arms_and_few_blocks() -> None:
    """A/A of every arm at 60 blocks."""
    wrong = looks = 0
    for seed in range(80):
        design = design_of(6, block=block_layout(6), seed=seed)
        selection = select(simulate(design, 60, stalls=0, seed=seed), design)
        _, _, found = effects_of(Strata.of(selection), design.reference, range(1, 6))
        for effects in found.values():
            interval = effects.interval(effects.body)
            wrong += not interval.lo <= 0 <= interval.hi
            looks += 1
    assert 0.02 <= wrong / looks <= 0.09


@pytest.mark.slow
def test_equivalence_at_the_margin_is_seldom_claimed() -> None:
    wrong = 0
    for seed in range(80):
        design = design_of(2, seed=seed)
        obs = simulate(design, 100, stalls=0, own=(0, 1.4), seed=2000 + seed)
        _, _, found = effects_of(Strata.of(select(obs, design)), (0,), [1])
        interval = found[1].interval(found[1].body)
        wrong += interval.lo > -1.4 and interval.hi < 1.4
    assert clopper_pearson(wrong, 80, 0.98)[0] <= 0.025


def test_a_standard_error_too_small_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration that cannot fail proves nothing: claim half the standard error."""
    honest = Expansion.se.fget
    assert honest is not None
    monkeypatch.setattr(Expansion, "se", property(lambda self: honest(self) / 2))
    found = calibrate(recording(), trials=150, units=3_000, seed=1)
    wrong = found.false_positives
    assert clopper_pearson(wrong.hits, wrong.trials, 0.99)[0] > 0.06
    assert found.body_coverage["shift"].rate < 0.9


def test_a_short_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="12000"):
        calibrate(recording(1_000), seed=1)
