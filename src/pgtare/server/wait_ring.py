"""Decodes what wait_event_trace_drain gives: records of 32 bytes, and the statement of each."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.errors import MeasurementError

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


class Kind(IntEnum):
    """What a record is."""

    WAIT = 1
    STATEMENT_BEGIN = 2
    STATEMENT_END = 3
    CPU = 4
    COMMIT = 5
    ABORT = 6
    TRIGGER = 7


def decode(data: bytes) -> Records:
    """The records in `data`. Raises MeasurementError where it is no whole number of them."""
    if len(data) % RECORD.itemsize:
        raise MeasurementError(
            f"the server sent {len(data)} bytes of a trace, which is no whole number of records of "
            f"{RECORD.itemsize} bytes: its module is of another version"
        )
    return np.frombuffer(data, RECORD)


def numbers(records: Records, following: int) -> Numbers:
    """The full number of each record; following: that of the next record to be read.

    A record holds the low 32 bits of its number + 1. Records are fewer than 2^32 behind.
    """
    low = (records["seq"].astype(np.int64) - 1) & 0xFFFFFFFF
    behind = (following - 1 - low) & 0xFFFFFFFF
    return np.asarray(following - 1 - behind, dtype=np.int64)


def statements(records: Records, queryid: int = 0) -> tuple[Numbers, int]:
    """The query identifier of the outermost statement that runs at each record, and at the end.

    queryid: what ran before the first record. 0: none, or one without an identifier. A statement
    runs from its begin to its end, or to an abort outside of any statement; planning comes before
    its begin. Where the end of one was lost, the next begin ends it.
    """
    kind, depth = records["kind"], records["depth"]
    begins = (kind == Kind.STATEMENT_BEGIN) & (depth == 0)
    ends = ((kind == Kind.STATEMENT_END) | (kind == Kind.ABORT)) & (depth == 0)
    marks = begins | ends
    last = np.maximum.accumulate(np.where(marks, np.arange(len(records)), -1))
    values = np.where(begins, records["value"], 0)
    running = np.where(last >= 0, values[np.maximum(last, 0)], queryid).astype(np.int64)
    after = int(running[-1]) if len(running) else queryid
    # The end itself belongs to what it ends.
    own = running.copy()
    own[1:][ends[1:]] = running[:-1][ends[1:]]
    if len(own) and ends[0]:
        own[0] = queryid
    return own, after


def bucket(duration_ns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The histogram bucket, from 0, of each duration: below 256 ns, then powers of two."""
    value = np.maximum(np.asarray(duration_ns, dtype=np.int64), 1)
    # log2 in double precision rounds 2^k - 1 up where k is large: take the exponent instead.
    exponent = np.frexp(value.astype(np.float64))[1].astype(np.int64) - 1
    exponent -= (value < np.left_shift(np.int64(1), np.minimum(exponent, 62))).astype(np.int64)
    return np.clip(exponent - 7, 0, 31)
