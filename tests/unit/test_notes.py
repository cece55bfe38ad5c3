"""Notes about many sessions stay few."""

import pytest

from pgtare.kit.notes import NAMED, alike, amounts, some, who


@pytest.mark.parametrize("many", [0, 1, NAMED, NAMED + 1, NAMED + 2, 500])
def test_nobody_is_named_twice_or_forgotten(many: int) -> None:
    named, others = some(range(many))
    assert [*named, *others] == list(range(many))
    assert len(named) <= NAMED + 1
    assert len(others) != 1


def test_processes_are_named() -> None:
    assert who("session", [7]) == "session 7"
    assert who("session", [7, 8]) == "sessions 7, 8"
    assert who("session", range(1, 501)) == "sessions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 490 more"


def test_the_same_note_is_reported_once() -> None:
    notes = [(1, "a"), (2, "b"), (3, "a"), (1, "a")]
    assert alike("process", notes) == ["processes 1, 3: a", "process 2: b"]


def test_the_largest_amounts_are_named() -> None:
    found = {pid: 1000 * pid for pid in range(1, 101)}
    lines = amounts(found.items(), "waits were lost")
    assert lines[0] == "process 100: 100,000 waits were lost"
    assert lines[-1] == f"90 more processes: {1000 * sum(range(1, 91)):,} waits were lost"
    assert len(lines) == NAMED + 1
    assert amounts([], "waits were lost") == []
