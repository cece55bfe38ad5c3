"""Verdicts on simulated trials with known truths: how often they are wrong, with bounds.

The same at length is in the table of `bench.scenarios`.
"""

from __future__ import annotations

import numpy as np
import pytest
from bench.scenarios import counting, runs, verdicts

from pgtare.estimate.inference import MISSING, Estimate
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.verdict import Evidence, judge
from tests.unit import simulated_trial as simulated
from tests.unit.estimate_textbook import clopper_pearson
from tests.unit.simulated_trial import Effect, Rng, Session


def _clean(rng: Rng) -> list[Session]:
    return simulated.old(simulated.lognormal(3_000, rng, 0.2) for _ in range(2))


def test_failures_make_no_gain() -> None:
    assert verdicts.aborting(("cost", "gain", "equivalent"), True, 4, 1).hits == 0


def test_rare_stalls_are_a_cost_whoever_is_weighed_too() -> None:
    for instruments in (1, 5):
        assert verdicts.stalls(instruments, True, 1, 1).hits == 1


def test_a_control_that_is_off_leaves_no_verdict() -> None:
    assert verdicts.control_off(3, 1).hits == 0


def test_a_cold_start_is_no_cost() -> None:
    cold = {1: Effect(cold_us=(300.0,) * 4)}
    assert counting.called(_clean, lambda _: cold, ("cost",), 12, 1).hits <= 3


def test_a_clear_cost_is_found() -> None:
    assert counting.called(_clean, lambda rng: runs.slower(0.05, rng), ("cost",), 6, 1).hits == 6


@pytest.mark.parametrize("grows", [True, False])
def test_a_cost_that_has_not_settled_is_a_bound(grows: bool) -> None:
    """It takes 24 transactions until it is what it is when left on."""
    rng = np.random.default_rng(1)
    more = np.linspace(20, 0, 24)
    effect = Effect(lambda x: x + 25, cold_us=tuple(-more if grows else more))
    design = simulated.design_of(1, 3)
    sessions = simulated.old([simulated.lognormal(30_000, rng, 0.1)])
    made = simulated.simulate(sessions, design, {1: effect})
    answer = analyse(made.observations, design, proven={"i1": True}).arms[1].answer
    assert answer is not None
    assert answer.verdict == "cost"
    assert (answer.at_least, answer.at_most) == (grows, not grows)


def test_stalls_that_the_end_cuts_short_are_not_lost() -> None:
    life_us, found, truth = 36_000.0, 0.0, 0.0
    design = simulated.design_of(1, 5)
    rng = np.random.default_rng(3)
    for _ in range(10):
        sessions = [
            Session(simulated.lognormal(300, rng, 0.1), life_us=life_us) for _ in range(120)
        ]
        stalling = Effect(lambda x: x + 0.3 * life_us * (rng.random(len(x)) < 0.01))
        made = simulated.simulate(sessions, design, {1: stalling})
        arm = analyse(made.observations, design).arms[1]
        assert arm.answer is not None
        assert arm.threshold_us is not None
        found += arm.answer.us.estimate
        truth += made.truth(arm.threshold_us)
    assert found / truth == pytest.approx(1, abs=0.12)  # what has an answer alone gives .7


@pytest.mark.slow
def test_error_rates_of_a_short_trial() -> None:
    """Of 100 trials each; a right program fails once in 10,000 times."""
    wrong = counting.wrong(_clean, 100, 1)
    assert clopper_pearson(wrong.hits, wrong.trials, 0.9998)[0] <= 0.05
    covered = counting.covered(_clean, lambda rng: runs.slower(0.05, rng), 60, 1)
    assert clopper_pearson(covered.hits, covered.trials, 0.9998)[1] >= 0.95


def interval(lo: float, hi: float) -> Estimate:
    return Estimate((lo + hi) / 2, (hi - lo) / 4, lo, hi)


@pytest.mark.parametrize(
    ("total", "verdict"),
    [(interval(-3, 5), "inconclusive"), (interval(-3, -0.5), "gain"), (MISSING, "inconclusive")],
)
def test_a_gain_is_not_shown_by_what_is_slower_now_and_then(total: Estimate, verdict: str) -> None:
    """The body is less, and slow transactions add something: only the total decides."""
    found = judge(
        Evidence(
            proven=True,
            blocks=100,
            least_blocks=30,
            body=interval(-3, -1),
            margin_us=0.1,
            excess=interval(0.5, 4),
            total=total,
            tail_bound=2.0,
            p=0.001,
            family=1,
            seconds=60.0,
            factor=1.0,
            tail_factor=1.0,
            p_total=0.001 if total.hi < 0 else 0.5,
        )
    )
    assert found.verdict == verdict
