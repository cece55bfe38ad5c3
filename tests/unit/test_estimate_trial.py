"""A whole trial through `analyse` and `live`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pgtare.estimate import sequential
from pgtare.estimate.inference import Expansion
from pgtare.estimate.trial import (
    TrialEstimate,
    analyse,
    live,
)
from pgtare.estimate.trial.blocks import select
from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.effects import Effects, split
from pgtare.estimate.trial.long_carry_over import LongEffects
from pgtare.estimate.trial.observations import Observations, UnitFlag, empty
from pgtare.estimate.trial.run_pairs import select_pairs
from pgtare.estimate.trial.threshold import threshold
from pgtare.estimate.trial.verdict import Decision, Evidence
from tests.unit.estimate_textbook import design_of, simulate

DESIGN = design_of(4)
NAN = math.nan
PROVEN = {"i2": True, "i3": True}


@pytest.fixture(scope="module")
def obs() -> Observations:
    return simulate(DESIGN, 6_000, backends=2, own=(0, 0, 3.0), carry=(0, 0, 1.0), seed=2)


@pytest.fixture(scope="module")
def trial(obs: Observations) -> TrialEstimate:
    return analyse(obs, DESIGN, margin=0.02, proven=PROVEN, seed=1)


def test_verdicts(trial: TrialEstimate) -> None:
    assert [arm.verdict for arm in trial.arms[:3]] == [None, "inconclusive", "cost"]
    assert trial.arms[2].p is not None
    assert trial.arms[2].p < 1e-9
    assert trial.arms[2].p_randomisation == 1 / 2000
    for quiet in (trial.arms[1], trial.arms[3]):
        assert quiet.p is not None
        assert quiet.p > 0.001
    # 48 exceedances cannot bound a rate ratio of one by 1.25.
    assert trial.arms[3].verdict_reason == "tail"


@pytest.mark.slow
def test_quiet_arm_with_a_long_trial_is_equivalent() -> None:
    design = design_of(3)
    found = analyse(
        simulate(design, 10_000, backends=25, stalls=0, seed=6),
        design,
        proven={"i2": True},
        seed=1,
    )
    assert found.blocks == 250_000
    assert [arm.verdict for arm in found.arms] == [None, "equivalent", "equivalent"]


def stalled(share: float, stall_us: float) -> Observations:
    """A quiet trial of three arms, the last of which stalls in a share of its transactions."""
    design = design_of(3)
    obs = simulate(design, 10_000, backends=25, stalls=0, seed=6)
    treated = np.flatnonzero((obs["arm"] == 2) & (obs["flags"] == 0))
    hit = np.random.default_rng(1).choice(treated, round(share * len(treated)), replace=False)
    obs["service_ns"][hit] += round(1000 * stall_us)
    return obs


def test_rare_but_dear_stalls_are_a_cost() -> None:
    """A tenth of a second in 0.012 % of the transactions is 17 % of the mean."""
    found = analyse(stalled(0.00012, 100_000), design_of(3), proven={"i2": True}, seed=1)
    control, dear = found.arms[1:]
    assert control.verdict == "equivalent"
    assert dear.tail_bound is not None
    assert dear.tail_bound < 1.25  # the rate alone lets them pass
    assert dear.effect is not None
    assert dear.effect.total_pct.lo > 8
    # the body cannot be distinguished from zero, but what it costs in all can
    assert dear.effect.body_us.lo < 0 < dear.effect.body_us.hi
    assert dear.verdict == "cost"
    assert dear.verdict_reason.startswith("by the total, p = ")


def test_margin_allows_for_the_error_of_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """The margin is a share of an estimate: its error and covariance count in both tests."""
    seen: list[Evidence] = []

    def keep(evidence: Evidence) -> Decision:
        seen.append(evidence)
        return Decision("inconclusive", "")

    monkeypatch.setattr("pgtare.estimate.trial.comparison.judge", keep)
    design = design_of(3)
    obs = simulate(design, 200, own=(0, 0, 4), stalls=0.01)
    analyse(obs, design, margin=0.2, proven={"i2": True}, seed=1)
    blocks = select(obs, design).blocks
    effects = split(blocks, design.reference).of(2, design.reference)
    body, base = effects.body_cost(2), effects.base_body
    g = len(body.influence)
    covariance = g / (g - 1) * float(body.influence @ base.influence)
    for found, sign in ((seen[1].under, 1), (seen[1].over, -1)):
        variance = body.se**2 + (0.2 * base.se) ** 2 + 2 * sign * 0.2 * covariance
        assert found.estimate == pytest.approx(body.value + sign * 0.2 * base.value)
        assert found.se == pytest.approx(math.sqrt(variance))
        assert found.se != pytest.approx(body.se, rel=0.01)
        # fewer degrees of freedom than clusters less one, where a few of these clusters dominate
        assert found.half_width / found.se >= effects.by_cluster.multiplier(0.10) - 1e-9


def test_a_trial_that_ended_by_accident_verifies_nothing(obs: Observations) -> None:
    found = analyse(obs, DESIGN, proven=PROVEN, ended_early="its deadline had come", seed=1)
    assert {arm.verdict for arm in found.arms[1:]} == {"not_verified"}
    assert {arm.verdict_reason for arm in found.arms[1:]} == {
        "the trial ended early: its deadline had come"
    }


@pytest.mark.parametrize(("lag_us", "expected"), [(3.0, ["i2"]), (-3.0, ["i2"]), (0.0, [])])
def test_an_effect_that_outlasts_the_next_transaction_is_reported(
    lag_us: float, expected: list[str]
) -> None:
    design = design_of(3, block=(0, 1, 2, 0, 1, 2))
    obs = simulate(design, 4_000, own=(0, 0, 5), stalls=0, seed=4)
    obs["service_ns"][2:] += round(1000 * lag_us) * (obs["arm"][:-2] == 2)
    found = [arm for arm in analyse(obs, design, proven={"i2": True}, seed=1).arms if arm.outlasts]
    assert [arm.name for arm in found] == expected
    for arm in found:
        assert arm.effect is not None
        assert arm.effect.second_lag_us.lo < lag_us < arm.effect.second_lag_us.hi


def test_few_clusters_widen_the_mde_as_they_widen_the_interval() -> None:
    """A session begins with a spell that is forty times as slow."""
    design = design_of(3)
    obs = simulate(design, 2_000, stalls=0, seed=4)
    slow = obs["unit"] < 60
    obs["service_ns"][slow] *= 40
    found = analyse(obs, design, proven={"i2": True}, seed=1)
    arm = found.arms[2]
    assert arm.effective_clusters is not None
    assert arm.effective_clusters < 10
    assert arm.mde_us == pytest.approx(found.mde_us)
    assert arm.effect is not None
    assert found.mde_us > arm.effect.body_us.half_width


def outlasts(monkeypatch: pytest.MonkeyPatch, lag: float, body: float) -> bool:
    """Whether a second lag with a standard error of 1 counts, of one of four instruments."""
    obs = simulate(design_of(6), 400, stalls=0)
    blocks = select(obs, design_of(6)).blocks
    effects = Effects(blocks, threshold(blocks.service_us))
    clusters = blocks.n_clusters
    error = np.full(clusters, math.sqrt((clusters - 1) / clusters / clusters))
    monkeypatch.setattr(Effects, "second_lag", lambda *_: Expansion(lag, error))
    monkeypatch.setattr(Effects, "body_cost", lambda *_: Expansion(body, error))
    return LongEffects(select_pairs(obs, 6), [effects] * 6).outlasts(2, margin_us=100.0, family=4)


def test_second_lags_are_adjusted_over_the_arms_and_must_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not outlasts(monkeypatch, 2.4, body=5.0)  # distinct from zero if it were alone
    assert outlasts(monkeypatch, 3.5, body=5.0)
    assert not outlasts(monkeypatch, 3.5, body=36.0)  # less than a tenth


def test_unproven_instruments_are_not_verified(obs: Observations) -> None:
    found = analyse(obs, DESIGN, proven={"i3": True, "control": False}, seed=1)
    assert found.arms[1].verdict == "not_verified"
    assert found.arms[2].verdict == "not_verified"
    assert found.arms[3].verdict != "not_verified"
    assert analyse(obs, DESIGN, seed=1).arms[3].verdict == "not_verified"


def test_control_and_injected_arms_stand_outside_the_family(obs: Observations) -> None:
    arms = (*DESIGN.arms[:3], Arm("delay", "injected", inject_ns=1000))
    found = analyse(obs, Design(arms, DESIGN.block, 1), proven={"i2": True}, seed=1)
    assert [arm.p_adjusted is None for arm in found.arms] == [True, False, False, True]
    assert found.arms[2].p_adjusted == found.arms[2].p
    assert found.arms[3].verdict != "not_verified"


def test_baseline_sessions_and_carry_over(obs: Observations, trial: TrialEstimate) -> None:
    base = obs[(obs["arm"] == 0) & (obs["flags"] == 0)]["service_ns"] / 1000
    assert trial.baseline.n == len(base) == 12_000
    assert trial.baseline.mean_us == pytest.approx(base.mean())
    assert trial.baseline.p99_us == pytest.approx(np.quantile(base, 0.99))
    assert trial.baseline.cpu_us == pytest.approx(0.9 * base.mean(), rel=1e-3)
    assert trial.sessions == 2
    assert [(b.backend, b.pid, b.n) for b in trial.by_backend] == [
        (0, 100, 24_000),
        (1, 101, 24_000),
    ]
    for backend in trial.by_backend:
        assert set(backend.body_us) == {"i2", "i3"}
        assert 2.5 < backend.body_us["i2"].estimate < 5.5
    assert trial.carry_over.switch_us == 0.5
    assert trial.carry_over.switch_throughput_pct == pytest.approx(50 / 74, rel=0.2)


def test_cpu_follows_service_time(obs: Observations, trial: TrialEstimate) -> None:
    effect = trial.arms[2].effect
    assert effect is not None
    assert effect.cpu_us is not None
    assert effect.cpu_us.estimate == pytest.approx(0.9 * effect.body_us.estimate, rel=1e-2)
    without = obs.copy()
    without["cpu_ns"] = -1
    found = analyse(without, DESIGN, seed=1)
    assert found.baseline.cpu_us is None
    assert found.arms[2].effect is not None
    assert found.arms[2].effect.cpu_us is None


def test_peeked_intervals_are_those_of_the_confidence_sequence(
    obs: Observations, trial: TrialEstimate
) -> None:
    peeked = analyse(obs, DESIGN, proven=PROVEN, peeked=True, seed=1)
    for plain, wide in zip(trial.arms[1:], peeked.arms[1:], strict=True):
        assert plain.effect is not None
        assert wide.effect is not None
        assert wide.p is not None
        assert plain.p is not None
        assert math.isnan(plain.effect.total_us.lo)  # 48 stalls in four arms
        for name in ("body_us", "body_pct", "mean_us", "p50_us", "cpu_us"):
            one, other = getattr(plain.effect, name), getattr(wide.effect, name)
            assert one.estimate == other.estimate
            # Fieller's interval is not quite symmetric
            assert other.half_width / other.se == pytest.approx(
                sequential.multiplier(trial.blocks), rel=0.05
            )
            assert other.half_width > 1.8 * one.half_width
        if plain.p > 0.01:
            assert wide.p > plain.p
    assert peeked.peeked


def test_tail_bound_is_one_sided(trial: TrialEstimate) -> None:
    """The 95 % bound of one side is the limit of the two-sided 90 % interval."""
    for arm in trial.arms[1:]:
        assert arm.tail_rate_ratio is not None
        assert arm.tail_bound is not None
        assert arm.tail_rate_ratio.estimate < arm.tail_bound < arm.tail_rate_ratio.hi


def test_seconds_until_the_tail_is_cleared(obs: Observations, trial: TrialEstimate) -> None:
    """A rate a little above the base's can still be shown to be less than 1.25 times as high."""
    same = obs.copy()
    units = np.flatnonzero((same["flags"] == 0) & (same["arm"] == 3))
    same["service_ns"][units] = np.random.default_rng(3).permutation(
        same["service_ns"][(same["flags"] == 0) & (same["arm"] == 0)]
    )
    calm = np.flatnonzero((same["arm"] == 3) & (same["service_ns"] < 1000 * 80))
    same["service_ns"][calm[0]] = 1000 * 5000  # one stall more than the base has
    arm = analyse(same, DESIGN, margin=0.05, proven=PROVEN, seed=1).arms[3]
    assert arm.tail_rate_ratio is not None
    assert 1 < arm.tail_rate_ratio.estimate < 1.25
    assert arm.verdict_reason == "tail"
    assert arm.needed_s is not None
    assert arm.needed_s > trial.duration_s


