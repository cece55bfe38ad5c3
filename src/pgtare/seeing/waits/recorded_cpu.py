"""CPU time of the statements in a recording, from readings that come now and then.

A session reads its CPU time at the end of statements, once a ms at most. What it
spent from a reading to the next is shared out to the statements in between by their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgtare.seeing.waits.recording import Columns
from pgtare.server.statement_spans import spans
from pgtare.server.wait_ring import RingRecordKind

Times = npt.NDArray[np.int64]  # ns since the recording began

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Shares:
    """Times that a session spent on CPU at a rate (0 to 1), and for which query identifier."""

    begin: Times
    end: Times
    query_id: npt.NDArray[np.int64]
    rate: npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Runs:
    """Outermost statements of a session; without an end, one lasts for ever."""

    begin: Times
    end: Times
    query_id: npt.NDArray[np.int64]

    def where(self, chosen: npt.NDArray[np.bool_]) -> _Runs:
        return _Runs(self.begin[chosen], self.end[chosen], self.query_id[chosen])

    def then(self, others: _Runs) -> _Runs:
        return _Runs(
            np.concatenate([self.begin, others.begin]),
            np.concatenate([self.end, others.end]),
            np.concatenate([self.query_id, others.query_id]),
        )


@dataclass(frozen=True)
class _Session:
    """What is known of a session: its last reading (CPU ns so far, and when), and runs since."""

    ns: int
    at: int
    runs: _Runs


class CpuTime:
    """Takes the parts of a recording one after the other."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}

    def add(self, part: Columns, start: Times) -> Iterator[Shares]:
        """What the readings of a part tell; start: of each record, ns since the recording began."""
        outer = part["depth"] == 0
        for number in np.unique(part["session"]):
            own = np.flatnonzero((part["session"] == number) & outer)
            kind, when = part["kind"][own], start[own]
            reads = kind == RingRecordKind.CPU
            at, ns = when[reads], part["value"][own][reads].astype(np.int64)
            found = spans(kind, part["depth"][own], when, part["query_id"][own])
            runs = _Runs(found.begin_ns, found.end_ns, found.query_id)
            before = self._sessions.get(int(number))
            if before is None:
                if not len(at):
                    continue
                # what came before the first reading is not known
                before = _Session(int(ns[0]), int(at[0]), _Runs(_NONE, _NONE, _NONE))
                runs = runs.where(runs.begin >= at[0])
                at, ns = at[1:], ns[1:]
            runs = before.runs.then(runs)
            after = _Session(before.ns, before.at, runs)
            if len(at):
                done = runs.begin <= at[-1]
                yield _shares(before, at, ns, runs.where(done))
                after = _Session(int(ns[-1]), int(at[-1]), runs.where(~done))
            self._sessions[int(number)] = after


def _shares(before: _Session, at: Times, ns: Times, runs: _Runs) -> Shares:
    """Share out what each reading found; all runs begin before the last of them."""
    spent = np.maximum(np.diff(ns, prepend=before.ns), 0)
    reading = np.searchsorted(at, runs.begin)
    end = np.minimum(runs.end, at[reading])
    alone = np.bincount(reading, end - runs.begin, len(at)) == 0  # between statements
    since = np.concatenate([[before.at], at[:-1]])
    begin = np.concatenate([runs.begin, since[alone]])
    end = np.concatenate([end, at[alone]])
    query_id = np.concatenate([runs.query_id, np.zeros(int(alone.sum()), np.int64)])
    reading = np.concatenate([reading, np.flatnonzero(alone)])
    length = np.bincount(reading, end - begin, len(at))
    good = (end > begin) & (end > 0) & (spent[reading] > 0)
    return Shares(
        begin[good], end[good], query_id[good], spent[reading[good]] / length[reading[good]]
    )
