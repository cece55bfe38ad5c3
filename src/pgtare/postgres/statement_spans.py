"""Which statement ran when, from the begins and ends in a ring of waits (see `wait_ring`).

A statement runs from its begin to its end, or to an abort outside of any statement; planning comes
before its begin. If the record of its end was lost, the next begin or end at its depth or further
out ends it. Depth 0 is a statement of the client, depth 1 one that it runs, and so on.

Arrays are (N,): kind of `wait_ring.RingRecordKind`, depth, when_ns in any clock, and the query
identifier, 0 for none. Records are those of one session in the order of its ring.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.postgres.wait_ring import RingRecordKind

Numbers = npt.NDArray[np.int64]

#: When a statement ends that has not ended.
FOREVER = int(np.iinfo(np.int64).max)


class Ending(IntEnum):
    """How a statement ended."""

    END = 0
    ABORT = 1
    LOST = 2  # with a later begin or end
    OPEN = 3  # not among these records


@dataclass(frozen=True)
class Spans:
    """Statements in the order of their begins (S,).

    end_ns: FOREVER if it is open. begin, end: indices of the records; the end of an open one is
    their number. ending: of `Ending`. parent: index of the statement that ran it, -1 for none.
    """

    begin_ns: Numbers
    end_ns: Numbers
    query_id: Numbers
    depth: Numbers
    begin: Numbers
    end: Numbers
    ending: Numbers
    parent: Numbers

    def __len__(self) -> int:
        return len(self.begin)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Spans:
        """Some of them; their parents are still numbered as in all of them."""
        return Spans(*(getattr(self, field.name)[chosen] for field in fields(self)))


def spans(
    kind: npt.NDArray[Any],
    depth: npt.NDArray[Any],
    when_ns: npt.NDArray[Any],
    query_id: npt.NDArray[Any],
    *,
    outermost: bool = False,
) -> Spans:
    """The statements of one session. query_id: of each record; that of a begin counts.

    outermost: of the client's statements only.
    """
    begins, ends = _marks(kind, depth)
    levels = np.unique(depth[begins])
    if outermost:
        levels = levels[levels == 0]
    found = [_of_level(begins, ends, depth, int(level)) for level in levels]
    begin, end = (
        np.concatenate([np.zeros(0, np.int64), *(pair[side] for pair in found)]) for side in (0, 1)
    )
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    after = np.append(np.asarray(when_ns, np.int64), FOREVER)
    depths = np.asarray(depth[begin], np.int64)
    return Spans(
        begin_ns=after[begin],
        end_ns=after[end],
        query_id=np.asarray(query_id[begin], np.int64),
        depth=depths,
        begin=begin,
        end=end,
        ending=_endings(kind, depth, begin, end),
        parent=_parents(depths, begin, end),
    )


def _marks(
    kind: npt.NDArray[Any], depth: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which records begin statements, and which end some; after a procedure's abort it goes on."""
    begins = kind == RingRecordKind.STATEMENT_BEGIN
    ends = (kind == RingRecordKind.STATEMENT_END) | ((kind == RingRecordKind.ABORT) & (depth == 0))
    return np.asarray(begins, np.bool_), np.asarray(ends, np.bool_)


def _of_level(
    begins: npt.NDArray[np.bool_],
    ends: npt.NDArray[np.bool_],
    depth: npt.NDArray[Any],
    level: int,
) -> tuple[Numbers, Numbers]:
    """Indices at which the statements of a depth begin, and at which they end."""
    here = np.flatnonzero((begins | ends) & (depth <= level))
    starts = np.flatnonzero(begins & (depth == level))
    following = np.append(here, len(depth))
    return starts, following[np.searchsorted(here, starts, "right")]


def _endings(
    kind: npt.NDArray[Any], depth: npt.NDArray[Any], begin: Numbers, end: Numbers
) -> Numbers:
    found = np.full(len(begin), Ending.OPEN, np.int64)
    closed = np.flatnonzero(end < len(kind))
    by, own = end[closed], depth[end[closed]] == depth[begin[closed]]
    found[closed] = np.select(
        [(kind[by] == RingRecordKind.STATEMENT_END) & own, kind[by] == RingRecordKind.ABORT],
        [Ending.END, Ending.ABORT],
        Ending.LOST,
    )
    return found


def _parents(depth: Numbers, begin: Numbers, end: Numbers) -> Numbers:
    """The innermost statement further out that is under way at each begin."""
    found = np.full(len(begin), -1, np.int64)
    for level in np.unique(depth)[:-1]:
        outer = np.flatnonzero(depth == level)
        last = np.searchsorted(begin[outer], begin, "left") - 1
        candidate = outer[np.maximum(last, 0)]
        under_way = (last >= 0) & (depth > level) & (end[candidate] > begin)
        found = np.where(under_way, candidate, found)
    return found
