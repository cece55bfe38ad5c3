"""The guard in action, on trials whose harm is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pgtare.estimate.fleet.guard import HarmLimits
from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.observations import OBSERVATION, Observations, UnitFlag
from pgtare.weighing.fleet import fleet_guard, stages
from pgtare.weighing.fleet.fleet_guard import BaseSample, FleetGuard

DESIGN = Design(
    (Arm("base", "base"), Arm("control", "control"), Arm("x", "instrument")), (0, 1, 2, 0), 1
)
BLOCK, RUN = len(DESIGN.block), 16
STAGE = stages.Stage("all", ("a", "b"), 1.0, 60.0, last=True)


def trial(
    blocks: int, rng: np.random.Generator, slower: float = 1.0, aborts: float = 0.0
) -> Observations:
    """Transactions of one session, 100 µs on average; those of arm x slower, and failing."""
    rows = np.zeros(blocks * RUN * BLOCK, OBSERVATION)
    rows["arm"] = np.repeat([rng.permutation(DESIGN.block) for _ in range(blocks)], RUN)
    rows["block"] = np.repeat(np.arange(blocks), RUN * BLOCK)
    rows["run"] = np.tile(np.repeat(np.arange(BLOCK), RUN), blocks)
    rows["position"] = np.tile(np.arange(RUN), blocks * BLOCK)
    of_x = rows["arm"] == 2
    times = rng.gamma(4.0, 25_000.0, len(rows)) * np.where(of_x, slower, 1.0)
    rows["service_ns"] = times.astype(np.int64)
    failed = of_x & (rng.random(len(rows)) < aborts)
    rows["flags"] = np.where(failed, int(UnitFlag.ABORTED), 0)
    return rows


def guard_of(rng: np.random.Generator, loads: dict[str, str] | None = None) -> FleetGuard:
    sample = BaseSample.of(trial(50, rng))
    guard = FleetGuard({"a": sample, "b": sample}, loads or {}, HarmLimits())
    guard.begin(STAGE, arms=1, stages_left=3)
    return guard


def test_a_sample_of_the_base() -> None:
    rng = np.random.default_rng(5)
    sample = BaseSample.of(trial(125, rng))
    assert sample.transactions == 8000
    assert sample.cap_us == pytest.approx(251, rel=0.05)
    assert BaseSample.of(np.empty(0, OBSERVATION)).cap_us == 1e6


@pytest.mark.parametrize(
    ("slower", "aborts", "what"),
    [
        (2.0, 0.0, "x: more of its runs had a slow one"),
        (1.0, 0.2, "x: more of its runs had a failed one"),
    ],
)
def test_harm_is_seen_on_its_server(slower: float, aborts: float, what: str) -> None:
    rng = np.random.default_rng(5)
    guard = guard_of(rng)
    for _ in range(40):
        guard.see("a", DESIGN, trial(50, rng))
        guard.see("b", DESIGN, trial(50, rng, slower, aborts))
        if guard.crossing() is not None:
            break
    found = guard.crossing()
    assert found is not None
    assert (found.server, found.what) == ("b", what)
    assert found.e_value >= 60
    assert 0 < found.transactions < 40 * 2 * 50 * RUN
    assert "of 60" in guard.words()


def test_no_harm_is_seen_where_there_is_none() -> None:
    rng = np.random.default_rng(6)
    guard = guard_of(rng)
    for _ in range(40):
        for server in "ab":
            guard.see(server, DESIGN, trial(50, rng))
    assert guard.crossing() is None


def test_blocks_are_put_together_from_the_parts_in_which_they_come() -> None:
    rng = np.random.default_rng(7)
    rows = trial(200, rng, slower=2.0)
    whole, parts = guard_of(np.random.default_rng(1)), guard_of(np.random.default_rng(1))
    whole.see("a", DESIGN, rows)
    for part in np.array_split(rows, 77):
        parts.see("a", DESIGN, part)
    assert parts.words() == whole.words()
    assert parts.crossing() is not None


def test_what_is_in_no_block_does_not_count() -> None:
    """As is a session's first run, and what is not yet answered."""
    rng = np.random.default_rng(8)
    guard = guard_of(rng)
    for flag in (UnitFlag.FIRST_RUN, UnitFlag.UNDRAWN, UnitFlag.OPEN):
        rows = trial(500, rng, slower=5.0)
        rows["flags"] = int(flag)
        guard.see("a", DESIGN, rows)
    assert guard.crossing() is None
    assert guard.words() == "evidence of harm 1 of 60"


