"""Reads a trace: whatever of its file is whole, and a list of what is not."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.errors import UsageError
from pgtare.kit.notes import amounts
from pgtare.kit.numbers import counted
from pgtare.observing.trace.file import blocks
from pgtare.observing.trace.file.blocks import Block, Damage
from pgtare.observing.trace.file.tables import COLUMNS, NO_RING, OF_BYTES, Table

Integers = npt.NDArray[np.int64]

#: No moment is later, in ns since 1970 (the year 2043): sums of some of them have room in 64 bits.
LATEST = 1 << 61
#: Moments in documents are true to the µs, in ns.
_STEP = 1000
#: How a recording ends that is complete.
_ENDS = ("time", "interrupt", "grab", "kept", None)
#: Bytes that a file may be decoded to: so many times its own, and these. Of waits it is 15 times.
_EXPANDED, _DECODED = 256, 1 << 30
#: Events beyond this number are not believed; a server has some hundreds.
MAX_EVENTS = 1 << 14


@dataclass(frozen=True)
class Ring:
    """One ring of a process on the server: of calls (`sql`) or of waits (`waits`).

    started_ns: since 1970, time 0 of the ring. leader_pid: of a parallel worker.
    """

    number: int
    pid: int
    started_ns: int
    kind: str
    user: str | None = None
    database: str | None = None
    application: str | None = None
    client: str | None = None
    leader_pid: int | None = None


@dataclass(frozen=True)
class Event:
    """A wait event by class and name."""

    type: str
    name: str


@dataclass
class Waits:
    """Waits of one ring in order of time; ns since 1970, and lengths in ns. event: a number."""

    start: Integers
    length: Integers
    event: Integers
    calls: Integers


NO_WAITS = Waits(*(np.zeros(0, np.int64),) * 4)
_NO_MARKS = {name: np.zeros(0, np.int64) for name in COLUMNS[Table.MARKS]}


@dataclass
class Trace:
    """What a trace holds. end: how the recording ended; None: it is still written, or was killed.

    streams: by ring, the chunks of bytes that the server gave, each with its position.
    marks: by ring, columns kind, depth, when_ns (since 1970) and value of the ring of waits.
    processor: by ring, columns when_ns, cpu_ns and queue_ns, cumulated, from the kernel.
    texts: by query identifier, of statements that only rings of waits tell of.
    losses: by ring, rows that were overwritten unread (of streams: bytes); of NO_RING, bytes of the
    traces of sessions that ended and were given up before anybody had read them.
    gaps: by ring, the times of these losses: see docs/trace-format.md.
    """

    path: Path
    recording: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    rings: dict[int, Ring] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    waits: dict[int, Waits] = field(default_factory=dict)
    marks: dict[int, dict[str, Integers]] = field(default_factory=dict)
    streams: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    losses: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    gaps: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    processor: dict[int, dict[str, Integers]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)

    @property
    def client_events(self) -> list[int]:
        """The numbers of events in which a session waits for its client."""
        return [number for number, event in self.events.items() if event.type == "Client"]

    def waits_of(self, ring: int) -> Waits:
        """The waits of a ring, of which there may be none."""
        return self.waits.get(ring, NO_WAITS)

    def marks_of(self, ring: int) -> dict[str, Integers]:
        """Its marks, of which there may be none."""
        return self.marks.get(ring, _NO_MARKS)

    def label(self, event: int) -> str:
        """An event as PostgreSQL's users write it: IO/DataFileRead."""
        found = self.events.get(event)
        return f"{found.type}/{found.name}" if found else f"unknown event {event}"

    def notes(self) -> list[str]:
        """What a reader has to know: damage, losses, an end that is not there."""
        found = [f"damaged: {damage}" for damage in self.damages if not damage.tail]
        tails = [damage for damage in self.damages if damage.tail]
        if self.end is None:
            cut = f"; {tails[0]}" if tails else ""
            found.append(
                f"{self.path} has no end: it is still being written, or its recorder died{cut}"
            )
        else:
            found += [f"damaged: {damage}" for damage in tails]
        if self.end is not None and self.end.get("stopped_by") not in _ENDS:
            found.append(f"the recording ended early: {self.end.get('why') or 'unknown reason'}")
        notes = (self.end or {}).get("notes")
        found += [str(note) for note in notes] if isinstance(notes, list) else []
        for kind, what in (("sql", "bytes of calls"), ("waits", "waits")):
            of_kind = ((n, ring.pid) for n, ring in self.rings.items() if ring.kind == kind)
            found += losses_notes(what, ((pid, self.losses.get(n, 0)) for n, pid in of_kind))
        sessions, records, size = _sums(self.end, "unread", ("sessions", "records", "bytes"))
        if lost := max(size, self.losses.get(NO_RING, 0)):
            found.append(unread_note(sessions, records, lost))
        size, waits = _sums(self.end, "unwritten", ("bytes", "waits"))
        if size or waits:
            found.append(unwritten_note(size, waits))
        kinds = {ring.kind for ring in self.rings.values()}
        if "waits" not in kinds and kinds and self.recording.get("level") in (1, 4):
            found.append(
                "waits were not recorded (levels 1 and 4 have none): their time is unaccounted, or "
                "waiting for a processor; levels 8 and 12 tell"
            )
        return found


