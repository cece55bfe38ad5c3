"""Takes what the rings of traced sessions hold now: a trace of what has been, begun by nobody."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psycopg

import pgtare
from pgtare.errors import MeasurementError
from pgtare.kit.notes import alike
from pgtare.kit.numbers import counted, duration, span
from pgtare.observing.trace.analysis.tracing_cost import Costs
from pgtare.observing.trace.capture import open_waits
from pgtare.observing.trace.capture.before_recording import NOBODY, records
from pgtare.observing.trace.capture.drain import DRAIN, UNREADABLE, Drain, rings
from pgtare.observing.trace.capture.ring_selection import HeldRings, Key, Start, Traced
from pgtare.observing.trace.capture.server import Server, require_outside, telling
from pgtare.observing.trace.capture.target import Target, require_known
from pgtare.observing.trace.file.disk_limits import LimitReached, Limits
from pgtare.observing.trace.file.records import RecordKind
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer
from pgtare.postgres.own_session import APPLICATION_NAME
from pgtare.postgres.wait_ring import epoch_ns

#: Looks at all rings at most: a session can write as fast as it is read.
_LOOKS = 100
#: In the header of a record, and behind that of FUSED.
_NUMBER, _TIME, _FUSED_START = slice(8, 16), slice(16, 24), slice(40, 48)


@dataclass(frozen=True)
class SessionReach:
    """How far back the calls of a session go that were taken.

    whole: that is all since its trace began. ended_s: how long ago it ended; None: it lives.
    waits: whether there are waits of it.
    """

    pid: int
    user: str | None
    application: str | None
    reach_s: float
    whole: bool
    ended_s: float | None
    waits: bool = False


@dataclass(frozen=True)
class Grabbed:
    """What was taken from the rings of traced sessions.

    sessions: those of which there is something. waits, call_bytes: in the file, of bytes in all.
    lost_bytes: of calls, overwritten while rings were read; lost_waits: that rings had forgotten by
    then. reaches: the shortest first. notes: what a reader must know.
    """

    path: str
    sessions: int
    call_bytes: int
    waits: int
    bytes: int
    lost_bytes: int
    lost_waits: int
    reaches: list[SessionReach]
    notes: list[str]


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
    cannot be used, MeasurementError if the server goes away, or if not all has room: then nothing
    is written, and the rings still have it.
    """
    require_outside(server, path)
    require_known(server, (), target)  # sessions that have ended have no process any more
    with telling():
        ((now, version),) = server.rows(
            "SELECT clock_timestamp(), current_setting('server_version_num')"
        )
        since = None if last_s is None else now - timedelta(seconds=last_s)
        ever = datetime.fromtimestamp(0, now.tzinfo)
        found = [ring for ring in rings(server, since or ever) if _matches(target, ring)]
        starts: dict[Key, Start] = {}
        of: dict[Key, Traced] = {}
        unreadable: list[tuple[int, str]] = []
        for done, ring in enumerate(found):
            tell(done, len(found))
            if (start := _start(server, ring, since, unreadable)) is not None:
                starts[ring.key], of[ring.key] = start, ring
    if not starts:
        return None
    begins = {key: start.moment(key) for key, start in starts.items()}
    held = HeldRings(min(begins.values()), starts)
    document = {
        "pgtare": pgtare.__version__,
        "began": held.began.isoformat(),
        "server": version,
        "level": None,  # of each session, by its settings
        "command": list(command),
        "costs": dataclasses.asdict(Costs()),
    }
    reaches = sorted(
        (
            SessionReach(
                pid=ring.pid,
                user=ring.user,
                application=ring.application,
                reach_s=max((now - begins[key]).total_seconds(), 0.0),
                whole=starts[key].number == 1,
                ended_s=(now - ring.ended).total_seconds() if ring.ended else None,
            )
            for key, ring in of.items()
        ),
        key=lambda reach: reach.reach_s,
    )
    writer = Writer(path, json.dumps(document).encode(), limits)
    return _take(server, writer, held, reaches, unreadable)