def slow_in(obs: Observations, counts: list[int]) -> Observations:
    """The trial with so many stalls in each arm, none over 100 µs besides."""
    calm = obs.copy()
    calm["service_ns"] = np.minimum(calm["service_ns"], 100_000)
    for arm, count in enumerate(counts):
        units = np.flatnonzero((calm["arm"] == arm) & (calm["flags"] == 0))
        calm["service_ns"][units[:: len(units) // (count + 1)][:count]] = 5_000_000
    return calm


@pytest.mark.parametrize("counts", [[9, 9, 9, 13], [0, 24, 24, 0]])
def test_time_for_the_tail_does_not_hang_on_a_dozen_events(
    obs: Observations, trial: TrialEstimate, counts: list[int]
) -> None:
    """With equal rates of 0.1 % it takes some 250 exceedances in either arm; a dozen is here."""
    arm = analyse(slow_in(obs, counts), DESIGN, margin=0.05, proven=PROVEN, seed=1).arms[3]
    assert arm.verdict_reason == "tail"
    assert arm.needed_s is not None
    assert 15 < arm.needed_s / trial.duration_s < 40


def test_live_agrees_with_the_peeked_analysis(obs: Observations, trial: TrialEstimate) -> None:
    found = live(obs, DESIGN)
    peeked = analyse(obs, DESIGN, proven=PROVEN, peeked=True, seed=1)
    assert found.blocks == trial.blocks
    assert [arm.name for arm in found.arms] == ["control", "i2", "i3"]
    for now, later, fixed in zip(found.arms, peeked.arms[1:], trial.arms[1:], strict=True):
        assert later.effect is not None
        assert fixed.effect is not None
        assert now.body_us == later.effect.body_us
        assert now.half_width_pct == pytest.approx(fixed.effect.body_pct.half_width)


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 9, 40])
def test_next_to_no_data_is_inconclusive(rows: int) -> None:
    obs = simulate(DESIGN, 20)[:rows] if rows else empty()
    found = analyse(obs, DESIGN, proven=PROVEN, seed=1)
    assert [arm.verdict for arm in found.arms] == [None, *["inconclusive"] * 3]
    assert len(live(obs, DESIGN).arms) == 3


