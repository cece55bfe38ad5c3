"""Traces made by hand: records of sql_trace's stream, waits, and files of both."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from pgtare.observing.trace.analysis.tracing_cost import Costs
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.observing.trace.file.reader import Trace, load
from pgtare.observing.trace.file.records import POSTGRES_EPOCH_US, CallKind, RecordKind
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer

US = 1_000
MS = 1_000_000
#: When the rings of made traces begin: ns since 1970, and µs since 2000.
BEGAN_NS = 1_800_000_000 * 10**9
BEGAN_US = BEGAN_NS // 1000 - POSTGRES_EPOCH_US
#: Limits without a reserve: a test need not care how full its disk is.
NO_RESERVE = Limits(reserve=0)
#: As if nothing had been traced.
NOTHING = Costs(**dict.fromkeys(asdict(Costs()), 0.0))
EVENTS = {
    0: ("IO", "DataFileRead"),
    1: ("Timeout", "PgSleep"),
    2: ("Client", "ClientRead"),
    3: ("IO", "WalSync"),
}


def moment(after_s: float) -> str:
    """A moment so long after the rings began, as documents state it."""
    return (datetime.fromtimestamp(BEGAN_NS / 1e9, UTC) + timedelta(seconds=after_s)).isoformat()


def padded(raw: bytes) -> bytes:
    return raw + b"\0" * (-len(raw) % 8)


@dataclass
class StreamBuilder:
    """Builds the bytes of one session's stream, as docs/trace-format.md says."""

    data: bytes = b""
    number: int = 0
    next_call: int = 0
    parts: list[bytes] = field(default_factory=list)

    def record(
        self, kind: RecordKind, when: int, body: bytes, call: int = 0, depth: int = 0
    ) -> None:
        body = padded(body)
        number = 0  # of what the reading function makes
        if kind not in (RecordKind.LOST, RecordKind.OPEN):
            self.number += 1
            number = self.number
        self.data += struct.pack("<IHHQqQ", 32 + len(body), kind, depth, number, when, call)
        self.data += body

    def session(
        self,
        pid: int = 4711,
        application: str = "app",
        since: int = 0,
        encoding: str = "UTF8",
    ) -> None:
        def name(text: str, size: int = 64) -> bytes:
            return text.encode().ljust(size, b"\0")

        began = BEGAN_US + since // 1000
        body = struct.pack("<IiqqqIIiIQ", 2, pid, began, 7, began, 10, 5, 180006, 0, 1 << 20)
        body += name(application) + name("alice") + name("shop") + name(encoding, 24)
        self.record(RecordKind.SESSION, 0, body)

    def text(self, text: int, sql: str | bytes, query_id: int = 0, flags: int = 0) -> None:
        raw = sql.encode() if isinstance(sql, str) else sql
        body = struct.pack("<QqIIII", text, query_id, len(raw), len(raw), flags, 0) + raw
        self.record(RecordKind.TEXT, 0, body)

    def call(
        self,
        kind: CallKind,
        start: int,
        end: int,
        *,
        call: int | None = None,
        parent: int = 0,
        text: int = 0,
        query_id: int = 0,
        cpu: int = -1,
        rows: int = 0,
        busy: int | None = None,
        depth: int = 0,
        plan: int = 0,
        execution: int = 0,
        flags: int = 0,
        state: int = 0,
        shared: tuple[int, int, int, int] | None = None,
        fetches: int = 1,
    ) -> int:
        if call is None:
            self.next_call += 1
            call = self.next_call
        self.next_call = max(self.next_call, call)
        flags |= (2 if shared else 0) | (64 if fetches > 1 else 0)
        body = struct.pack(
            "<HHIQQqQQqqqQ",
            kind,
            flags,
            state,
            parent,
            text,
            query_id,
            plan,
            execution,
            start,
            end - start if busy is None else busy,
            cpu,
            rows,
        )
        body += struct.pack("<4Q", *shared) if shared else b""
        body += struct.pack("<Q", fetches) if fetches > 1 else b""
        self.record(RecordKind.CALL, end, body, call, depth)
        return call

    def fused(self, start: int, end: int, call: int, *, still_open: bool = False) -> None:
        """A request in one record: values, bind, execution of 7 rows with plan 3, commit."""
        body = struct.pack("<IBBHqqQqQqII", 3, ord("I"), 0, 1, start, 5, 1, 42, 99, start + 1, 2, 0)
        value = struct.pack("<IBBHII", 23, 1, 1, 0, 4, 4) + padded(b"\7\0\0\0")
        body += struct.pack("<BBHIII", 64, 0, 1, len(value), 3, 0) + value
        body += struct.pack("<BBHIII", CallKind.BIND, 1, 32 | 256, 0, 10, 9)
        body += struct.pack("<BBHIII", CallKind.EXECUTE, 0, 2 | 256 | 512 | 1024, 10, 20, 8)
        body += struct.pack("<6Q", 7, 3, 1, 2, 3, 4)
        body += struct.pack("<BBHIII", CallKind.COMMIT, 2, 0, 20, 22, 2)
        kind = RecordKind.OPEN if still_open else RecordKind.FUSED
        self.record(kind, end, body, call)
        self.next_call = max(self.next_call, call + 2)

    def execution(self, start: int, end: int, cpu: int = -1) -> None:
        """A request of one execution."""
        self.call(CallKind.EXECUTE, start, end, cpu=cpu)
        self.request(start, end, cpu)

    def request(self, start: int, end: int, cpu: int = -1, status: str = "I") -> None:
        self.record(RecordKind.REQUEST, end, struct.pack("<qqII", start, cpu, ord(status), 1))

    def transaction(self, event: int, when: int, start: int, xid: int = 0) -> None:
        self.record(RecordKind.TRANSACTION, when, struct.pack("<IIQq", event, 0, xid, start))

    def waitring(self, zero: int = 0) -> None:
        self.record(RecordKind.WAITRING, 0, struct.pack("<qqII", BEGAN_US, zero, 1, 0))

    def plan(self, plan: int, nodes: list[dict[str, Any]] | bytes, text: int = 0) -> None:
        raw = nodes if isinstance(nodes, bytes) else json.dumps(nodes).encode()
        body = struct.pack("<QQII", plan, text, len(raw), len(nodes)) + raw
        self.record(RecordKind.PLAN, 0, body)

    def rowsources(
        self, call: int, plan: int, nodes: list[tuple[int, ...]], when: int, sampling: int = 1
    ) -> None:
        body = struct.pack("<QII", plan, sampling, len(nodes))
        body += b"".join(struct.pack("<iIQQQqqq", *node) for node in nodes)
        self.record(RecordKind.ROWSOURCES, when, body, call)

    def error(
        self,
        when: int,
        message: str,
        state: int = 0,
        call: int = 0,
        text: int = 0,
        severity: int = 1,
    ) -> None:
        raw = message.encode()
        body = struct.pack("<IIQII", state, severity, text, len(raw), len(raw)) + raw
        self.record(RecordKind.ERROR, when, body, call)

    def level(self, when: int, level: int, reason: int, rate: float) -> None:
        self.record(RecordKind.LEVEL, when, struct.pack("<IId", level, reason, rate))

    def lost(self, when: int, size: int, records: int) -> None:
        self.record(RecordKind.LOST, when, struct.pack("<Q", size))
        self.number += records

    def application(self, when: int, name: str) -> None:
        self.record(RecordKind.APPLICATION, when, name.encode().ljust(64, b"\0"))

    def end(self, when: int) -> None:
        self.record(RecordKind.END, when, b"")


