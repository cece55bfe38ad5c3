"""What is said beforehand of sessions that are too short for whole blocks."""

from __future__ import annotations

from dataclasses import replace

from pgtare.estimate.trial.design import Arm, Design, block_layout, slices_of
from pgtare.weighing.weigh.session_lengths import SessionLengths, too_short


def design(instruments: int, unit: str = "run") -> Design:
    arms = [Arm("base", "base"), Arm("control", "control")]
    arms += [Arm(f"i{k}", "instrument") for k in range(instruments)]
    found = Design(tuple(arms), block_layout(len(arms)), 1)
    slices = slices_of("slice", len(arms), 15_000, 45_000)
    return replace(found, slices=slices) if unit == "slice" else found


def test_sessions_that_are_short_of_two_blocks_are_mentioned() -> None:
    said = too_short(design(28), SessionLengths(1_000, 0.1))
    assert "run 1000 transactions on the mean" in said
    assert "a trial of 30 arms meets each of them in 744" in said
    assert "Weigh at most 17 instruments at a time, or keep sessions connected" in said
    assert "--unit slice" not in said  # a session is over before a block of slices is
    assert "--unit slice" in too_short(design(28), SessionLengths(1_000, 600.0))


def test_the_number_of_instruments_that_is_advised_is_long_enough() -> None:
    for instruments in range(1, 28):
        fits = too_short(design(instruments), SessionLengths(1_000, 0.1)) == ""
        assert fits == (instruments <= 17)


def test_sessions_that_are_long_enough_are_not_mentioned() -> None:
    assert too_short(design(28), SessionLengths(2 * 31 * 24, 600.0)) == ""
    assert too_short(design(28), SessionLengths(2 * 31 * 24 - 1, 600.0)) != ""
    assert too_short(design(1), SessionLengths(144, 1.0)) == ""
    assert too_short(design(28), None) == ""


def test_fewer_instruments_are_not_advised_where_none_would_do() -> None:
    said = too_short(design(5), SessionLengths(12, 0.1))
    assert said.endswith("Keep sessions connected (a pooler).")


def test_slices_need_sessions_that_last() -> None:
    said = too_short(design(28, "slice"), SessionLengths(20, 0.1))
    assert "left out" in said
    assert too_short(design(28, "slice"), SessionLengths(20, 60.0)) == ""
