"""Statements from begins and ends: against a plain stack, whatever was lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pgtare.postgres.statement_spans import FOREVER, Ending, spans
from pgtare.postgres.wait_ring import RingRecordKind

#: Kind and depth of each record.
Marks = list[tuple[RingRecordKind, int]]
marks_of = st.lists(
    st.tuples(st.sampled_from(list(RingRecordKind)), st.integers(0, 3)), max_size=40
)


def plain(marks: Marks) -> list[tuple[int, int, int, int]]:
    """Begin, end, how it ended and the begin of the parent, by a stack."""
    found: list[tuple[int, int, int, int]] = []
    stack: list[tuple[int, int, int]] = []  # depth, begin, begin of the parent

    def close(at: int, ending: Ending) -> None:
        _, begin, parent = stack.pop()
        found.append((begin, at, ending, parent))

    for at, (kind, depth) in enumerate(marks):
        if kind == RingRecordKind.ABORT and depth == 0:
            while stack:
                close(at, Ending.ABORT)
        elif kind in (RingRecordKind.STATEMENT_BEGIN, RingRecordKind.STATEMENT_END):
            while stack and stack[-1][0] >= depth:
                own = kind == RingRecordKind.STATEMENT_END and stack[-1][0] == depth
                close(at, Ending.END if own else Ending.LOST)
            if kind == RingRecordKind.STATEMENT_BEGIN:
                stack.append((depth, at, stack[-1][1] if stack else -1))
    while stack:
        close(len(marks), Ending.OPEN)
    return sorted(found)


@given(marks_of)
def test_as_a_plain_stack(marks: Marks) -> None:
    kind, depth = np.array([mark[0] for mark in marks]), np.array([mark[1] for mark in marks])
    number = np.arange(len(marks))
    found = spans(kind, depth, 10 * number, 100 + number)
    parent = np.where(found.parent >= 0, found.begin[found.parent], -1) if len(found) else []
    rows = zip(found.begin, found.end, found.ending, parent, strict=True)
    assert [tuple(int(value) for value in row) for row in rows] == plain(marks)
    assert found.begin_ns.tolist() == (10 * found.begin).tolist()
    assert found.query_id.tolist() == (100 + found.begin).tolist()
    ends = [FOREVER if end == len(marks) else 10 * end for end in found.end.tolist()]
    assert found.end_ns.tolist() == ends
    outer = spans(kind, depth, 10 * number, 100 + number, outermost=True)
    assert outer.begin.tolist() == found.begin[found.depth == 0].tolist()
    assert outer.end.tolist() == found.end[found.depth == 0].tolist()


def test_an_abort_within_a_procedure_ends_nothing() -> None:
    kind = np.array(
        [RingRecordKind.STATEMENT_BEGIN, RingRecordKind.ABORT, RingRecordKind.STATEMENT_END]
    )
    found = spans(kind, np.array([0, 1, 0]), np.array([1, 2, 3]), np.array([7, 0, 0]))
    assert (found.end_ns.tolist(), found.ending.tolist()) == ([3], [Ending.END])
