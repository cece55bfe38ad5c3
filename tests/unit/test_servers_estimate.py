"""The estimator of two servers, of which each drifts by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pgtare.estimate.trial.analysis import analyse, live
from pgtare.estimate.trial.answer import Answer
from pgtare.estimate.trial.bursts import _clusters
from pgtare.estimate.trial.design import BATCHES, LEAST_BATCHES, Arm, Design, Runs, block_layout
from pgtare.estimate.trial.results import Live
from pgtare.weighing.weigh.limit import reason_to_stop
from pgtare.weighing.weigh.request import Request, ServerAddress
from tests.unit.estimate_textbook import clopper_pearson
from tests.unit.test_outside_estimate import recorded

SECONDS = 120
DESIGN = Design(
    (Arm("old", "base"), Arm("control", "control"), Arm("new", "instrument")),
    block_layout(3),
    1,
    None,
    Runs(4, 12),
    driven=True,
    grouping="sessions",
    batch_s=SECONDS / BATCHES,
)


def drifting(rng: np.random.Generator, cost_us: float = 0.0) -> npt.NDArray[Any]:
    """Two minutes of sessions of 1 s each.

    Each session differs from the others by some 0.3 µs; and the second server from itself, by as
    much, for about 3 s.
    """
    rows = recorded(rng, 5 * SECONDS // 2, cost_us=cost_us, noise_us=1.0)
    rows["start_us"] *= 10
    rows["epoch"] = rows["start_us"] // 1_000_000
    shocks, drift = rng.normal(0, 0.3, SECONDS + 1), np.zeros(SECONDS + 1)
    for second in range(1, SECONDS + 1):
        drift[second] = 0.72 * drift[second - 1] + 0.69 * shocks[second]
    level = rng.normal(0, 0.3, (SECONDS + 1, 3))
    level[:, 2] += drift
    more = rows["transactions"] * level[rows["epoch"], rows["arm"]]
    rows["run_us"] = np.rint(rows["run_us"] + more + rng.random(len(rows)) - 0.5)
    return rows


def answered(rows: npt.NDArray[Any], design: Design = DESIGN) -> Answer:
    found = analyse(rows, design, margin=0.005, proven={"new": True}).arms[2].answer
    assert found is not None
    return found


@pytest.mark.slow
def test_a_server_that_drifts_is_not_called_slower() -> None:
    """40 trials; a right program fails once in 10,000 times. By sessions many would be wrong."""
    wrong = {DESIGN.batch_s: 0, 1e-6: 0}
    for seed in range(40):
        rows = drifting(np.random.default_rng(seed), cost_us=1.0)
        for batch_s in wrong:
            answer = answered(rows, replace(DESIGN, batch_s=batch_s))
            wrong[batch_s] += not answer.us.lo <= 1.0 <= answer.us.hi
    by_batch, by_session = wrong.values()
    assert clopper_pearson(by_batch, 40, 0.9998)[0] <= 0.05, wrong
    assert by_session > 6, wrong


def so_far(rows: npt.NDArray[Any], seconds: float) -> Live:
    return live(rows[rows["start_us"] < 1e6 * seconds], DESIGN, limits=True)


def stops(rows: npt.NDArray[Any], limit: float) -> float | None:
    """After how many seconds a trial with a limit stops, if one looks every 3 s."""
    servers = (ServerAddress("old", ""), ServerAddress("new", ""))
    request = Request("", (), servers=servers, at_most=limit, duration_s=SECONDS)
    for seconds in range(3, SECONDS + 1, 3):
        if reason_to_stop(request, so_far(rows, seconds), seconds):
            return seconds
    return None


@pytest.mark.slow
def test_limits_are_decided_early_and_hold() -> None:
    """A limit that is just met is not decided more often than an interval is wrong."""
    decided = sum(
        stops(drifting(np.random.default_rng(s), 1.0), 0.05) is not None for s in range(60)
    )
    assert clopper_pearson(decided, 60, 0.9998)[0] <= 0.10, decided  # above and below


def test_a_limit_is_decided_with_so_many_batches_and_no_fewer() -> None:
    """20 % against a limit of 5 %."""
    least_s = LEAST_BATCHES * DESIGN.batch_s
    at = stops(drifting(np.random.default_rng(1), 4.0), 0.05)
    assert at is not None
    assert least_s - 6 < at <= least_s


def batches(rows: npt.NDArray[Any]) -> tuple[int, int]:
    """How many there are, and the runs of the smallest."""
    counts = np.unique(_clusters(rows, DESIGN), return_counts=True)[1]
    return len(counts), int(counts.min())


def test_a_clock_that_is_set_splits_no_batch() -> None:
    rows = drifting(np.random.default_rng(1))
    whole = batches(rows)
    assert whole[0] == BATCHES
    later = rows["start_us"] > 60_000_000
    for by_us in (300_000_000, -50_000_000):
        moved = rows.copy()
        moved["start_us"][later & (rows["arm"] == 2)] += by_us
        assert batches(moved) == whole
    moved = rows.copy()
    moved["start_us"][later & (rows["arm"] < 2)] -= 30_000_000  # of the first server itself
    assert batches(moved)[0] <= BATCHES


def test_a_sliver_is_no_batch() -> None:
    """The first begins with the first run, whatever came before, and the last is half of one."""
    rows = drifting(np.random.default_rng(1))
    rows["start_us"] += 2_900_000
    assert batches(rows)[0] == BATCHES
    assert batches(rows[rows["start_us"] < 2.9e6 + 7.4e7])[0] == 12
    assert batches(rows[rows["start_us"] < 2.9e6 + 7.6e7])[0] == 13


def test_too_few_batches_give_no_answer() -> None:
    rows = drifting(np.random.default_rng(1), 4.0)
    few = rows[rows["start_us"] < 1e6 * (LEAST_BATCHES - 1) * DESIGN.batch_s]
    assert answered(rows).verdict == "cost"
    assert answered(few).verdict == "inconclusive"
