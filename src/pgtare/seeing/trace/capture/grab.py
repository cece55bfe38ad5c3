"""Takes what the rings of traced sessions hold now: a trace of what has been, begun by nobody."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import psycopg

import pgtare
from pgtare.kit.numbers import counted, duration
from pgtare.seeing.trace.analysis.tracing_cost import Costs, noted
from pgtare.seeing.trace.capture.before_recording import NOBODY, Earlier, records
from pgtare.seeing.trace.capture.drain import DRAIN, Drain, rings
from pgtare.seeing.trace.capture.ring_selection import Key, Traced
from pgtare.seeing.trace.capture.server import Server, telling
from pgtare.seeing.trace.capture.target import Target
from pgtare.seeing.trace.file.disk_limits import LimitReached, Limits
from pgtare.seeing.trace.file.reader import unwritten_note
from pgtare.seeing.trace.file.records import RecordKind
from pgtare.seeing.trace.file.tables import Table
from pgtare.seeing.trace.file.writer import Writer
from pgtare.server.wait_ring import epoch_ns

#: Looks at all rings at most: a session can write as fast as it is read.
_LOOKS = 100
#: In the header of a record, and behind that of FUSED.
_NUMBER, _TIME, _FUSED_START = slice(8, 16), slice(16, 24), slice(40, 48)


@dataclass(frozen=True)
class Reach:
    """How far back the calls of a session go. whole: to where its trace began."""

    pid: int
    user: str | None
    application: str | None
    seconds: float
    whole: bool


@dataclass(frozen=True)
class Grabbed:
    """What was taken. stopped_by: grab, size or space. reaches: of each session, shortest first."""

    path: str
    stopped_by: str
    why: str
    sessions: int
    call_bytes: int
    waits: int
    lost_bytes: int
    lost_waits: int
    bytes: int
    reaches: tuple[Reach, ...]
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Start:
    """Where the calls of a ring begin that are taken: the first record's place, number, begin."""

    position: int
    number: int
    begin_ns: int


@dataclass
class _Held:
    """The rings that are taken, from where on. began: no call is older."""

    began: datetime
    starts: dict[Key, _Start]

    def takes(self, ring: Traced) -> bool:
        return ring.key in self.starts

    def earlier(self, key: Key) -> Earlier:
        start = self.starts[key]
        last = (start.number - 1, start.begin_ns) if start.number > 1 else None
        return Earlier(start.position, last)


