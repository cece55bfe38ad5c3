"""The records of a session in a trace: what each kind tells, once decoded (record_decoder.py).

docs/trace-format.md describes their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

#: Microseconds from 1970 to 2000, where the server's timestamps begin.
POSTGRES_EPOCH_US = 946_684_800_000_000


class RecordKind(IntEnum):
    """What a record is. PASSED: made by the recorder, for all of before the recording."""

    PASSED = 0
    SESSION = 1
    TEXT = 2
    CALL = 3
    BINDS = 4
    PLAN = 5
    ROWSOURCES = 6
    TRANSACTION = 7
    ERROR = 8
    REQUEST = 9
    WAITRING = 10
    LEVEL = 11
    END = 12
    LOST = 13
    APPLICATION = 14
    FUSED = 15
    OPEN = 16


class CallKind(IntEnum):
    """What a call is."""

    PARSE = 1
    BIND = 2
    PLAN = 3
    EXECUTE = 4
    FETCH = 5
    COMMIT = 6
    ROLLBACK = 7
    UTILITY = 8


CALL = np.dtype(
    [
        ("call", "<i8"),
        ("kind", "<i2"),
        ("depth", "<i2"),
        ("flags", "<i4"),
        ("sqlstate", "<i8"),
        ("parent", "<i8"),
        ("text", "<u8"),
        ("query_id", "<i8"),
        ("plan", "<u8"),
        ("execution", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("busy", "<i8"),
        ("cpu", "<i8"),
        ("rows", "<i8"),
    ]
)
FAILED, SHARED, LOCAL, WAL, ABORTED, ESTIMATED, SEVERAL = 1, 2, 4, 8, 16, 32, 64
#: Why a level is in force: the statement's query identifier was listed.
BY_QUERY_ID = 4
BUFFERS = (
    "shared_hit",
    "shared_read",
    "shared_dirtied",
    "shared_written",
    "local_hit",
    "local_read",
    "local_dirtied",
    "local_written",
    "temp_read",
    "temp_written",
    "wal_records",
    "wal_bytes",
)
REQUEST = np.dtype([("start", "<i8"), ("end", "<i8"), ("cpu", "<i8")])
TRANSACTION = np.dtype([("event", "<i4"), ("when", "<i8"), ("xid", "<u8"), ("start", "<i8")])
BEGIN, COMMITTED, ABORT, PREPARE, SUBABORT = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class TextRecord:
    """A statement's text."""

    text: str
    query_id: int
    cut: bool
    suppressed: bool


@dataclass(frozen=True)
class Bind:
    """A value bound: its type's OID, its state (null, whole, cut, redacted, omitted), its bytes."""

    type: int
    state: str
    length: int
    data: bytes


#: Flags of a node: each call timed, ran in parallel workers, not timed at all.
EXACT, WORKERS, UNTIMED = 1, 2, 16


@dataclass(frozen=True)
class NodeRun:
    """What one node of a plan did in one execution; times in ns, children included."""

    node: int
    flags: int
    calls: int
    rows: int
    loops: int
    time: int
    low: int
    high: int


@dataclass(frozen=True)
class RowSources:
    """The nodes of one execution; sampling: about every how-manieth call was timed."""

    call: int
    plan: int
    sampling: int
    nodes: tuple[NodeRun, ...]


@dataclass(frozen=True)
class Failure:
    """An error sent to the client."""

    when: int
    call: int
    sqlstate: str
    severity: str
    text: int
    message: str


@dataclass(frozen=True)
class Open:
    """A request that had no answer when it was read: its statement, and what of it is over.

    kind: of the last call that is over, and when that ended; call: a number that is free.
    """

    kind: int
    end: int
    call: int
    text: int
    query_id: int


@dataclass
class Stream:
    """One session's records. Times: ns since the ring began (started_ns since 1970).

    wait_rings: (from when, start of the ring of waits in µs since 2000, time of its zero here).
    applications: (from when, name), if another than session's. gaps: (after when, up to when,
    bytes, records) that are missing. passed: up to when all was before the recording.
    first_look: the last time in what was drained first, and the first time in what came next.
    buffers, and fetches if one record holds several: by call
    number.
    """

    session: dict[str, Any] = field(default_factory=dict)
    calls: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, CALL))
    buffers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    fetches: dict[int, int] = field(default_factory=dict)
    requests: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, REQUEST))
    transactions: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, TRANSACTION))
    texts: dict[int, TextRecord] = field(default_factory=dict)
    binds: dict[int, tuple[Bind, ...]] = field(default_factory=dict)
    plans: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    rowsources: list[RowSources] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    wait_rings: list[tuple[int, int, int]] = field(default_factory=list)
    levels: list[tuple[int, int, int, float]] = field(default_factory=list)
    applications: list[tuple[int, str]] = field(default_factory=list)
    gaps: list[tuple[int, int, int, int]] = field(default_factory=list)
    ended: bool = False
    open: Open | None = None
    passed: int | None = None
    first_look: tuple[int, int | None] = (0, None)
    begin: int = 0
    last: int = 0
    records: int = 0
    notes: list[str] = field(default_factory=list)


def call_name(kind: int) -> str:
    """What a call of this kind is called."""
    return CallKind(kind).name.lower() if 1 <= kind <= len(CallKind) else "call"


def sqlstate(packed: int) -> str:
    """The five characters of an error code; empty for 0."""
    if not packed:
        return ""
    return "".join(chr((packed >> 6 * i & 0x3F) + 48) for i in range(5))


def packed_sqlstate(code: str) -> int:
    """An error code as records have it."""
    return sum((ord(character) - 48 & 0x3F) << 6 * i for i, character in enumerate(code))
