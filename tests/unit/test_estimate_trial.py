"""A whole trial through `analyse` and `live`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pgtare.estimate import sequential
from pgtare.estimate.trial.analysis import analyse, live
from pgtare.estimate.trial.answer import Answer, Basis, ReasonKind
from pgtare.estimate.trial.comparison import Comparison
from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.effects import Strata, effects_of
from pgtare.estimate.trial.observations import Observations, UnitFlag, empty
from pgtare.estimate.trial.results import ArmEstimate, TrialEstimate
from pgtare.estimate.trial.runs import select
from pgtare.estimate.trial.timing import duration_s
from tests.unit import simulated_trial as simulated
from tests.unit.estimate_textbook import design_of, simulate

DESIGN = design_of(4)
NAN = math.nan
PROVEN = {"i2": True, "i3": True}


@pytest.fixture(scope="module")
def obs() -> Observations:
    return simulate(DESIGN, 375, backends=2, own=(0, 0, 3.0), seed=2)


@pytest.fixture(scope="module")
def trial(obs: Observations) -> TrialEstimate:
    return analyse(obs, DESIGN, margin=0.02, proven=PROVEN)


def answer(arm: ArmEstimate) -> Answer:
    assert arm.answer is not None
    return arm.answer


def compared(obs: Observations, design: Design, arm: int) -> Comparison:
    strata = Strata.of(select(obs, design))
    return effects_of(strata, design.reference, [arm])[2][arm].compared()


def verdicts(found: TrialEstimate) -> list[str]:
    return [answer(arm).verdict for arm in found.arms[1:]]


def test_verdicts(trial: TrialEstimate) -> None:
    assert trial.arms[0].answer is None
    assert answer(trial.arms[2]).verdict == "cost"
    assert answer(trial.arms[2]).us.lo < 3 < answer(trial.arms[2]).us.hi
    assert trial.arms[2].p is not None
    assert trial.arms[2].p < 1e-9
    for quiet in (trial.arms[1], trial.arms[3]):
        assert quiet.p is not None
        assert quiet.p > 0.001
    # a few dozen exceedances cannot bound a rate ratio of one by 1.25
    assert answer(trial.arms[3]).because(ReasonKind.TAIL_OPEN) is not None
    for arm in trial.arms[1:]:
        assert answer(arm).basis == Basis.SETTLED
    assert trial.covered == 1.0


@pytest.mark.slow
def test_quiet_arm_with_a_long_trial_is_equivalent() -> None:
    design = design_of(3)
    obs = simulate(design, 1_000, backends=14, stalls=0, seed=6)
    found = analyse(obs, design, proven={"i2": True})
    assert found.blocks > 13_000
    assert verdicts(found) == ["equivalent", "equivalent"]


@pytest.mark.slow
def test_rare_but_dear_stalls_are_a_cost() -> None:
    """A tenth of a second in 0.012 % of the transactions is 17 % of the mean."""
    design = design_of(3)
    obs = simulate(design, 1_000, backends=14, stalls=0, seed=7)
    treated = np.flatnonzero((obs["arm"] == 2) & (obs["position"] >= 8))
    hit = np.random.default_rng(1).choice(treated, round(0.00012 * len(treated)), replace=False)
    obs["service_ns"][hit] += 100_000_000
    control, dear = analyse(obs, design, proven={"i2": True}).arms[1:]
    assert answer(control).verdict == "equivalent"
    assert compared(obs, design, 2).tail_bound < 1.25  # the rate alone lets them pass
    assert dear.effect is not None
    assert dear.effect.total_us.lo > 0.08 * 70
    # the body cannot be distinguished from zero, but what it costs in all can
    assert answer(dear).us.lo < 0 < answer(dear).us.hi
    assert answer(dear).verdict == "cost"
    assert answer(dear).because(ReasonKind.TOTAL_DIFFERS) is not None


def test_a_trial_that_ended_by_accident_verifies_nothing(obs: Observations) -> None:
    found = analyse(obs, DESIGN, proven=PROVEN, ended_early="its deadline had come")
    assert set(verdicts(found)) == {"not_verified"}
    assert {answer(arm).reasons[0].text for arm in found.arms[1:]} == {"its deadline had come"}


def test_few_clusters_widen_the_mde_as_they_widen_the_interval() -> None:
    """A session begins with a spell that is forty times as slow."""
    design = design_of(3)
    obs = simulate(design, 200, stalls=0, seed=4)
    slow = obs["unit"] < 300
    obs["service_ns"][slow] *= 40
    found = analyse(obs, design, proven={"i2": True})
    arm = found.arms[2]
    assert arm.effective_clusters is not None
    assert arm.effective_clusters < 10
    assert found.mde_us > answer(arm).us.half_width


def test_unproven_instruments_are_not_verified(obs: Observations) -> None:
    found = analyse(obs, DESIGN, proven={"i3": True, "control": False})
    assert answer(found.arms[1]).verdict == "not_verified"
    assert answer(found.arms[2]).verdict == "not_verified"
    assert answer(found.arms[3]).verdict != "not_verified"
    assert answer(analyse(obs, DESIGN).arms[3]).verdict == "not_verified"


def test_control_and_injected_arms_stand_outside_the_family(obs: Observations) -> None:
    arms = (*DESIGN.arms[:3], Arm("delay", "injected", inject_ns=1000))
    found = analyse(obs, Design(arms, DESIGN.block, 1), proven={"i2": True})
    assert [arm.p_adjusted is None for arm in found.arms] == [True, False, False, True]
    assert found.arms[2].p_adjusted == found.arms[2].p
    assert answer(found.arms[3]).verdict != "not_verified"


def test_baseline_and_sessions(obs: Observations, trial: TrialEstimate) -> None:
    base = obs[(obs["arm"] == 0) & (obs["position"] >= 8)]["service_ns"] / 1000
    assert trial.arms[0].n == len(base)
    assert trial.arms[0].mean_us == pytest.approx(base.mean())
    assert trial.arms[0].p99_us == pytest.approx(np.quantile(base, 0.99))
    assert trial.baseline.cpu_us == pytest.approx(0.9 * base.mean(), rel=1e-3)
    assert trial.sessions == 2
    assert trial.switching.switch_us == 0.5
    assert trial.switching.switch_throughput_pct == pytest.approx(50 / 92, rel=0.2)


def test_cpu_follows_service_time(obs: Observations, trial: TrialEstimate) -> None:
    effect = trial.arms[2].effect
    assert effect is not None
    assert effect.cpu_us is not None
    assert effect.cpu_us.estimate == pytest.approx(
        0.9 * answer(trial.arms[2]).us.estimate, rel=1e-2
    )
    without = obs.copy()
    without["cpu_ns"] = -1
    found = analyse(without, DESIGN)
    assert found.baseline.cpu_us is None
    assert found.arms[2].effect is not None
    assert found.arms[2].effect.cpu_us is None


def test_peeked_intervals_are_those_of_the_confidence_sequence(
    obs: Observations, trial: TrialEstimate
) -> None:
    peeked = analyse(obs, DESIGN, proven=PROVEN, peeked=True)
    for plain, wide in zip(trial.arms[1:], peeked.arms[1:], strict=True):
        assert plain.effect is not None
        assert wide.effect is not None
        assert wide.p is not None
        assert plain.p is not None
        for one, other in (
            (answer(plain).us, answer(wide).us),
            (answer(plain).pct, answer(wide).pct),
            (plain.effect.p50_us, wide.effect.p50_us),
            (plain.effect.cpu_us, wide.effect.cpu_us),
        ):
            assert one is not None
            assert other is not None
            assert one.estimate == other.estimate
            assert other.half_width / other.se == pytest.approx(
                sequential.multiplier(trial.blocks), rel=0.05
            )
            assert other.half_width > 1.7 * one.half_width
        if plain.p > 0.01:
            assert wide.p > plain.p
    assert peeked.peeked


def test_tail_bound_is_one_sided(obs: Observations) -> None:
    """The 95 % bound of one side is the limit of the two-sided 90 % interval."""
    for arm in (1, 2, 3):
        found = compared(obs, DESIGN, arm)
        ratio = found.rate_ratio(0.05)
        assert ratio.estimate < found.tail_bound < ratio.hi


def slow_in(obs: Observations, counts: list[int]) -> Observations:
    """The trial with so many stalls in each arm, none over 75 µs besides."""
    calm = obs.copy()
    calm["service_ns"] = np.minimum(calm["service_ns"], 75_000)
    for arm, count in enumerate(counts):
        units = np.flatnonzero((calm["arm"] == arm) & (calm["position"] >= 8))
        calm["service_ns"][units[:: len(units) // (count + 1)][:count]] = 5_000_000
    return calm


@pytest.mark.parametrize("counts", [[9, 9, 9, 13], [14, 12, 9, 9]])
def test_time_for_the_tail_does_not_hang_on_a_dozen_events(
    obs: Observations, trial: TrialEstimate, counts: list[int]
) -> None:
    """With equal rates of 0.1 % it takes some 250 exceedances in either arm; a dozen is here."""
    arm = analyse(slow_in(obs, counts), DESIGN, margin=0.05, proven=PROVEN).arms[3]
    assert answer(arm).because(ReasonKind.TAIL_OPEN) is not None
    needed_s = answer(arm).needed_s
    assert needed_s is not None
    assert 15 < needed_s / duration_s(obs) < 50


def test_live_agrees_with_the_peeked_analysis(obs: Observations, trial: TrialEstimate) -> None:
    found, without_limits = live(obs, DESIGN), live(obs, DESIGN, limits=False)
    peeked = analyse(obs, DESIGN, proven=PROVEN, peeked=True)
    assert found.blocks == trial.blocks
    assert [arm.name for arm in found.arms] == ["control", "i2", "i3"]
    for now, later in zip(found.arms, peeked.arms[1:], strict=True):
        assert now.body_pct == answer(later).pct
        assert now.half_width_pct == answer(later).pct.half_width
    for now, fixed in zip(without_limits.arms, trial.arms[1:], strict=True):
        assert now.half_width_pct == pytest.approx(answer(fixed).pct.half_width)


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 9, 40])
def test_next_to_no_data_is_inconclusive(rows: int) -> None:
    obs = simulate(DESIGN, 20)[:rows] if rows else empty()
    found = analyse(obs, DESIGN, proven=PROVEN)
    assert verdicts(found) == ["inconclusive"] * 3
    assert len(live(obs, DESIGN).arms) == 3


@pytest.mark.parametrize("value", [0, 70_000])
def test_data_without_variance_is_inconclusive(value: int) -> None:
    obs = simulate(DESIGN, 200)
    obs["service_ns"] = value
    found = analyse(obs, DESIGN, proven=PROVEN)
    assert verdicts(found) == ["inconclusive"] * 3


def test_an_arm_that_never_ran_has_no_answer() -> None:
    obs = simulate(DESIGN, 60)
    found = analyse(obs[obs["arm"] != 3], DESIGN, margin=0.02, proven=PROVEN)
    assert found.arms[3].n == 0
    assert answer(found.arms[3]).verdict == "inconclusive"
    assert math.isnan(answer(found.arms[3]).us.estimate)
    assert answer(found.arms[2]).us.half_width < 2


def test_doubtful_transactions_are_counted(obs: Observations) -> None:
    flagged = obs.copy()
    flagged["flags"][15] = UnitFlag.APP_CHANGED
    found = analyse(flagged, DESIGN, proven=PROVEN)
    early = np.count_nonzero(obs["position"] < 8)
    assert obs["position"][15] >= 8
    assert sum(arm.excluded for arm in found.arms) == early + 1


def test_an_answer_of_some_sessions_says_so() -> None:
    """A pool that seldom sends anything, beside one session that is always busy."""
    rng = np.random.default_rng(1)
    design = simulated.design_of(1, 4)
    pool = [simulated.lognormal(25, rng) for _ in range(100)]
    sessions = simulated.old([simulated.lognormal(5_000, rng), *pool])
    obs = simulated.simulate(sessions, design).observations
    found = analyse(obs, design, proven={"i1": True})
    assert found.covered == pytest.approx(5_000 / 7_500)
    reason = answer(found.arms[1]).because(ReasonKind.SHORT_SESSIONS)
    assert reason is not None
    assert reason.n == found.shortest == 5_000
    alone = analyse(obs[obs["backend"] == 0], design, proven={"i1": True})
    assert answer(alone.arms[1]).because(ReasonKind.SHORT_SESSIONS) is None


def test_new_sessions_are_in_the_answer_and_named() -> None:
    rng = np.random.default_rng(1)
    design = simulated.design_of(1, 4)
    sessions = simulated.new([simulated.lognormal(40, rng) for _ in range(300)], rng)
    sessions += simulated.old([simulated.lognormal(10_000, rng)])
    found = analyse(simulated.simulate(sessions, design).observations, design)
    assert answer(found.arms[1]).basis == Basis.FIRST_AND_SETTLED
    assert 0.2 < found.first_share < 0.6
    few = simulated.simulate(sessions[:19] + sessions[-1:], design)
    assert answer(analyse(few.observations, design).arms[1]).basis == Basis.SETTLED


def test_a_percentage_is_of_the_base_in_the_runs_that_are_compared() -> None:
    """First runs are five times as long; too few sessions began with an instrument to use them."""
    rng = np.random.default_rng(1)
    design = simulated.design_of(8, 4)
    slow_first = [np.r_[np.full(32, 150.0), np.full(200, 30.0)] for _ in range(60)]
    sessions = simulated.new(slow_first, rng) + simulated.old([np.full(20_000, 30.0)])
    obs = simulated.simulate(sessions, design).observations
    obs["service_ns"] += rng.integers(0, 2_000, len(obs)).astype("<i8")
    of = answer(analyse(obs, design).arms[1])
    assert of.basis == Basis.SETTLED
    half_us, half_pct = of.us.hi - of.us.estimate, of.pct.hi - of.pct.estimate
    assert 30 < 100 * half_us / half_pct < 33  # with the first runs it is 38


def test_margin_must_be_positive() -> None:
    with pytest.raises(ValueError, match="margin"):
        analyse(empty(), DESIGN, margin=0)
