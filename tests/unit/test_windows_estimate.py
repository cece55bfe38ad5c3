"""The estimator of a weighing by windows, on a server whose level drifts from window to window."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.bursts import BURST, PACED, RUN
from pgtare.estimate.trial.design import LEAST_WINDOWS, Arm, Design, Grouping, Runs, block_layout
from pgtare.estimate.trial.results import ArmEstimate
from tests.unit.estimate_textbook import clopper_pearson

ARMS = (Arm("base", "base"), Arm("control", "control"), Arm("some", "instrument"))
BLOCKS, RUNS = 9, 60


def recorded(
    rng: np.random.Generator,
    *,
    cost_us: float = 0.0,
    pareto: bool = False,
    blocks: int = BLOCKS,
    runs: int = RUNS,
) -> npt.NDArray[Any]:
    """Windows of some runs of each loop; the level is an autoregression with a shock now and then.

    pareto: one run in a hundred is held up, by lengths without a variance.
    """
    parts, level, at = [], 0.0, 0
    for block in range(blocks):
        for arm in rng.permutation(3):
            level = 0.8 * level + rng.normal(0, 1.0) + 10.0 * (rng.random() < 0.05)
            for loop, length in ((BURST, 8), (PACED, 1)):
                rows = np.zeros(runs, RUN)
                each = 40.0 + level + cost_us * (arm == 2)
                took = length * each + rng.gamma(2.0, 2.0, (runs, length)).sum(axis=1)
                if pareto:
                    took += (rng.random(runs) < 0.01) * 100 * rng.pareto(1.5, runs)
                rows["run_us"] = np.rint(took + 15)
                rows["stamp_us"] = 15
                rows["start_us"] = at + 1000 * np.arange(runs)
                rows["block"] = 1000 * block + np.arange(runs)
                rows["epoch"], rows["arm"] = block, arm
                rows["transactions"], rows["loop"] = length, loop
                at += 1000 * runs
                parts.append(rows)
    return np.concatenate(parts)


def some(rows: npt.NDArray[Any], grouping: Grouping = "windows") -> ArmEstimate:
    design = Design(ARMS, block_layout(3), 1, None, Runs(4, 12), driven=True, grouping=grouping)
    return analyse(rows, design, margin=0.05, proven={"some": True}).arms[2]


@pytest.mark.parametrize("pareto", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_intervals_of_windows_hold(pareto: bool) -> None:
    """100 trials of nine blocks: the interval has the truth, and nothing is called a cost."""
    covered = wrong = 0
    for seed in range(100):
        answer = some(recorded(np.random.default_rng(seed), cost_us=1.0, pareto=pareto)).answer
        assert answer is not None
        covered += answer.us.lo <= 1.0 <= answer.us.hi
        found = some(recorded(np.random.default_rng(10_000 + seed), pareto=pareto)).answer
        assert found is not None
        wrong += found.verdict in ("cost", "gain")
    assert clopper_pearson(covered, 100, 0.9998)[1] >= 0.95, covered
    assert clopper_pearson(wrong, 100, 0.9998)[0] <= 0.05, wrong


def test_bursts_of_a_window_are_no_observations_of_their_own() -> None:
    """With the burst as cluster the interval would hold in a few trials of a hundred."""
    covered = 0
    for seed in range(40):
        answer = some(recorded(np.random.default_rng(seed), cost_us=1.0), "block").answer
        assert answer is not None
        covered += answer.us.lo <= 1.0 <= answer.us.hi
    assert covered < 30


def test_a_large_cost_is_shown_in_few_windows_and_none_with_fewer() -> None:
    rng = np.random.default_rng(1)
    found = some(recorded(rng, cost_us=20.0)).answer
    assert found is not None
    assert found.verdict == "cost"
    assert abs(found.us.estimate - 20) < 3
    few = some(recorded(rng, cost_us=20.0, blocks=LEAST_WINDOWS - 1)).answer
    assert few is not None
    assert few.verdict == "inconclusive"
    assert few.most_pct == math.inf  # nor a bound


def test_what_is_held_up_now_and_then_is_in_the_upper_end() -> None:
    """Three bursts of a window take 0.2 s: the most that it costs has it, and it is no gain."""
    rng = np.random.default_rng(2)
    rows = recorded(rng, cost_us=-3.0, runs=4_000)
    clean = some(rows).answer
    assert clean is not None
    assert clean.most_pct < 5
    for block in range(BLOCKS):
        mine = np.flatnonzero((rows["epoch"] == block) & (rows["arm"] == 2))
        for loop in (BURST, PACED):
            rows["run_us"][mine[rows["loop"][mine] == loop][:3]] += 200_000
    found = some(rows)
    assert found.answer is not None
    assert found.effect is not None
    assert found.effect.total_us.lo > 4.0
    assert found.answer.most_pct > 100 * found.effect.total_us.hi / 45
    assert found.answer.verdict != "gain"


def test_what_only_the_session_that_waits_has_met_is_in_the_upper_end() -> None:
    """A watcher that holds up now and then: the bursts are a tenth of the time."""
    rows = recorded(np.random.default_rng(3), runs=4_000)
    for block in range(BLOCKS):
        mine = np.flatnonzero((rows["epoch"] == block) & (rows["arm"] == 2))
        rows["run_us"][mine[rows["loop"][mine] == PACED][:3]] += 200_000
    found = some(rows).answer
    assert found is not None
    assert found.pct.hi < 10
    assert found.most_pct > 300
    assert found.verdict != "equivalent"