def losses_notes(what: str, lost: Iterable[tuple[int, int]]) -> list[str]:
    """Tell of what was overwritten in the rings of processes."""
    return amounts(lost, f"{what} were overwritten unread")


def unread_note(sessions: int, records: int, size: int) -> str:
    """Tell of sessions whose traces nobody had read when they made way; 0: not known how many."""
    whose = counted(sessions, "session") if sessions else "sessions"
    what = (
        f"{records:,} records, {size:,} bytes of calls" if records else f"{size:,} bytes of calls"
    )
    return f"{whose} ended unread: {what} made way for other sessions that ended"


def unwritten_note(size: int, waits: int) -> str:
    """Tell what there was when nothing more could be written."""
    return (
        f"{size:,} bytes of calls and {waits:,} waits came before the recording stopped, and could "
        "not be written"
    )


def _sums(end: dict[str, Any] | None, name: str, keys: tuple[str, ...]) -> tuple[int, ...]:
    stated = (end or {}).get(name)
    values = [stated.get(key) if isinstance(stated, dict) else 0 for key in keys]
    return tuple(v if isinstance(v, int) and v > 0 else 0 for v in values)


def scan(path: Path) -> Iterator[Block | Damage]:
    """The sound blocks and the damages of a trace. Raises UsageError."""
    for found in blocks.scan(path):
        if isinstance(found, Block) and (wrong := _wrong(found)):
            yield Damage(path, 0, 0, f"block {found.number:,} {wrong}")
        else:
            yield found


def _wrong(block: Block) -> str | None:
    """Why a block is not what its table needs; None for one of a table we do not know."""
    try:
        table = Table(block.table)
    except ValueError:
        return None
    for name in COLUMNS[table]:
        values = block.columns.get(name)
        if values is None or isinstance(values, list) != (name in OF_BYTES):
            return f"of table {table.name.lower()} lacks its column {name}"
    return None


