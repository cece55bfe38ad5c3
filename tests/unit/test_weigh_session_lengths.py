"""What is said beforehand of sessions that are too short for whole blocks."""

from __future__ import annotations

from dataclasses import replace

from pgtare.estimate.trial.design import Arm, Design, block_layout, slices_of
from pgtare.weighing.weigh.session_lengths import SessionLengths, too_short


def design(instruments: int, unit: str = "transaction") -> Design:
    arms = [Arm("base", "base"), Arm("control", "control")]
    arms += [Arm(f"i{k}", "instrument") for k in range(instruments)]
    found = Design(tuple(arms), block_layout(len(arms)), 1)
    slices = slices_of("slice", len(arms), 15_000, 45_000)
    return replace(found, slices=slices) if unit == "slice" else found


def test_thirty_arms_of_twenty_transactions() -> None:
    said = too_short(design(28), SessionLengths(20, 0.1))
    assert "hardly any block will be complete" in said
    assert "at most 16 instruments" in said
    assert "--unit slice" not in said  # a session is over before a block of slices is
    assert "--unit slice" in too_short(design(28), SessionLengths(20, 600.0))


def test_sessions_that_are_long_enough_are_not_mentioned() -> None:
    assert too_short(design(28), SessionLengths(1_000, 600.0)) == ""
    assert too_short(design(1), SessionLengths(20, 1.0)) == ""
    assert too_short(design(28), None) == ""


def test_blocks_that_are_cut_short_are_mentioned() -> None:
    said = too_short(design(5), SessionLengths(12, 1.0))
    assert "most blocks are cut short" in said
    assert "at most" not in said


def test_slices_need_sessions_that_last() -> None:
    said = too_short(design(28, "slice"), SessionLengths(20, 0.1))
    assert "left out" in said
    assert too_short(design(28, "slice"), SessionLengths(20, 60.0)) == ""
