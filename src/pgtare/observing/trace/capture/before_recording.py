"""Keeps what a ring held before the recording out of it, but for texts and plans still in use.

A session writes a text or a plan once, and names it by a number ever after. So those of before
the recording are held back here, and go into it only when a record of the recording names them. So
are those that the reading function adds, as they are in the server's dictionary and in no ring.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pgtare.observing.trace.file.record_decoder import plans_of_fused, walk
from pgtare.observing.trace.file.records import RecordKind

_HEADER = 32
_NUMBER = slice(8, 16)
NOBODY = bytes(8)
_u64 = struct.Struct("<Q").unpack_from
#: Where records name a text, and a plan.
_PLANS_TEXT = 40
_TEXT_AT: dict[int, int] = {
    RecordKind.CALL: 48,
    RecordKind.ERROR: 40,
    RecordKind.PLAN: _PLANS_TEXT,
    RecordKind.FUSED: 56,
    RecordKind.OPEN: 56,
}
_PLAN_AT: dict[int, int] = {RecordKind.CALL: 64, RecordKind.ROWSOURCES: 32}

Chunk = tuple[int, bytes]


class Earlier:
    """Of one ring. before: the position up to which it is not for the recording.

    last: number and time of the last record left out, if the ring does not have it any more.
    """

    def __init__(self, before: int, last: tuple[int, int] | None = None) -> None:
        self.before = before
        self._skipped = struct.pack("<Qq", *last) if last else b""
        self._texts: dict[int, bytes] = {}
        self._plans: dict[int, bytes] = {}
        self._added: set[tuple[int, int]] = set()
        self._session = b""
        self._state: dict[int, bytes] = {}
        self._rings: list[bytes] = []
        self._last = b""
        self._head_sent = before == 0

    def lost(self, position: int, lost: int) -> int:
        """How many of the bytes lost behind a position are the recording's loss."""
        return max(position + lost - max(position, self.before), 0)

    def without(self, position: int, lost: int, data: bytes) -> list[Chunk]:
        """What of some records, read from a position on, is for the recording, in chunks."""
        data = self._without_added(data)
        if self._head_sent and not self._texts and not self._plans:
            return [(position, data)]
        at, found, own = position + lost, [], self.lost(position, lost)
        for kind, record in records(data):
            if record[_NUMBER] == NOBODY:
                if kind == RecordKind.SESSION:
                    self._session = record
                elif kind == RecordKind.OPEN:
                    found += [*self._named(kind, record), record]
                elif own:
                    found.append(record[:_HEADER] + own.to_bytes(8, "little"))
                continue
            if at < self.before:
                self._hold(kind, record)
            else:
                found += self._named(kind, record)
                found.append(record)
            at += len(record)
        chunks = []
        if not self._head_sent and (at > self.before or (found and at == self.before)):
            self._head_sent = True
            chunks.append((max(self.before - _HEADER, 0), self._head()))
        if found:
            chunks.append((max(position, self.before), b"".join(found)))
        return chunks

    def _without_added(self, data: bytes) -> bytes:
        """Hold texts and plans that the reading function put before the session's own records.

        It does so each time that it is called; the recording needs each of them once.
        """
        kept, at, found = [], 0, False
        for kind, record in _leading(data):
            at += len(record)
            if kind not in (RecordKind.TEXT, RecordKind.PLAN):
                kept.append(record)
                continue
            found = True
            if (name := (kind, _u64(record, _HEADER)[0])) not in self._added:
                self._added.add(name)
                self._define(kind, record)
        return b"".join(kept) + data[at:] if found else data

    def _define(self, kind: int, record: bytes) -> None:
        of_kind = self._texts if kind == RecordKind.TEXT else self._plans
        of_kind[_u64(record, _HEADER)[0]] = record

    def _hold(self, kind: int, record: bytes) -> None:
        self._last = record
        if kind in (RecordKind.TEXT, RecordKind.PLAN):
            self._define(kind, record)
        elif kind in (RecordKind.LEVEL, RecordKind.APPLICATION):
            self._state[kind] = record
        elif kind == RecordKind.WAITRING and record[_HEADER:] not in (
            r[_HEADER:] for r in self._rings
        ):
            self._rings.append(record)

    def _head(self) -> bytes:
        """What is in force when the recording begins, and where the ring was then."""
        kept = [_unnumbered(record) for record in (*self._rings, *self._state.values())]
        passed = self._last[8:24] or self._skipped
        if passed:
            passed = struct.pack("<IHH", _HEADER, RecordKind.PASSED, 0) + passed + bytes(8)
        return b"".join([self._session, *kept, passed])

    def _named(self, kind: int, record: bytes) -> list[bytes]:
        """What a record names and no record has defined yet."""
        found = []
        fused = kind in (RecordKind.FUSED, RecordKind.OPEN)
        names = plans_of_fused(record) if fused else [_at(record, _PLAN_AT.get(kind))]
        for plan in [self._plans.pop(name) for name in names if name in self._plans]:
            # statements share plans: the text with it is of the one that came first
            found.append(_unnumbered(plan[:_PLANS_TEXT] + NOBODY + plan[_PLANS_TEXT + 8 :]))
        text = self._texts.pop(_at(record, _TEXT_AT.get(kind)), None)
        if text is not None:
            found.append(_unnumbered(text))
        return found


def _at(record: bytes, offset: int | None) -> int:
    return int(_u64(record, offset)[0]) if offset is not None and len(record) >= offset + 8 else -1


def _unnumbered(record: bytes) -> bytes:
    """As records are that the reading function makes: they count for no gap."""
    return record[:8] + NOBODY + record[16:]


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each whole record."""
    offsets, _ = walk(data)
    for at in offsets.tolist():
        size, kind = struct.unpack_from("<IH", data, at)
        yield kind, data[at : at + size]


def _leading(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The same of those at the beginning that are not the session's own."""
    at = 0
    while data[at + _NUMBER.start : at + _NUMBER.stop] == NOBODY:
        size, kind = struct.unpack_from("<IH", data, at)
        if size < _HEADER or at + size > len(data):
            return
        yield kind, data[at : at + size]
        at += size