def load(path: Path) -> Trace:
    """All of a trace. Raises UsageError if there is none that can be read."""
    trace = Trace(path)
    room = _DECODED
    columns: dict[Table, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for found in scan(path):
        if isinstance(found, Damage):
            trace.damages.append(found)
            continue
        room += _EXPANDED * found.stored - found.decoded
        if room < 0:
            raise UsageError(
                f"{path} would take over {_EXPANDED} times its size in memory, which no recording "
                "does: it was made to, and is not read"
            )
        if found.table not in (Table.WAITS, Table.MARKS, Table.PROCESSOR):
            _take(trace, found)
            continue
        rows: dict[str, Any] = dict(found.columns)
        if found.table == Table.WAITS:
            length = rows["length_ns"]
            rows["start_ns"] = np.cumsum(rows["gap_ns"] + length) - length
        for ring, part in by_ring(rows):
            columns[Table(found.table)][ring].append(part)
    for ring, parts in columns[Table.WAITS].items():
        trace.waits[ring] = _waits(parts)
    for ring, parts in columns[Table.MARKS].items():
        trace.marks[ring] = _concatenated(parts, "when_ns")
        trace.marks[ring]["when_ns"] = sane(trace.marks[ring]["when_ns"])
    _by_the_servers_clock(trace)
    for ring, parts in columns[Table.PROCESSOR].items():
        joined = _concatenated(parts, "when_ns")
        trace.processor[ring] = {name: sane(values) for name, values in joined.items()}
    for chunks in trace.streams.values():
        chunks.sort(key=lambda chunk: chunk[0])
    return trace


def _by_the_servers_clock(trace: Trace) -> None:
    """Move the times of rings whose clock was behind the server's, as the recorder found.

    Waits that were under way when it looked last end at that moment by the server's clock already.
    The others ended before these began.
    """
    end_document = trace.end or {}
    stated, until = end_document.get("behind"), moment(end_document.get("until"))
    for ring in trace.rings:
        behind = stated.get(str(ring)) if isinstance(stated, dict) else None
        if not isinstance(behind, int) or behind <= 0:
            continue
        behind = min(behind, LATEST // 2)
        if (waits := trace.waits.get(ring)) is not None:
            end = waits.start + waits.length
            under_way = abs(end - until) <= _STEP
            if under_way.any() and not under_way.all():
                apart = int(waits.start[under_way].min() - end[~under_way].max())
                behind = max(min(behind, apart), 0)
            waits.start = sane(waits.start + np.where(under_way, 0, behind))
        if (marks := trace.marks.get(ring)) is not None:
            marks["when_ns"] = sane(marks["when_ns"] + behind)
        trace.gaps[ring] = [when + behind for when in trace.gaps[ring]]


def moment(stated: object) -> int:
    """A moment that a document states, in ns since 1970; 0: it states none."""
    try:
        when = datetime.fromisoformat(str(stated))
        return max(min(round(when.timestamp() * 1e9), LATEST), -LATEST)
    except (ValueError, OverflowError):
        return 0


def recording_of(path: Path) -> dict[str, Any]:
    """What a trace says of its recording, at its beginning. Raises UsageError."""
    for found in scan(path):
        if isinstance(found, Block) and found.table == Table.RECORDING:
            return _document(found)
    return {}


def by_ring(rows: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of each ring; rows of a block that are in order of rings need no copy."""
    ring = np.asarray(rows["ring"])
    if not len(ring):
        return
    if len(ring) > 1 and (np.diff(ring) < 0).any():
        order = np.argsort(ring, kind="stable")
        rows = {name: np.asarray(values)[order] for name, values in rows.items()}
        ring = rows["ring"]
    bounds = [0, *(np.flatnonzero(np.diff(ring)) + 1).tolist(), len(ring)]
    for begin, end in itertools.pairwise(bounds):
        yield int(ring[begin]), {name: values[begin:end] for name, values in rows.items()}


def _waits(parts: list[dict[str, Any]]) -> Waits:
    joined = _concatenated(parts, "start_ns")
    event = np.where(
        (joined["event"] >= 0) & (joined["event"] < MAX_EVENTS), joined["event"], MAX_EVENTS
    )
    length = np.clip(joined["length_ns"], 0, LATEST // 2)
    return Waits(sane(joined["start_ns"]), length, event, joined["calls"])


def sane(times: Integers) -> Integers:
    """Times within what arithmetic on them can hold, whatever a file says."""
    return np.clip(times, -LATEST, LATEST)


def _concatenated(parts: list[dict[str, Any]], order_by: str) -> dict[str, Integers]:
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    key = joined[order_by]
    if len(key) > 1 and (np.diff(key) < 0).any():
        order = np.argsort(key, kind="stable")
        joined = {name: values[order] for name, values in joined.items()}
    return joined


def _take(trace: Trace, block: Block) -> None:
    """Take the rows of a table of which rows do not belong together by ring."""
    if block.table == Table.RECORDING:
        trace.recording = trace.recording or _document(block)
    elif block.table == Table.END:
        trace.end = _document(block)
    elif block.table == Table.RINGS:
        for number, pid, started, raw in _rows(block):
            trace.rings[number] = _ring(number, pid, started, _mapping(raw))
    elif block.table == Table.EVENTS:
        for event, _, kind, name in _rows(block):
            if 0 <= event < MAX_EVENTS:
                trace.events[event] = Event(_text(kind), _text(name))
    elif block.table == Table.STREAM:
        for ring, position, data in _rows(block):
            trace.streams.setdefault(ring, []).append((position, data))
    elif block.table == Table.LOSSES:
        for ring, when, lost in _rows(block):
            trace.losses[ring] += lost
            trace.gaps[ring].append(max(min(when, LATEST), -LATEST))
    elif block.table == Table.TEXTS:
        trace.texts |= {query_id: _text(text) for query_id, text in _rows(block)}


def _ring(number: int, pid: int, started: int, described: dict[str, Any]) -> Ring:
    leader = described.get("leader_pid")
    text = {
        k: str(described[k])
        for k in ("user", "database", "application", "client")
        if described.get(k) is not None
    }
    return Ring(
        number,
        pid,
        max(min(started, LATEST), -LATEST),
        str(described.get("kind", "waits")),
        leader_pid=leader if isinstance(leader, int) and 0 < leader < 1 << 31 else None,
        **text,
    )


def _rows(block: Block) -> Iterator[tuple[Any, ...]]:
    """The rows of a block, with the columns that its table has."""
    columns = [block.columns[name] for name in COLUMNS[Table(block.table)]]
    return zip(*(c if isinstance(c, list) else c.tolist() for c in columns), strict=True)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _document(block: Block) -> dict[str, Any]:
    rows = block.columns["json"]
    return _mapping(rows[0]) if isinstance(rows, list) and rows else {}


def _mapping(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
