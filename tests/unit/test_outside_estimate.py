"""The estimator of a weighing from outside, on runs whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pgtare.estimate.trial.analysis import analyse, live
from pgtare.estimate.trial.answer import Basis, ReasonKind
from pgtare.estimate.trial.bursts import BURST, PACED, RUN, disturbed_pct
from pgtare.estimate.trial.design import Arm, Design, Runs, block_layout
from pgtare.estimate.trial.results import TrialEstimate
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.weigh.limit import decided, reason_to_stop
from pgtare.weighing.weigh.request import Request
from tests.unit.estimate_textbook import clopper_pearson

NAMES = ("base", "control", "some")


def design(names: tuple[str, ...] = NAMES) -> Design:
    roles = {"base": "base", "control": "control"}
    arms = tuple(Arm(name, roles.get(name, "instrument")) for name in names)  # type: ignore[arg-type]
    return Design(arms, block_layout(len(arms)), 1, None, Runs(4, 12), driven=True)


def recorded(
    rng: np.random.Generator,
    blocks: int,
    *,
    cost_us: float = 0.0,
    stamp_cost_us: float = 0.0,
    waiting_us: float = 0.0,
    base_us: float = 20.0,
    noise_us: float = 5.0,
    held_up: float = 0.0,
    arms: int = 3,
) -> npt.NDArray[Any]:
    """Runs of blocks of both loops: the last arm costs more, and its stamps do as well."""
    rows = np.zeros((blocks, 5 * arms), RUN)
    every = np.tile(np.arange(arms), (blocks, 1))
    order = rng.permuted(every, axis=1), np.repeat(rng.permuted(every, axis=1), 4, axis=1)
    rows["arm"] = np.hstack(order)
    rows["loop"] = np.repeat((BURST, PACED), (arms, 4 * arms))
    rows["block"] = 2 * np.arange(blocks)[:, None] + rows["loop"]
    rows["start_us"] = 20_000 * rows["block"] + 100 * np.r_[:arms, : 4 * arms]
    length = np.where(rows["loop"] == BURST, rng.integers(4, 13, (blocks, 1)), 1)
    last = rows["arm"] == arms - 1
    cost = cost_us + waiting_us * (rows["loop"] == PACED)
    wobble = rng.gamma(2.0 * length, noise_us / 2)  # of each transaction gamma(2), added up
    stamps = 15 + rng.gamma(2.0, 1.0, (2, *rows.shape)) + stamp_cost_us * last
    slow = 5_000.0 * (rng.random(rows.shape) < held_up)
    took = length * (base_us + cost * last) + wobble + stamps[0] + slow
    rows["run_us"], rows["stamp_us"] = rng.binomial(1, took % 1) + took // 1, stamps[1]
    rows["transactions"] = length
    return rows.reshape(-1)


@cache
def many_runs() -> npt.NDArray[Any]:
    """Enough for a verdict of no cost, made once."""
    return recorded(np.random.default_rng(6), 15_000)


def weighed(rows: npt.NDArray[Any], margin: float = 0.05) -> TrialEstimate:
    return analyse(rows, design(), margin=margin, proven={"some": True})


def test_the_cost_of_a_transaction_is_told_from_that_of_a_stamp() -> None:
    """An instrument that costs a stamp 30 µs and a transaction nothing, and the other way round."""
    rng = np.random.default_rng(3)
    only_stamp = weighed(recorded(rng, 1_500, stamp_cost_us=30.0)).arms[2].answer
    only_script = weighed(recorded(rng, 1_500, cost_us=5.0)).arms[2].answer
    assert only_stamp is not None
    assert only_script is not None
    assert only_stamp.us.lo <= 0 <= only_stamp.us.hi
    assert only_script.us.lo <= 5 <= only_script.us.hi
    assert only_script.us.half_width < 0.5
    assert only_script.verdict == "cost"
    assert only_script.basis is Basis.BURSTS


@pytest.mark.slow
def test_intervals_cover_as_often_as_they_say() -> None:
    """80 trials of 100 blocks; a right program fails once in 10,000 times."""
    covered = {BURST: 0, PACED: 0}
    wrong = 0
    for seed in range(80):
        answer = weighed(recorded(np.random.default_rng(seed), 100, cost_us=1.0)).arms[2].answer
        assert answer is not None
        assert answer.waiting_us is not None
        covered[BURST] += answer.us.lo <= 1.0 <= answer.us.hi
        covered[PACED] += answer.waiting_us.lo <= 1.0 <= answer.waiting_us.hi
        control = weighed(recorded(np.random.default_rng(1_000 + seed), 100)).arms[2]
        wrong += (control.p_adjusted or 1.0) < 0.05
    for hits in covered.values():
        assert clopper_pearson(hits, 80, 0.9998)[1] >= 0.95, covered
    assert clopper_pearson(wrong, 80, 0.9998)[0] <= 0.05


def test_slow_transactions_of_a_session_that_waits_are_in_the_bound() -> None:
    """The bursts are a small part of the time, and may not have met what holds up now and then."""
    rows = recorded(np.random.default_rng(5), 2_500)
    paced = np.flatnonzero((rows["arm"] == 2) & (rows["loop"] == PACED))
    rows["run_us"][paced[::200]] += 10_000
    answer = weighed(rows).arms[2].answer
    assert answer is not None
    assert answer.pct.hi < 10
    assert answer.most_pct > 100


def test_a_figure_that_the_control_could_explain_decides_nothing() -> None:
    rows = recorded(np.random.default_rng(5), 300)
    for arm, share in ((1, 0.6), (2, 0.9)):  # a µs more in so many of the runs
        some = np.flatnonzero((rows["arm"] == arm) & (rows["loop"] == PACED))
        rows["run_us"][some[: int(share * len(some))]] += 1
    answer = weighed(rows).arms[2].answer
    assert answer is not None
    assert answer.waiting_us is not None
    assert not answer.waiting_stands
    assert answer.most_pct == math.inf


@pytest.mark.parametrize("as_servers", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sessions_that_differ_are_what_counts_if_servers_are_compared(as_servers: bool) -> None:
    """60 trials of 32 sessions an arm, which differ by 3 µs as long as they last; see above.

    Blocks, of which each session has eight, would be taken for more than they tell.
    """
    asked = replace(design(), grouping="sessions" if as_servers else "block")
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows = recorded(rng, 256, cost_us=1.0)
        rows["epoch"] = rows["block"] // 16
        lasting = rng.normal(0.0, 3.0, (int(rows["epoch"].max()) + 1, 3))
        rows["run_us"] += np.rint(
            lasting[rows["epoch"], rows["arm"]] * rows["transactions"]
        ).astype(np.int32)
        answer = analyse(rows, asked, margin=0.05, proven={"some": True}).arms[2].answer
        assert answer is not None
        covered += answer.us.lo <= 1.0 <= answer.us.hi
    assert (clopper_pearson(covered, 60, 0.9998)[1] >= 0.95) == as_servers, covered


def test_stamps_that_stall_do_not_spoil_the_intervals() -> None:
    """One stamp in a hundred is late: where its cut fell decided the answer once."""
    covered = {BURST: 0, PACED: 0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows = recorded(rng, 400)
        rows["stamp_us"] += np.where(rng.random(len(rows)) < 0.01, 400, 0).astype(np.int32)
        answer = weighed(rows).arms[2].answer
        assert answer is not None
        assert answer.waiting_us is not None
        covered[BURST] += answer.us.lo <= 0 <= answer.us.hi
        covered[PACED] += answer.waiting_us.lo <= 0 <= answer.waiting_us.hi
    for hits in covered.values():
        assert clopper_pearson(hits, 40, 0.9998)[1] >= 0.95, covered


def test_a_dear_stamp_pushes_no_run_over_the_cut() -> None:
    rows = recorded(np.random.default_rng(8), 4_000, stamp_cost_us=200.0)
    answer = weighed(rows).arms[2].answer
    assert answer is not None
    assert answer.waiting_us is not None
    for found in (answer.us, answer.waiting_us):
        assert abs(found.estimate) < 4 * found.se < 0.3


def test_a_limit_is_not_kept_by_who_stalls_now_and_then() -> None:
    """10 ms in one of a thousand transactions is half of what a transaction takes."""
    rng = np.random.default_rng(9)
    rows = recorded(rng, 1_500)
    assert not decided(live(rows, design()), {"some": 0.10}, 60.0)
    late = rng.random(len(rows)) < 1e-3 * rows["transactions"]
    rows["run_us"] += np.where(late & (rows["arm"] == 2), 10_000, 0).astype(np.int32)
    assert not decided(live(rows, design()), {"some": 0.10}, 60.0)
    assert np.isinf(live(rows, design()).arms[1].most_pct)
    long = recorded(np.random.default_rng(10), 4_000)
    assert decided(live(long, design()), {"some": 0.10}, 60.0)


def test_a_few_blocks_with_pauses_end_no_trial() -> None:
    """With a distant server there are few of them; the result would be "not decided"."""
    rows = recorded(np.random.default_rng(11), 400, waiting_us=500.0)
    few = rows[(rows["loop"] == BURST) | (rows["block"] < 2 * 20)]
    assert not decided(live(few, design()), {"some": 0.10}, 60.0)
    assert decided(live(rows, design()), {"some": 0.10}, 60.0)


def test_what_is_above_while_bursts_are_held_up_ends_no_trial() -> None:
    """It is withdrawn at the end, and may be decided when they are no longer."""
    rows = recorded(np.random.default_rng(13), 4_000, cost_us=2.0)
    now = live(rows, design(), limits=True)
    request = Request(chosen=(Chosen("some", {}),), dsn="dbname=x", outside=True, at_most=0.01)
    assert reason_to_stop(request, now, 60.0) == "decision"
    assert reason_to_stop(request, now, 60.0, held_up=True) is None
    below = replace(request, at_most=0.5)
    assert reason_to_stop(below, now, 60.0, held_up=True) == "decision"


def test_a_trial_stops_on_width_if_both_loops_are_narrow() -> None:
    now = live(recorded(np.random.default_rng(12), 400), design())
    narrow = max(arm.half_width_pct for arm in now.arms)
    wide = max(arm.waiting.half_width_pct for arm in now.arms if arm.waiting is not None)
    assert narrow < wide
    for width_pct, stops in (((narrow + wide) / 2, None), (1.01 * wide, "precision")):
        request = Request(chosen=(), dsn="dbname=x", outside=True, precision=width_pct / 100)
        assert reason_to_stop(request, now, 60.0) == stops


def test_nothing_is_free_of_cost_that_is_not_so_with_pauses_too() -> None:
    free = weighed(many_runs()).arms[2].answer
    dear = weighed(recorded(np.random.default_rng(6), 15_000, waiting_us=3.0)).arms[2].answer
    assert free is not None
    assert dear is not None
    assert free.verdict == "equivalent"
    assert dear.verdict == "inconclusive"
    assert dear.because(ReasonKind.WAITING_OPEN)
    assert dear.waiting_us is not None
    assert dear.waiting_us.lo <= 3 <= dear.waiting_us.hi


def test_where_many_runs_are_held_up_nothing_is_free_of_cost() -> None:
    rng = np.random.default_rng(7)
    rows = many_runs().copy()
    quiet = weighed(rows, margin=0.5)
    struck = rng.random(len(rows)) < 0.25  # whatever their arms
    rows["run_us"][struck] += 300 * rows["transactions"][struck].astype(np.int32)
    busy = weighed(rows, margin=500.0)
    assert quiet.disturbed_pct is not None
    assert quiet.disturbed_pct < 1
    assert busy.disturbed_pct is not None
    assert 20 < busy.disturbed_pct < 30
    answer = busy.arms[2].answer
    assert answer is not None
    assert answer.verdict == "inconclusive"
    assert answer.because(ReasonKind.DISTURBED)


@pytest.mark.parametrize("held_up", [0, 2])
def test_each_server_may_be_the_one_that_is_held_up(held_up: int) -> None:
    rows = many_runs().copy()
    struck = (rows["arm"] == held_up) & (np.random.default_rng(7).random(len(rows)) < 0.4)
    rows["run_us"][struck] += 300 * rows["transactions"][struck].astype(np.int32)
    assert disturbed_pct(rows, replace(design(), grouping="sessions")) > 15
    assert (disturbed_pct(rows, design()) > 15) is (held_up == 0)


def test_runs_of_unlike_length_are_disturbed_by_their_own_measure() -> None:
    rows = recorded(np.random.default_rng(1), 500, base_us=1_000.0)
    assert disturbed_pct(rows, design()) < 1


def test_without_runs_nothing_is_said() -> None:
    found = weighed(np.empty(0, RUN))
    answer = found.arms[2].answer
    assert answer is not None
    assert answer.verdict == "inconclusive"
    assert not live(np.empty(0, RUN), design()).blocks


def test_of_one_loop_alone_nothing_is_free_of_cost() -> None:
    """As after Ctrl-C in the first block."""
    rows = recorded(np.random.default_rng(2), 2_000)
    answer = weighed(rows[rows["loop"] == BURST]).arms[2].answer
    assert answer is not None
    assert answer.verdict == "inconclusive"