@pytest.mark.parametrize("value", [0, 70_000])
def test_data_without_variance_is_inconclusive(value: int) -> None:
    obs = simulate(DESIGN, 200)
    obs["service_ns"] = value
    found = analyse(obs, DESIGN, proven=PROVEN, seed=1)
    assert [arm.verdict for arm in found.arms] == [None, *["inconclusive"] * 3]


def test_an_arm_that_never_ran_leaves_nothing() -> None:
    obs = simulate(DESIGN, 200)
    found = analyse(obs[obs["arm"] != 3], DESIGN, proven=PROVEN, seed=1)
    assert found.blocks == 0
    assert found.discarded["incomplete"] == 200
    assert math.isnan(found.baseline.mean_us)
    assert math.isnan(found.baseline.body_mean_us)
    assert {arm.verdict for arm in found.arms[1:]} == {"inconclusive"}


def test_unseparable_lags_are_inconclusive() -> None:
    """With no known previous arm there is no carry-over to estimate."""
    obs = simulate(DESIGN, 200)
    obs["unit"] *= 2
    found = analyse(obs, DESIGN, proven=PROVEN, seed=1)
    assert found.blocks == 200
    assert {arm.verdict for arm in found.arms[1:]} == {"inconclusive"}


def test_discarded_blocks_are_counted(obs: Observations) -> None:
    flagged = obs.copy()
    flagged["flags"][5] = UnitFlag.APP_CHANGED
    found = analyse(flagged, DESIGN, proven=PROVEN, seed=1)
    assert found.blocks_discarded == found.discarded["app_changed"] == 1
    assert sum(arm.excluded for arm in found.arms) == 2 + 4


def test_same_seed_same_result(obs: Observations) -> None:
    part = obs[: 4 * 500]
    one, other = (analyse(part, DESIGN, seed=4) for _ in range(2))
    assert one.arms[3] == other.arms[3]


def test_margin_must_be_positive() -> None:
    with pytest.raises(ValueError, match="margin"):
        analyse(empty(), DESIGN, margin=0, seed=1)