def test_a_stage_without_a_whole_block_showed_nothing() -> None:
    """As if each transaction took so long that no session came to the end of one."""
    rng = np.random.default_rng(9)
    guard = guard_of(rng)
    rows = trial(60, rng)
    for part in (rows[: 3 * RUN], rows[: 3 * RUN]):  # the second is of another trial
        guard.ended("a")
        guard.see("a", DESIGN, part)
    assert "no session finished a whole block of 96 transactions" in guard.blind(STAGE)
    guard.see("b", DESIGN, rows)
    # in the look there were 50 blocks in 3 s
    long, short = (dataclasses.replace(STAGE, seconds=seconds) for seconds in (60.0, 2.0))
    assert "its sessions ran 3,936 transactions, and 128,000 at" in guard.blind(long)
    said = guard.blind(short)
    assert "of a finished no whole block, and ran 96 transactions, and 2,133 at their" in said
    guard.see("a", DESIGN, rows)
    assert guard.blind(short) == ""


def test_blocks_of_an_earlier_trial_are_not_completed() -> None:
    rng = np.random.default_rng(9)
    guard = guard_of(rng)
    rows = trial(1, rng)
    guard.see("a", DESIGN, rows[: 2 * RUN])
    guard.ended("a")
    guard.see("a", DESIGN, rows[2 * RUN :])
    assert len(guard._pending["a"]) == 2 * RUN


def test_rows_of_sessions_that_have_gone_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions are numbered as they come, so one that stays has the lowest number."""
    monkeypatch.setattr(fleet_guard, "_MOST_PENDING", 3 * RUN)
    rng = np.random.default_rng(9)
    guard = guard_of(rng)
    rows = trial(1, rng)
    gone = rows[: 2 * RUN].copy()
    gone["backend"] = 9
    for part in (gone, rows[: 2 * RUN], rows[2 * RUN :]):
        guard.see("a", DESIGN, part)
    assert set(guard._pending["a"]["backend"].tolist()) == {9}
    assert guard.blind(dataclasses.replace(STAGE, servers=("a",), seconds=0.0)) == ""


def line(guard: FleetGuard) -> float:
    """The e-value at which a guard stops the trials of its stage."""
    return float(guard.words().rpartition(" ")[2])


@pytest.mark.parametrize("stages_left", [(3, 2, 1), (3, 3, 3, 3, 3, 2, 1), (3, 2, 2, 1), (2, 1)])
def test_shares_of_all_stages_are_alpha_at_most(stages_left: tuple[int, ...]) -> None:
    """Stages are repeated, and get fewer, if servers are lost after they were exposed."""
    rng = np.random.default_rng(10)
    guard = FleetGuard({name: BaseSample.of(trial(500, rng)) for name in "ab"}, {}, HarmLimits())
    spent = 0.0
    for left in stages_left:
        guard.begin(STAGE, arms=1, stages_left=left)
        guard.see("a", DESIGN, trial(5, rng))
        spent += 1 / line(guard)
    assert spent <= fleet_guard.ALPHA * 1.02  # lines are rounded
    if stages_left == (3, 2, 1):
        assert line(guard) == 60


def test_a_stage_that_saw_nothing_has_spent_nothing() -> None:
    guard = guard_of(np.random.default_rng(11))
    for _ in range(5):
        guard.begin(STAGE, arms=1, stages_left=3)
        assert line(guard) == 60


def test_what_one_block_says() -> None:
    """The beginnings of runs do not count, and of the rest runs are what is counted."""
    rows = trial(1, np.random.default_rng(1))
    rows["arm"] = np.repeat([0, 2, 1, 0], RUN)
    rows["service_ns"] = np.repeat([10_000, 90_000, 1, 30_000], RUN)
    rows["service_ns"][rows["position"] < 8] = 10**9
    rows["flags"][[3, 10, 11, 20]] = int(UnitFlag.ABORTED)
    found = fleet_guard.look(rows, 2, cap_us=50.0, limit=0.2)
    assert (found.arm_us.tolist(), found.base_us.tolist()) == ([60.0], [20.0])
    assert (found.arm_n, found.base_n, found.arm_slow, found.base_slow) == (1, 2, 1, 0)
    assert (found.arm_aborted, found.base_aborted) == (0, 1)


def test_an_instrument_that_is_only_cold_does_no_harm() -> None:
    rng = np.random.default_rng(12)
    guard = guard_of(rng)
    for _ in range(20):
        rows = trial(50, rng)
        rows["service_ns"][(rows["arm"] == 2) & (rows["position"] < 6)] *= 3
        guard.see("a", DESIGN, rows)
    assert guard.crossing() is None


def test_the_guard_is_described() -> None:
    said = guard_of(np.random.default_rng(5)).description()
    assert "over 25 % slower" in said
    assert "5 % at most" in said