def session_stream(*, waits: bool = False) -> StreamBuilder:
    """The beginning of a session's stream. waits: its waits are in a ring of their own."""
    stream = StreamBuilder()
    stream.session()
    if waits:
        stream.waitring()
    return stream


def ring(number: int, pid: int, kind: str, **names: Any) -> dict[str, Any]:
    return {
        "ring": np.array([number]),
        "pid": np.array([pid]),
        "started_ns": np.array([BEGAN_NS]),
        "json": [json.dumps({"kind": kind, **names}).encode()],
    }


def waits(number: int, rows: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Waits of a ring: (event, start after the ring's begin, length)."""
    event, start, length = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    return {
        "ring": np.full(len(rows), number),
        "event": event,
        "gap_ns": start + BEGAN_NS,
        "length_ns": length,
        "calls": np.ones(len(rows), np.int64),
    }


def define_events(writer: Writer) -> None:
    writer.define(
        Table.EVENTS,
        {
            "event": np.array(list(EVENTS)),
            "code": np.array(list(EVENTS)),
            "class": [kind.encode() for kind, _ in EVENTS.values()],
            "name": [name.encode() for _, name in EVENTS.values()],
        },
    )


def write(
    path: Path,
    stream: bytes,
    rows: list[tuple[int, int, int]] | None = None,
    *,
    pid: int = 4711,
    close: bool = True,
    began: str | None = None,
    first: int = 0,
    until: str | None = None,
    kept: dict[str, Any] | None = None,
) -> Path:
    """A trace of one session: its calls, and its waits in a ring of their own.

    first: bytes of the stream that the recorder's first look found. until: when waits under way
    were looked at. kept: why a trace was kept.
    """
    description = {
        "server": "180006",
        "costs": asdict(NOTHING),
        **({"began": began} if began else {}),
        **({"kept": kept} if kept else {}),
    }
    writer = Writer(path, json.dumps(description).encode(), NO_RESERVE)
    define_events(writer)
    names = {"user": "alice", "database": "shop", "application": "app"}
    writer.define(Table.RINGS, ring(1, pid, "sql", **names))
    writer.define(Table.RINGS, ring(2, pid, "waits", **names))
    for at, data in ((0, stream[:first]), (first, stream[first:])):
        if data:
            rows_of = {"ring": np.array([1]), "position": np.array([at]), "data": [data]}
            writer.add(Table.STREAM, rows_of)
    if rows:
        writer.add(Table.WAITS, waits(2, rows))
    if close:
        writer.close(json.dumps({"stopped_by": "time", "until": until}).encode())
    else:
        writer.flush()
        writer.abandon()
    return path


def trace(path: Path, stream: bytes, rows: list[tuple[int, int, int]] | None = None) -> Trace:
    return load(write(path, stream, rows))
