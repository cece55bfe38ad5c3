"""The rings of waits of traced processes: finds them, drains them, decodes their records.

A record is 32 bytes, and records come as arrays (N,) of dtype RECORD. Times are in ns:

- start_ns: when it happened; a wait when it began. It counts from the start of its ring; add
  `WaitRing.started_ns` for ns since 1970
- value: of a WAIT its length in ns; of STATEMENT_BEGIN the query identifier, of STATEMENT_END the
  rows; of CPU the processor time of the process so far, in ns
- event: of a WAIT its number (`event_names` tells names), and calls, how many it was
- depth: of a mark how many statements it is within, 0 outside of any

`statement_spans` makes statements of begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import psycopg

from pgtare.errors import MeasurementError

_RINGS = """
SELECT pid, started, ended, leader_pid, backend_type FROM {waits}.wait_event_timing_rings()
WHERE pid <> {own} AND (ended IS NULL OR ended >= %s)
"""
_DRAIN = (
    "SELECT next, lost, started, records FROM {waits}.wait_event_trace_drain(%s::int4, %s::int8)"
)
_NAMES = """
SELECT event, wait_event_type, wait_event
FROM unnest(%s::bigint[]) AS event, {waits}.wait_event_timing_event(event)
"""

#: As struct TraceRecord in server/wait_event_timing/waits.h.
RECORD = np.dtype(
    [
        ("seq", "<u4"),
        ("kind", "<u2"),
        ("depth", "<u2"),
        ("event", "<u4"),
        ("calls", "<u4"),
        ("start_ns", "<i8"),
        ("value", "<i8"),
    ]
)
assert RECORD.itemsize == 32

Records = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


class RingRecordKind(IntEnum):
    """What a record is."""

    WAIT = 1
    STATEMENT_BEGIN = 2
    STATEMENT_END = 3
    CPU = 4
    COMMIT = 5
    ABORT = 6


class Rows(Protocol):
    """Runs a query with {waits} and {own} in it and gives its rows, bytes as they are."""

    def __call__(self, query: str, *values: object) -> list[tuple[Any, ...]]: ...


class FoundRing(NamedTuple):
    """A ring on the server. ended: its process has; the ring stays for a while."""

    pid: int
    started: datetime
    ended: datetime | None
    leader_pid: int | None
    backend_type: str


def rings(rows: Rows, ended_since: datetime) -> list[FoundRing]:
    """All rings but our own process's; of processes that have ended, those that did since then."""
    return [FoundRing(*row) for row in rows(_RINGS, ended_since)]


def event_names(rows: Rows, events: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Class and name of events by their numbers, of those that the server knows."""
    return {event: (kind, name) for event, kind, name in rows(_NAMES, list(events))}


@dataclass
class WaitRing:
    """A ring that is read look after look.

    position: number of the next record to read. lost: records that were overwritten unread.
    before: those that a ring which is older than the recording had forgotten when it began.
    done: there is nothing more to read. gone: the server gave it up for a newer one, or another
    process has its number now. refused: no right to read it.
    """

    pid: int
    started: datetime
    position: int = 0
    lost: int = 0
    before: int = 0
    read: bool = False
    done: bool = False
    gone: bool = False
    refused: bool = False

    @property
    def started_ns(self) -> int:
        """When its clock began, in ns since 1970."""
        return epoch_ns(self.started)

    def count_forgotten(self, first_ns: int, wanted_ns: int) -> None:
        """Count what it had forgotten as lost if its first record is later than wanted."""
        if first_ns > wanted_ns:
            self.lost, self.before = self.lost + self.before, 0

    def drain(self, rows: Rows, recording_began: datetime) -> Records:
        """The records since the last look; none if it is done. Raises MeasurementError."""
        try:
            ((following, lost, started, data),) = rows(_DRAIN, self.pid, self.position)
        except psycopg.errors.UndefinedObject:
            self.done = self.gone = True
            return decode(b"")
        except psycopg.errors.InsufficientPrivilege:
            self.done = self.refused = True
            return decode(b"")
        if started != self.started:
            self.done = self.gone = True
            return decode(b"")
        records = decode(bytes(data))
        if self.read or self.started >= recording_began:
            self.lost += lost
        else:
            self.before += lost
        self.position, self.read = following, True
        return records


def epoch_ns(moment: datetime) -> int:
    """A moment in ns since 1970, to the µs that a timestamp of the server has."""
    return round(moment.timestamp() * 1e6) * 1000


def decode(data: bytes) -> Records:
    """The records in `data`. Raises MeasurementError if it is no whole number of them."""
    if len(data) % RECORD.itemsize:
        raise MeasurementError(
            f"the server sent {len(data)} bytes of a trace, which is no whole number of records of "
            f"{RECORD.itemsize} bytes: its module is of another version"
        )
    return np.frombuffer(data, RECORD)
