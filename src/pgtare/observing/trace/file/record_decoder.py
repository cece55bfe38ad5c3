"""Decodes the stream of sql_trace: records of one session, as docs/trace-format.md lays them out.

Whatever the bytes, decoding ends with what could be understood and a note of what could not.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.file.records import (
    BEGIN,
    BUFFERS,
    CALL,
    COMMITTED,
    LOCAL,
    POSTGRES_EPOCH_US,
    REQUEST,
    SEVERAL,
    SHARED,
    TRANSACTION,
    WAL,
    Bind,
    Failure,
    Integers,
    NodeRun,
    Open,
    RecordKind,
    RowSources,
    Stream,
    TextRecord,
    sqlstate,
)
from pgtare.postgres.encoded_text import decoded

_HEADER = 32
#: The version of the stream.
_VERSION = 2
#: Bytes of a record CALL before its counters.
_CALL = 112
#: No time in a stream is larger, in ns (36 years), and no number of a call: sums of some of them
#: have room in 64 bits.
_LONGEST = 1 << 60
_MAX_COUNT = 1 << 20
#: Bytes of a record FUSED before its items, and of an item before its fields.
_FUSED, _ITEM = 96, 16
#: An item that holds values; others are calls.
_BINDS_ITEM = 64
#: Flags of a call in a record FUSED.
_QUERY_ID, _ROWS, _PLAN = 0x100, 0x200, 0x400
#: Flags of a record FUSED: a transaction began, was committed.
_BEGAN, _COMMITTED = 1, 2
#: No record holds more fetches: it takes longer than that.
_MOST_FETCHES = 1 << 32

_NOT_ASCII = re.compile(rb"[\x80-\xff]+")

_BIND_STATES = ("null", "whole", "cut", "redacted", "omitted")
_SEVERITIES = {1: "ERROR", 2: "FATAL", 3: "PANIC"}


def decode(chunks: Iterable[tuple[int, bytes]]) -> Stream:
    """The records of a ring, from what was drained of it, in order of position."""
    return _Decoder().run(chunks)


class _Decoder:
    def __init__(self) -> None:
        self.into = Stream()
        self.encoding = "UTF8"
        self._calls: list[npt.NDArray[np.void]] = []
        # calls of records FUSED of the chunk, with their places in it
        self._fused_calls: list[tuple[int, ...]] = []
        self._fused_places: list[int] = []
        self._place = 0
        self._open: tuple[bytes, int, int] | None = None
        self._requests: list[tuple[int, ...]] = []
        self._transactions: list[tuple[int, ...]] = []
        # up to where the ring has been read: position, and number and time of the last record
        self._next = self._number = self._time = 0
        self._first: int | None = None
        self._looked = False

    def run(self, chunks: Iterable[tuple[int, bytes]]) -> Stream:
        into = self.into
        for i, (position, data) in enumerate(chunks):
            self._chunk(position, data[: len(data) // 8 * 8])
            if i == 0:
                into.first_look, self._looked = (into.last, None), True
        if self._open is not None:
            self._still_open(*self._open)
        if self._calls:
            into.calls = np.concatenate(self._calls)
        into.requests = np.array(self._requests, REQUEST)
        into.transactions = np.array(self._transactions, TRANSACTION)
        into.begin = self._first or 0
        return into

    def _chunk(self, position: int, data: bytes) -> None:
        offsets, wrong = walk(data)
        if wrong:
            self.into.notes.append(f"{wrong} at byte {position:,} of a session's stream")
        if not len(offsets):
            return
        words = np.frombuffer(data, "<u8")
        at = offsets >> 3
        kinds = ((words[at] >> np.uint64(32)) & np.uint64(0xFFFF)).astype(np.int64)
        sizes = (words[at] & np.uint64(0xFFFFFFFF)).astype(np.int64)
        self.into.records += len(offsets)
        times = _sane(words[at + 2].astype(np.int64))
        numbers, of_call = words[at + 1].astype(np.int64), _sane(words[at + 3].astype(np.int64))
        made = numbers != 0  # by the session, not by the reading function
        if made.any():
            self._open = None  # what came after it tells of that request
            lost = _lost(data, offsets[kinds == RecordKind.LOST])
            self._gaps(position, lost, numbers[made], times[made])
            self._next = max(self._next, position + lost + int(sizes[made].sum()))
            first, last = int(times[made][0]), int(times[made].max())
            if self._looked and self.into.first_look[1] is None:
                self.into.first_look = self.into.first_look[0], first
            if self._first is None:
                # what is missing at the beginning is part of it
                self._first = 0 if self.into.gaps else first
            self._first = min(self._first, first)
            self.into.last = max(self.into.last, last)
        of_calls = (kinds == RecordKind.CALL) & (sizes >= _CALL)
        calls = self._take_calls(words, data, offsets[of_calls], sizes[of_calls])
        others = np.flatnonzero(kinds != RecordKind.CALL)
        previous = -1
        for i in others.tolist():
            handler = _HANDLERS.get(int(kinds[i]))
            if handler is None:
                continue
            record = data[int(offsets[i]) : int(offsets[i] + sizes[i])]
            when = int(times[i])
            self._place = i
            try:
                handler(self, record, when, int(of_call[i]))
            except (struct.error, ValueError, IndexError, OverflowError) as ex:
                if previous != int(kinds[i]):
                    kind = RecordKind(int(kinds[i])).name
                    self.into.notes.append(f"a record {kind} could not be read ({ex})")
                previous = int(kinds[i])
        self._join_calls(calls, np.flatnonzero(of_calls))

    def _join_calls(self, calls: npt.NDArray[np.void], places: Integers) -> None:
        """Add the calls of a chunk, in the order of the records that hold them."""
        if self._fused_calls:
            calls = np.concatenate([calls, np.array(self._fused_calls, CALL)])
            order = np.argsort(np.concatenate([places, self._fused_places]), kind="stable")
            calls = calls[order]
            self._fused_calls, self._fused_places = [], []
        if len(calls):
            self._calls.append(calls)

    def _gaps(self, position: int, lost: int, numbers: Integers, times: Integers) -> None:
        """Note what is missing before a chunk, or in it: the numbers of records go up by one.

        That holds for what was overwritten (lost: bytes), and for what a damaged file lost.
        """
        earlier = np.concatenate([[self._number], numbers[:-1]])
        before = np.concatenate([[self._time], times[:-1]])
        size = lost + max(position - self._next, 0)
        for i in np.flatnonzero(numbers > earlier + 1).tolist():
            since, records = int(before[i]), int(numbers[i]) - int(earlier[i]) - 1
            self.into.gaps.append((since, max(since, int(times[i])), size, records))
            size = 0
        if int(numbers[-1]) > self._number:
            self._number, self._time = int(numbers[-1]), int(times[-1])

    def _take_calls(
        self, words: npt.NDArray[Any], data: bytes, offsets: Integers, sizes: Integers
    ) -> npt.NDArray[np.void]:
        at = offsets >> 3
        calls = np.zeros(len(offsets), CALL)
        if not len(offsets):
            return calls
        head, body = words[at], words[at + 4]
        calls["depth"] = (head >> np.uint64(48)).astype(np.int64)
        calls["call"] = _sane(words[at + 3].astype(np.int64))
        calls["end"] = _sane(words[at + 2].astype(np.int64))
        calls["kind"] = (body & np.uint64(0xFFFF)).astype(np.int64)
        calls["flags"] = ((body >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.int64)
        calls["sqlstate"] = (body >> np.uint64(32)).astype(np.int64)
        for i, name in enumerate(
            ("parent", "text", "query_id", "plan", "execution", "start", "busy", "cpu", "rows"), 5
        ):
            calls[name] = words[at + i].astype(calls.dtype[name])
        for name in ("start", "busy", "cpu"):
            calls[name] = _sane(calls[name])
        for i in np.flatnonzero(calls["flags"] & (SHARED | LOCAL | WAL | SEVERAL)).tolist():
            number, flags = int(calls["call"][i]), int(calls["flags"][i])
            rest = data[int(offsets[i]) + _CALL : int(offsets[i] + sizes[i])]
            found = _buffers(rest, flags)
            if flags & (SHARED | LOCAL | WAL) and found is not None:
                self.into.buffers[number] = found
            if flags & SEVERAL and (many := _fetches(rest, flags)) is not None:
                self.into.fetches[number] = many
        return calls

    def _fused(self, r: bytes, when: int, call: int) -> None:
        """A request in one record, as the calls and records that it is the same as."""
        flags, start, cpu, text, query_id, xid, transaction, began = struct.unpack_from(
            "<I4xqqQqQqI", r, 32
        )
        start, transaction = _sane_ns(start), _sane_ns(transaction)
        if flags & _BEGAN:
            self._transactions.append((BEGIN, start + began, 0, transaction))
        at, end = _FUSED, start
        while at < len(r):
            kind, number, bits, first, second, busy = struct.unpack_from("<BBHIII", r, at)
            at += _ITEM
            if kind == _BINDS_ITEM:
                if at + first > len(r) or first % 8:
                    raise ValueError("values beyond the record")
                self._take_binds(r[: at + first], at, bits, call + number)
                at += first
                continue
            rows = plan = 0
            if bits & _ROWS:
                (rows,) = struct.unpack_from("<q", r, at)
                at += 8
            if bits & _PLAN:
                (plan,) = struct.unpack_from("<Q", r, at)
                at += 8
            if bits & (SHARED | LOCAL | WAL):
                found = _buffers(r[at:], bits)
                if found is None:
                    raise ValueError("counters beyond the record")
                self.into.buffers[call + number] = found
                at += _buffers_size(bits)
            end = start + second
            known = query_id if bits & _QUERY_ID else 0
            of_call = (call + number, kind, 0, bits & 0xFF, 0, 0, text, known, plan, 0)
            self._fused_calls.append((*of_call, start + first, end, busy, -1, rows))
            self._fused_places.append(self._place)
        if flags & _COMMITTED:
            self._transactions.append((COMMITTED, end, xid, transaction))
        self.into.last = max(self.into.last, end)
        if r[4] == RecordKind.FUSED:
            self._requests.append((start, when, _sane_ns(cpu)))

    def _note_open(self, r: bytes, when: int, call: int) -> None:
        self._open = r, when, call

    def _still_open(self, r: bytes, when: int, call: int) -> None:
        """A request that had not been answered when the session was last looked at."""
        try:
            self._fused(r, when, call)
        except (struct.error, ValueError, IndexError, OverflowError) as ex:
            self.into.notes.append(f"a record OPEN could not be read ({ex})")
        if self._fused_calls:
            call, kind, *_, text, query_id, _, _, _, end, _, _, _ = self._fused_calls[-1]
            self.into.open = Open(kind, end, call + 1, text, query_id)
        self._join_calls(np.zeros(0, CALL), np.zeros(0, np.int64))

    def _session(self, r: bytes, when: int, call: int) -> None:
        version, started = struct.unpack_from("<I4xq", r, 32)
        application = r[88:152].split(b"\0", 1)[0]
        self.encoding = r[280:304].split(b"\0", 1)[0].decode("ascii", "replace")
        if version != _VERSION:
            self.into.notes.append(
                f"the server's stream has version {version}; this pgtare reads version {_VERSION}"
            )
        self.into.session = {
            "started_ns": _sane_ns((started + POSTGRES_EPOCH_US) * 1000),
            "application": self._str(application),
        }

    def _str(self, raw: bytes) -> str:
        return decoded(raw, self.encoding)

    def _text(self, r: bytes, when: int, call: int) -> None:
        text, query_id, _, stored, flags = struct.unpack_from("<QqIII", r, 32)
        self.into.texts[text] = TextRecord(
            self._str(r[64 : 64 + stored]), query_id, bool(flags & 1), bool(flags & 2)
        )

    def _binds(self, r: bytes, when: int, call: int) -> None:
        _, entries = struct.unpack_from("<II", r, 32)
        self._take_binds(r, 40, entries, call)

    def _take_binds(self, r: bytes, at: int, entries: int, call: int) -> None:
        """The values whose entries begin at a place of a record."""
        found = []
        for _ in range(min(entries, _MAX_COUNT)):
            oid, state, _, _, length, stored = struct.unpack_from("<IBBHII", r, at)
            if at + 16 + stored > len(r):
                raise ValueError("a value beyond the record")
            found.append(Bind(oid, _BIND_STATES[state], length, r[at + 16 : at + 16 + stored]))
            at += 16 + (stored + 7) // 8 * 8
        self.into.binds[call] = tuple(found)

    def _plan(self, r: bytes, when: int, call: int) -> None:
        plan, _, stored = struct.unpack_from("<QQI", r, 32)
        try:
            nodes = json.loads(_NOT_ASCII.sub(self._in_json, r[56 : 56 + stored]).decode())
        except RecursionError as ex:
            raise ValueError("a plan too deep") from ex
        if isinstance(nodes, list):
            self.into.plans[plan] = [node for node in nodes if isinstance(node, dict)]

    def _in_json(self, letters: re.Match[bytes]) -> bytes:
        """What is written as `\\xNN` is no escape of JSON."""
        return self._str(letters[0]).replace("\\", "\\\\").encode()

    def _rowsources(self, r: bytes, when: int, call: int) -> None:
        plan, sampling, count = struct.unpack_from("<QII", r, 32)
        nodes = tuple(
            NodeRun(*struct.unpack_from("<iIQQQqqq", r, 48 + 56 * i))
            for i in range(min(count, _MAX_COUNT))
        )
        self.into.rowsources.append(RowSources(call, plan, sampling, nodes))

    def _transaction(self, r: bytes, when: int, call: int) -> None:
        event, _, xid, start = struct.unpack_from("<IIQq", r, 32)
        self._transactions.append((event & 0x7FFFFFFF, when, xid, _sane_ns(start)))

    def _error(self, r: bytes, when: int, call: int) -> None:
        state, severity, text, _, stored = struct.unpack_from("<IIQII", r, 32)
        # the client's encoding is not in the trace: what is not UTF-8 may be any letter
        message = r[56 : 56 + stored].decode("utf-8", "backslashreplace")
        level = _SEVERITIES.get(severity, "ERROR")
        self.into.errors.append(Failure(when, call, sqlstate(state), level, text, message))

    def _request(self, r: bytes, when: int, call: int) -> None:
        start, cpu = struct.unpack_from("<qq", r, 32)
        self._requests.append((_sane_ns(start), when, _sane_ns(cpu)))

    def _waitring(self, r: bytes, when: int, call: int) -> None:
        started, zero = struct.unpack_from("<qq", r, 32)
        self.into.wait_rings.append((when, _sane_ns(started), _sane_ns(zero)))

    def _level(self, r: bytes, when: int, call: int) -> None:
        level, reason, rate = struct.unpack_from("<IId", r, 32)
        self.into.levels.append((when, level, reason, rate))

    def _application(self, r: bytes, when: int, call: int) -> None:
        name = self._str(r[32:96].split(b"\0", 1)[0])
        names = self.into.applications
        if not names or names[-1][1] != name:
            names.append((when, name))

    def _passed(self, r: bytes, when: int, call: int) -> None:
        self.into.passed = when

    def _end(self, r: bytes, when: int, call: int) -> None:
        self.into.ended = True


def _lost(data: bytes, offsets: Integers) -> int:
    """The bytes that records LOST of a chunk tell to be missing."""
    sizes = [data[at + 32 : at + 40] for at in offsets.tolist()]
    return sum(int.from_bytes(size, "little") for size in sizes) & (2**62 - 1)


_HANDLERS: dict[int, Callable[[_Decoder, bytes, int, int], None]] = {
    RecordKind.SESSION: _Decoder._session,
    RecordKind.TEXT: _Decoder._text,
    RecordKind.BINDS: _Decoder._binds,
    RecordKind.PLAN: _Decoder._plan,
    RecordKind.ROWSOURCES: _Decoder._rowsources,
    RecordKind.TRANSACTION: _Decoder._transaction,
    RecordKind.ERROR: _Decoder._error,
    RecordKind.REQUEST: _Decoder._request,
    RecordKind.WAITRING: _Decoder._waitring,
    RecordKind.LEVEL: _Decoder._level,
    RecordKind.END: _Decoder._end,
    RecordKind.PASSED: _Decoder._passed,
    RecordKind.APPLICATION: _Decoder._application,
    RecordKind.FUSED: _Decoder._fused,
    RecordKind.OPEN: _Decoder._note_open,
    RecordKind.LOST: _Decoder._end,  # read if the records around it are known
}


def _sane(values: Integers) -> Integers:
    return np.clip(values, -_LONGEST, _LONGEST)


def _sane_ns(time: int) -> int:
    """A time that arithmetic can hold, whatever a damaged stream says; since 1970, or of a ring."""
    return max(min(time, 2 * _LONGEST), -_LONGEST)


def walk(data: bytes) -> tuple[Integers, str | None]:
    """Where each record begins, up to the first whose size cannot be."""
    offsets: list[int] = []
    at, end = 0, len(data)
    size_at = struct.Struct("<I").unpack_from
    while at < end:
        if at + _HEADER > end:
            return np.array(offsets, np.int64), "a record that ends too early"
        (size,) = size_at(data, at)
        if size < _HEADER or size % 8 or at + size > end:
            return np.array(offsets, np.int64), f"a record of {size:,} bytes"
        offsets.append(at)
        at += size
    return np.array(offsets, np.int64), None


def plans_of_fused(record: bytes) -> list[int]:
    """The plans that a record FUSED or OPEN names; none from where it is damaged."""
    found: list[int] = []
    at = _FUSED
    while at + _ITEM <= len(record):
        kind, _, bits, size = struct.unpack_from("<BBHI", record, at)
        at += _ITEM
        if kind == _BINDS_ITEM:
            at += size
            continue
        at += 8 if bits & _ROWS else 0
        if bits & _PLAN and at + 8 <= len(record):
            found += struct.unpack_from("<Q", record, at)
        at += (8 if bits & _PLAN else 0) + _buffers_size(bits)
    return found


def _buffers(raw: bytes, flags: int) -> tuple[int, ...] | None:
    """In the order of BUFFERS; None if the record is too short for what it announces."""
    found, at = [0] * len(BUFFERS), 0
    for flag, first, count in ((SHARED, 0, 4), (LOCAL, 4, 6), (WAL, 10, 2)):
        if flags & flag:
            if len(raw) < at + 8 * count:
                return None
            found[first : first + count] = struct.unpack_from(f"<{count}Q", raw, at)
            at += 8 * count
    return tuple(found)


def _buffers_size(flags: int) -> int:
    """Bytes of the counters that are there."""
    return sum(8 * count for flag, count in ((SHARED, 4), (LOCAL, 6), (WAL, 2)) if flags & flag)


def _fetches(raw: bytes, flags: int) -> int | None:
    """Behind the counters that are there; None if the record is too short, or that is absurd."""
    at = _buffers_size(flags)
    if len(raw) < at + 8:
        return None
    (many,) = struct.unpack_from("<Q", raw, at)
    return int(many) if 1 < many <= _MOST_FETCHES else None