def _matches(target: Target, ring: Traced) -> bool:
    """Not the sessions of pgtare itself, unless they are asked for."""
    own = ring.application == APPLICATION_NAME and target.application is None
    return not own and target.matches(ring.pid, ring.user, ring.database, ring.application)


def _start(
    server: Server, ring: Traced, since: datetime | None, unreadable: list[tuple[int, str]]
) -> Start | None:
    """The first record of a ring, or since then; None: there is none, or it cannot be read.

    Then its process and the reason are added to `unreadable`.
    """
    least = 0 if since is None else epoch_ns(since) - epoch_ns(ring.started)
    position, following, number = -1, 0, 0
    while following != position:
        position = following
        try:
            found = server.rows(DRAIN, ring.pid, position)
        except psycopg.errors.UndefinedObject:
            return None
        except tuple(UNREADABLE) as ex:
            unreadable.append((ring.pid, UNREADABLE[type(ex)]))
            return None
        ((following, lost, started, _, data),) = found
        if started != ring.started:
            return None
        at = position + lost
        for kind, record in records(bytes(data)):
            time = _signed(record[_TIME])
            if kind == RecordKind.OPEN:
                return Start(at, number + 1, time)
            if record[_NUMBER] == NOBODY:
                continue
            number = _signed(record[_NUMBER])
            if time >= least:
                fused = kind == RecordKind.FUSED  # it was written as its request had ended
                begin = min(time, _signed(record[_FUSED_START])) if fused else time
                return Start(at, number, begin)
            at += len(record)
    return None


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _notes(reaches: Sequence[SessionReach]) -> list[str]:
    """How far back the trace goes, and of which sessions it has no waits."""
    shortest, longest = (duration(1e6 * reaches[i].reach_s) for i in (0, -1))
    cut = sum(not reach.whole for reach in reaches)
    found = [
        f"taken from the rings of {counted(len(reaches), 'session')}, which reach back "
        f"{span(shortest, longest)}; "
        f"what {'no session' if not cut else counted(cut, 'session')} did before that was "
        "overwritten"
    ]
    without = [reach for reach in reaches if not reach.waits]
    if without:
        ended = sum(reach.ended_s is not None for reach in without)
        found.append(
            f"no waits are known of {counted(len(without), 'session')}, {ended} ended: levels 1 "
            "and 4 have none, and the server keeps those of few sessions that ended; their time is "
            "unaccounted, or waiting for a processor"
        )
    return found


def _take(
    server: Server,
    writer: Writer,
    held: HeldRings,
    reaches: list[SessionReach],
    unreadable: Sequence[tuple[int, str]] = (),
) -> Grabbed:
    try:
        with telling():
            drain = Drain(server, writer, held, waits=server.has_waits)
            for _ in range(_LOOKS):
                if not drain.look():
                    break
            until = None
            if server.has_waits:
                until, waits = open_waits.look(server)
                drain.keep_open_waits(waits, until)
        known = {waits.pid for waits in drain.rings.values()}
        reaches = [dataclasses.replace(r, waits=r.pid in known) for r in reaches]
        left_out = sorted({*unreadable, *drain.unreadable()})
        notes = [*_notes(reaches), *alike("process", left_out)]
        end = {
            "stopped_by": "grab",
            "why": "",
            "until": until.isoformat() if until else None,
            "notes": notes,
            "unread": dataclasses.asdict(drain.unread),
        }
        writer.flush()
        writer.close(json.dumps(end).encode())
    except LimitReached as ex:
        writer.discard()
        raise MeasurementError(
            f"{ex}: nothing was written; choose fewer sessions (--pid, --role, --application) or "
            "less time (--last), or another place; the rings still hold it"
        ) from ex
    except BaseException:  # Ctrl-C as well: half of it would look like all
        writer.discard()
        raise
    return Grabbed(
        path=str(writer.target),
        sessions=drain.sessions,
        call_bytes=writer.taken[Table.STREAM],
        waits=writer.taken[Table.WAITS],
        bytes=writer.written,
        lost_bytes=drain.lost_bytes,
        lost_waits=drain.lost_waits,
        reaches=reaches,
        notes=notes,
    )
