"""Samples by time and by stack: sums, joins and trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.observing.flame import frames
from pgtare.observing.flame import profile as profiles
from pgtare.observing.flame.recording import RUNNING, Collected, StackSamples
from pgtare.observing.flame.show import graph

A, B = ("backend", "f", "g"), ("backend", "f", "f", "h")


def _samples() -> StackSamples:
    taken = Collected()
    taken.add(1000, 1, A, RUNNING, 5000)
    taken.add(2000, 1, B, RUNNING, 7000)
    taken.add(3000, 2, A, RUNNING, 9000)
    return taken.samples()


def test_a_function_that_recurs_counts_once() -> None:
    found = {f.name: f for f in profiles.functions(profiles.profile(_samples()))}
    assert found["f"].total_ns == found["backend"].total_ns == 21_000
    assert found["h"].own_ns == 7000
    assert found["f"].own_ns == 0


def test_folded_stacks_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.folded"
    path.write_text(profiles.folded(profiles.profile(_samples())))
    assert path.read_text() == "backend;f;f;h 7\nbackend;f;g 14\n"
    assert profiles.parse_folded(path) == {A: 14_000, B: 7000}
    for line in ("no count", "no count ²"):
        path.write_text(f"{line}\n")
        with pytest.raises(UsageError, match="line 1"):
            profiles.parse_folded(path)


def test_a_stack_of_another_tool_may_be_deep() -> None:
    drawn = graph("g", "deep", {tuple(str(i) for i in range(3000)): 1})
    assert len(drawn.data["nodes"]) == 3001
    assert drawn.data["nodes"][-1][0] == 3000


def test_changes_are_of_shares_not_of_totals() -> None:
    before, after = {A: 100, B: 100}, {A: 3000, B: 1000}
    change = {c.name: c for c in profiles.changes(before, after)}
    assert change["f"].points == 0
    assert change["g"].before_pct == 50
    assert change["g"].points == pytest.approx(25)


def test_a_sample_takes_the_span_it_begins_in() -> None:
    spans = np.array([[1, 900, 1500, 4], [1, 1500, 2000, 5], [2, 0, 9999, 6]])
    which = _samples().within(spans)
    assert which.tolist() == [4, -1, 6]
    labelled = _samples().framed(["wait: x"] * 7, which)
    assert labelled.stacks[labelled.stack[0]] == ("backend", "wait: x", "f", "g")
    assert labelled.stacks[labelled.stack[1]] == B


def test_a_graph_holds_both_sides_and_counts_what_it_leaves_out() -> None:
    after = {("a", "b"): 99_999, ("a", "tiny"): 1}
    drawn = graph("x", "X", after, {("a", "gone"): 50})
    assert drawn.left_out == 1
    names = drawn.data["names"]
    assert {names[row[1]]: row[2:] for row in drawn.data["nodes"]}["gone"] == [0.0, 100.0]


def test_of_frames_alike_the_caller_comes_first() -> None:
    found = profiles.functions({("backend", "z", "a"): 5, ("backend", "z", "a", "m"): 3})
    assert [f.name for f in found] == ["backend", "z", "a", "m"]


def test_labels_that_one_recording_lacks_are_no_change() -> None:
    plain = {("client backend", "main", "read"): 60, ("client backend", "main", "work"): 40}
    labelled = {
        ("client backend", frames.STATEMENT + "SELECT ?", "main", *stack[2:]): ns
        for stack, ns in plain.items()
    }
    for pair in ((plain, labelled), (labelled, plain)):
        found = profiles.changes(*profiles.alike(*pair))
        assert {c.name for c in found} == {"client backend", "main", "read", "work"}
        assert not any(c.points for c in found)
    assert profiles.alike(labelled, labelled) == (labelled, labelled)