def grab(
    server: Server,
    path: Path,
    target: Target,
    last_s: float | None,
    limits: Limits,
    command: Sequence[str] = (),
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> Grabbed | None:
    """Write what rings hold of sessions that match; None, and no file, if that is nothing.

    last_s: only of so many seconds before now. tell: is called with the number of rings looked
    into, and of all. What sessions write meanwhile can be in it. Raises UsageError if the place
    cannot be used, MeasurementError if the server goes away.
    """
    with telling():
        ((now, version),) = server.rows(
            "SELECT clock_timestamp(), current_setting('server_version_num')"
        )
        since = None if last_s is None else now - timedelta(seconds=last_s)
        ever = datetime.fromtimestamp(0, now.tzinfo)
        found = [ring for ring in rings(server, since or ever) if _matches(target, ring)]
        starts: dict[Key, _Start] = {}
        of: dict[Key, Traced] = {}
        for done, ring in enumerate(found):
            tell(done, len(found))
            if (start := _start(server, ring, since)) is not None:
                starts[ring.key], of[ring.key] = start, ring
    if not starts:
        return None
    begins = {key: _moment(key, start) for key, start in starts.items()}
    held = _Held(min(begins.values()), starts)
    document = {
        "pgtare": pgtare.__version__,
        "began": held.began.isoformat(),
        "server": version,
        "level": None,  # of each session, by its settings
        "command": list(command),
        "costs": noted(Costs()),
    }
    reaches = sorted(
        (
            Reach(
                ring.pid,
                ring.user,
                ring.application,
                max((now - begins[key]).total_seconds(), 0.0),
                starts[key].number == 1,
            )
            for key, ring in of.items()
        ),
        key=lambda reach: reach.seconds,
    )
    writer = Writer(path, json.dumps(document).encode(), limits)
    return _take(server, writer, held, tuple(reaches))


def _matches(target: Target, ring: Traced) -> bool:
    return target.matches(ring.pid, ring.user or "", ring.database or "", ring.application or "")


def _moment(key: Key, start: _Start) -> datetime:
    return key[1] + timedelta(microseconds=start.begin_ns // 1000)


def _start(server: Server, ring: Traced, since: datetime | None) -> _Start | None:
    """The first record of a ring, or since then; None: there is none, or it is not ours to see."""
    least = 0 if since is None else epoch_ns(since) - epoch_ns(ring.started)
    position, following, number = -1, 0, 0
    while following != position:
        position = following
        try:
            found = server.rows(DRAIN, ring.pid, position)
        except (
            psycopg.errors.UndefinedObject,
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.InvalidParameterValue,  # it is damaged
        ):
            return None
        ((following, lost, started, _, data),) = found
        if started != ring.started:
            return None
        at = position + lost
        for kind, record in records(bytes(data)):
            time = _signed(record[_TIME])
            if kind == RecordKind.OPEN:
                return _Start(at, number + 1, time)
            if record[_NUMBER] == NOBODY:
                continue
            number = _signed(record[_NUMBER])
            if time >= least:
                return _Start(at, number, _begin(kind, record, time))
            at += len(record)
    return None


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _begin(kind: int, record: bytes, time: int) -> int:
    """When what a record tells began, in the ring's ns; time: when it was written."""
    if kind != RecordKind.FUSED:
        return time
    return min(time, _signed(record[_FUSED_START]))


def _reach_note(reaches: Sequence[Reach]) -> str:
    """How far back the trace goes, in a sentence."""
    whole = sum(reach.whole for reach in reaches)
    shortest, longest = (duration(1e6 * reaches[i].seconds) for i in (0, -1))
    span = f"{shortest} to {longest}" if len(reaches) > 1 else longest
    return (
        f"taken from the rings of {counted(len(reaches), 'session')}: they reach back {span}, "
        f"{whole} of them to where its trace began; nothing older is known"
    )


def _take(server: Server, writer: Writer, held: _Held, reaches: tuple[Reach, ...]) -> Grabbed:
    drain = Drain(server, writer, held, waits=server.has_waits)
    stopped, why, until = "grab", "", None
    note = _reach_note(reaches)
    try:
        with telling():
            for _ in range(_LOOKS):
                if not drain.look():
                    break
            until = drain.take_open_waits()
        writer.flush()
    except LimitReached as ex:
        stopped, why = ex.limit, str(ex)
    except BaseException:  # Ctrl-C as well: half of it would look like all
        writer.discard()
        raise
    unwritten = writer.unwritten[Table.STREAM], writer.unwritten[Table.WAITS]
    end = {
        "stopped_by": stopped,
        "why": why,
        "until": until.isoformat() if until else None,
        "duration_s": max(reach.seconds for reach in reaches),
        "losses": {str(pid): lost for pid, lost in drain.losses().items()},
        "notes": [note],
        "unwritten": dict(zip(("bytes", "waits"), unwritten, strict=True)),
        "unread": dataclasses.asdict(drain.unread),
    }
    try:
        writer.close(json.dumps(end).encode())
    except LimitReached as ex:
        stopped, why = ex.limit, str(ex)
    return Grabbed(
        str(writer.target),
        stopped,
        why,
        drain.sessions,
        writer.taken[Table.STREAM] - unwritten[0],
        writer.taken[Table.WAITS] - unwritten[1],
        drain.lost_bytes,
        drain.lost_waits,
        writer.written,
        reaches,
        (note, *([unwritten_note(*unwritten)] if any(unwritten) else [])),
    )
