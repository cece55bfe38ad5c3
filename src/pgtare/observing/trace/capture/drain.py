"""Drains the rings of calls and of waits of traced sessions into a writer."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psycopg

from pgtare.observing.trace.capture.before_recording import Earlier
from pgtare.observing.trace.capture.open_waits import OpenWait
from pgtare.observing.trace.capture.ring_selection import Choice, HeldRings, Traced
from pgtare.observing.trace.capture.server import Server, Unread
from pgtare.observing.trace.file.records import POSTGRES_EPOCH_US
from pgtare.observing.trace.file.tables import NO_RING, Table
from pgtare.observing.trace.file.writer import Writer, row
from pgtare.postgres import wait_ring
from pgtare.postgres.wait_ring import Records, RingRecordKind, WaitRing, epoch_ns

#: Bytes of one answer above which a ring is read again at once.
_MUCH = 256 * 1024
#: How much older than the recording a wait may be, in ns: clocks of rings drift.
_SLACK = 10**9
#: So much later than its calls a ring of waits may begin, ns: the clocks of both may differ.
_APART_NS = 10**8
#: A ring's clock is behind the server's if its latest records always seem this much older, in ns.
_BEHIND = 5 * 10**9
#: The server tells begins of waits to the µs: ns.
_STEP = 1000
#: Where a record SESSION says when the session began.
_SESSION_STARTED = slice(56, 64)
#: Errors after which a ring is not read, and why, in words. Of a session that one may see, calls
#: are refused only where it had another role's rights.
UNREADABLE: dict[type[Exception], str] = {
    psycopg.errors.InsufficientPrivilege: "no right to read its calls any further: it ran "
    "statements with the rights of another role, which members of pg_read_all_stats may read",
    # something wrote over it: others can still be read
    psycopg.errors.InvalidParameterValue: "a damaged ring, which was read no further",
}
#: Reads of one ring in a row, so that others have their turn.
_TURNS = 4

_SESSIONS = """
SELECT s.pid, s.started, s.ended, r.rolname, d.datname, s.application_name, a.client_addr::text,
       s.level, s.reason, s.bytes, a.backend_start
FROM {trace}.sql_trace_sessions() s LEFT JOIN pg_roles r ON r.oid = s.userid
LEFT JOIN pg_database d ON d.oid = s.dbid
LEFT JOIN pg_stat_activity a ON a.pid = s.pid AND s.ended IS NULL
WHERE s.started IS NOT NULL AND s.pid <> {own}
AND (s.ended IS NULL OR s.ended >= %s)
"""
#: The same of waits alone. What a session was called is forgotten when it ends, but for its role.
_SESSIONS_OF_WAITS = """
SELECT r.pid, r.started, r.ended, o.rolname, a.datname, a.application_name, a.client_addr::text,
       CASE s.capture WHEN 'trace' THEN 8 ELSE 0 END, NULL, NULL::bigint, a.backend_start
FROM {waits}.wait_event_timing_rings() r LEFT JOIN pg_roles o ON o.oid = r.userid
LEFT JOIN pg_stat_activity a ON a.pid = r.pid AND r.ended IS NULL
LEFT JOIN {waits}.pg_stat_wait_event_timing_sessions s ON s.pid = r.pid AND r.ended IS NULL
WHERE r.backend_type = 'client backend' AND r.pid <> {own} AND (r.ended IS NULL OR r.ended >= %s)
"""
DRAIN = "SELECT next, lost, started, ended, data FROM {trace}.sql_trace_drain(%s::int4, %s::int8)"


@dataclass
class _Ring:
    """One ring of calls: its number in the trace, and how far it has been read.

    unreadable: why it is read no further.
    """

    number: int
    pid: int
    started: datetime
    earlier: Earlier
    position: int = 0
    done: bool = False
    unreadable: str = ""
    lost: int = 0
    session_started: datetime | None = None
    open: bytes = b""  # what was read last, if that was only an open request


@dataclass
class _Waits(WaitRing):
    """One ring of waits: its number in the trace, and how far it has been read.

    begins: from when on its waits are needed, if that is its own. joined: what came before is not
    for the trace. kept: anything of it is in the trace. reached: when the last wait of it ended, ns
    since 1970.
    caught_up: all that it held at first has been read. behind: its clock is behind the server's by
    no more than this, in ns; None: nothing has come since that shows it.
    """

    number: int = 0
    leader_pid: int | None = None
    begins: datetime | None = None
    joined: datetime | None = None
    kept: bool = False
    reached: int = 0
    caught_up: bool = False
    behind: int | None = None


@dataclass(frozen=True)
class _Session:
    """A session that is recorded: its ring, and when it began; None: that is not known yet."""

    ring: Traced
    started: datetime | None

    def has(self, ring_started: datetime) -> bool:
        """Whether a ring of waits is its own or its workers': numbers of processes come again."""
        if self.started is None or ring_started < self.started:
            return False
        return self.ring.ended is None or ring_started <= self.ring.ended


class Drain:
    """Reads every ring once a look; lost: rows of waits, and bytes of calls, by process.

    unread: sessions that ended and made way for others before anybody had read them. query_ids: of
    statements that only rings of waits tell of, and whose texts no ring has.
    """

    def __init__(
        self, server: Server, writer: Writer, choice: Choice | HeldRings, *, waits: bool
    ) -> None:
        self.server, self.writer, self.choice, self.waits = server, writer, choice, waits
        self.began = choice.began
        self._begun_ns = time.monotonic_ns()
        self.calls: dict[tuple[int, datetime], _Ring] = {}
        self.rings: dict[tuple[int, datetime], _Waits] = {}
        self.events: dict[int, int] = {}
        self._labels: dict[int, tuple[str, str]] = {}
        self.unread = Unread()
        self.query_ids: set[int] = set()
        self._now_ns: int | None = None
        self._unread_before = server.unread()
        self._rings = 0

    @property
    def sessions(self) -> int:
        """Sessions whose calls were traced, or whose waits, if these are all that is recorded."""
        if self.server.has_calls:
            return len(self.calls)
        return sum(waits.kept and waits.leader_pid is None for waits in self.rings.values())

    @property
    def lost_bytes(self) -> int:
        """Bytes of calls that were overwritten unread."""
        return sum(ring.lost for ring in self.calls.values())

    @property
    def lost_waits(self) -> int:
        """Waits (and marks between them) that were overwritten unread."""
        return sum(ring.lost for ring in self.rings.values())

    def losses(self) -> dict[int, tuple[int, int]]:
        """By process: bytes of calls and waits that were overwritten unread, if there are any."""
        calls = Counter[int]()
        waits = Counter[int]()
        for ring in self.calls.values():
            calls[ring.pid] += ring.lost
        for of_waits in self.rings.values():
            waits[of_waits.pid] += of_waits.lost
        return {pid: (calls[pid], waits[pid]) for pid in {**+calls, **+waits}}

    def behind(self) -> dict[int, tuple[int, int]]:
        """By ring of waits, its process and by how many ns its clock is behind, if it is.

        It counts from the server's clock as it was when the ring began. That may have been set
        forward since, or the machine may have been suspended.
        """
        return {
            waits.number: (waits.pid, waits.behind)
            for waits in self.rings.values()
            if waits.behind is not None and waits.behind > _BEHIND
        }

    def unreadable(self) -> list[tuple[int, str]]:
        """Processes whose rings could not be read to their end, and why."""
        found = [(ring.pid, ring.unreadable) for ring in self.calls.values() if ring.unreadable]
        for waits in self.rings.values():
            if waits.refused:
                found.append((waits.pid, "no right to read its waits"))
            elif waits.gone:
                found.append((waits.pid, "the ring of its waits was given up before its last"))
        return sorted(set(found))

    def look(self) -> bool:
        """Read every ring; whether one is so full that it wants to be read again at once."""
        self._now_ns = None
        busy = False
        sessions: dict[int, list[_Session]] = defaultdict(list)
        for found in rings(self.server, self.began):
            if not self.choice.takes(found):
                continue
            if not self.server.has_calls:
                started = found.session_started or found.started
                sessions[found.pid].append(_Session(found, started))
                continue
            ring = self.calls.get(found.key)
            if ring is None:
                number = self._new(found.pid, found.started, {"kind": "sql", **_names(found)})
                earlier = self.choice.earlier(found.key)
                ring = _Ring(number, found.pid, found.started, earlier)
                self.calls[found.key] = ring
            if not ring.done:
                busy |= self._drain_calls(ring)
                # each try again would be an error in the server's log
                ring.done = ring.done and (bool(ring.unreadable) or found.ended is not None)
            sessions[found.pid].append(_Session(found, ring.session_started))
        if self.waits and sessions:
            busy |= self._look_at_waits(sessions)
        unread = self.server.unread() - self._unread_before
        if lost := unread.bytes - self.unread.bytes:
            self._tell_loss(NO_RING, lost)
        self.unread = unread
        return busy

    def keep_open_waits(
        self, waits: Sequence[OpenWait], until: datetime, *, idle: bool = True
    ) -> list[OpenWait]:
        """Take waits under way, as long as they are by then; those that were taken.

        Of sessions with a ring that is still read; those that have ended since are in it. idle:
        those for the client, too, of sessions whose calls are recorded.
        """
        of = {ring.pid: ring for ring in self.rings.values() if not ring.done}
        calls = {ring.pid for ring in self.calls.values()}
        taken = []
        for wait in waits:
            ring = of.get(wait.pid)
            start = epoch_ns(wait.started)
            if ring is None or ring.reached > start + _STEP:
                continue
            if wait.idle and not idle and wait.pid in calls:
                continue
            self._keep_open_wait(ring.number, wait, until)
            taken.append(wait)
        return taken

    def knows(self, pid: int) -> bool:
        """Whether anything of a process has been read."""
        return any(ring.pid == pid for ring in self.calls.values()) or any(
            ring.kept and ring.pid == pid for ring in self.rings.values()
        )

    def keep_untraced(self, wait: OpenWait, until: datetime) -> None:
        """Take the wait of a session that has no ring, and the statement that waits."""
        number = self._new(wait.pid, wait.started, {"kind": "waits", **_names(wait)})
        self._keep_open_wait(number, wait, until)
        if wait.query_id:
            self.query_ids.add(wait.query_id)
            begin = (int(RingRecordKind.STATEMENT_BEGIN), 0, epoch_ns(wait.started), wait.query_id)
            self.writer.add(Table.MARKS, row(Table.MARKS, number, *begin))

    def _keep_open_wait(self, ring: int, wait: OpenWait, until: datetime) -> None:
        known = {label: number for number, label in self._labels.items()}
        event = known.get((wait.type, wait.event))
        if event is None:
            event = len(self._labels)
            self._define([event], [0], [(wait.type, wait.event)])
        start = epoch_ns(wait.started)
        length = max(epoch_ns(until) - start, 0)
        self.writer.add(Table.WAITS, row(Table.WAITS, ring, event, start, length, 1))

    def _new(self, pid: int, started: datetime, description: dict[str, Any]) -> int:
        """Give a ring a number in the trace."""
        self._rings += 1
        described = json.dumps(description).encode()
        columns = row(Table.RINGS, self._rings, pid, epoch_ns(started), described)
        self.writer.define(Table.RINGS, columns)
        return self._rings

    def _drain_calls(self, ring: _Ring) -> bool:
        for _ in range(_TURNS):
            found = self._read(ring)
            if not found:
                return False
            ((position, lost, started, ended, data),) = found
            if started != ring.started:
                ring.done = True  # its slot belongs to another session by now
                return False
            if ring.session_started is None:
                ring.session_started = _session_started(bytes(data))
            # what a ring forgot that is not for us is not our loss
            if ours := ring.earlier.lost(ring.position, lost):
                ring.lost += ours
                self._tell_loss(ring.number, ours)
            # of a request that is still open, and of which nothing is new
            only_open = position == ring.position
            raw = b"" if only_open and bytes(data) == ring.open else bytes(data)
            ring.open = bytes(data) if only_open else b""
            for at, kept in ring.earlier.without(ring.position, lost, raw):
                self.writer.add(Table.STREAM, row(Table.STREAM, ring.number, at, kept))
            if ended and position == ring.position:
                ring.done = True
            ring.position = position
            if len(data) < _MUCH:
                return False
        return True

    def _read(self, ring: _Ring) -> list[tuple[Any, ...]]:
        """What a ring gives; nothing if it has gone, is not ours to see or is damaged."""
        try:
            return self.server.rows(DRAIN, ring.pid, ring.position)
        except psycopg.errors.UndefinedObject:
            ring.done = True
        except tuple(UNREADABLE) as ex:
            ring.done = True
            if not self._began_anew(ring):
                ring.unreadable = UNREADABLE[type(ex)]
        return []

    def _began_anew(self, ring: _Ring) -> bool:
        """Whether the process has another ring by now, which knows nothing of our position."""
        found = {each.started for each in rings(self.server, self.began) if each.pid == ring.pid}
        return any(started > ring.started for started in found)

    def _tell_loss(self, ring: int, lost: int, when_ns: int | None = None) -> None:
        """when_ns: when the first record after it began; None: that is not known, so now."""
        if when_ns is None:
            if self._now_ns is None:  # once a look, in which there may be hundreds of losses
                ((now,),) = self.server.rows("SELECT clock_timestamp()")
                self._now_ns = epoch_ns(now)
            when_ns = self._now_ns
        self.writer.add(Table.LOSSES, row(Table.LOSSES, ring, when_ns, lost))

    def _look_at_waits(self, sessions: Mapping[int, list[_Session]]) -> bool:
        busy = False
        for found in wait_ring.rings(self.server.rows, self.began):
            candidates = sessions.get(found.leader_pid or found.pid, [])
            session = next((s.ring for s in candidates if s.has(found.started)), None)
            if session is None:
                continue
            waits = self.rings.get((found.pid, found.started))
            if waits is None:
                who = {"kind": "waits", "leader_pid": found.leader_pid, **_names(session)}
                number = self._new(found.pid, found.started, who)
                waits = _Waits(found.pid, found.started, number=number, leader_pid=found.leader_pid)
                waits.begins, waits.joined = self.choice.of_waits(session.key)
                self.rings[found.pid, found.started] = waits
            if not waits.done:
                more = self._drain_waits(waits)
                busy |= more
                waits.done |= found.ended is not None and not more
        return busy

    def _drain_waits(self, ring: _Waits) -> bool:
        since = ring.joined or self.began
        for _ in range(_TURNS):
            first, lost_before = not ring.read, ring.lost
            records = ring.drain(self.server.rows, since)
            if ring.done:
                return False
            first_ns = int(records["start_ns"][0]) + ring.started_ns if len(records) else None
            if first and ring.begins is not None and first_ns is not None:
                ring.count_forgotten(first_ns, epoch_ns(ring.begins) + _APART_NS)
            if lost := ring.lost - lost_before:
                self._tell_loss(ring.number, lost, first_ns)
            much = records.nbytes >= _MUCH
            if ring.started < since:
                if not ring.caught_up:
                    records = self._since(records, ring)
                else:
                    self._compare_clocks(ring, records)
            self._keep(ring, records)
            if not much:
                ring.caught_up = True
                return False
        return True

    def _since(self, records: Records, ring: _Waits) -> Records:
        """Without what was over before the recording began; clocks of rings may have drifted.

        If the ring's clock is behind, what came between the begin and this look is left out, too.
        Of a session that joined later that is next to nothing, as it is met at once.
        """
        joined = ring.joined
        since_ns = epoch_ns(self.began) - _SLACK if joined is None else epoch_ns(joined)
        return records[_over(records) >= since_ns - ring.started_ns]

    def _compare_clocks(self, waits: _Waits, records: Records) -> None:
        """The latest of what a ring has got since the last look is hardly older than that look.

        That is so if it is a mark; a wait may have ended long before a session writes it.
        """
        if not len(records) or records["kind"][-1] == RingRecordKind.WAIT:
            return
        now = epoch_ns(self.began) + time.monotonic_ns() - self._begun_ns
        behind = now - waits.started_ns - int(_over(records).max())
        waits.behind = behind if waits.behind is None else min(waits.behind, behind)

    def _keep(self, ring: _Waits, records: Records) -> None:
        started_ns = ring.started_ns
        ring.kept |= len(records) > 0
        waits = records[records["kind"] == RingRecordKind.WAIT]
        marks = records[records["kind"] != RingRecordKind.WAIT]
        if len(waits):
            self.writer.add(
                Table.WAITS,
                {
                    "ring": np.full(len(waits), ring.number),
                    "event": self._numbers(waits),
                    "gap_ns": waits["start_ns"] + started_ns,
                    "length_ns": waits["value"].astype(np.int64),
                    "calls": waits["calls"].astype(np.int64),
                },
            )
            ends = waits["start_ns"] + waits["value"] + started_ns
            ring.reached = max(ring.reached, int(ends.max()))
        if len(marks):
            self._keep_marks(
                ring.number,
                kind=marks["kind"].astype(int),
                depth=marks["depth"].astype(int),
                when_ns=marks["start_ns"] + started_ns,
                value=marks["value"].astype(np.int64),
            )

    def _keep_marks(self, ring: int, **columns: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        if not self.server.has_calls:
            begins = columns["kind"] == RingRecordKind.STATEMENT_BEGIN
            self.query_ids |= set(columns["value"][begins].tolist()) - {0}
        self.writer.add(Table.MARKS, {"ring": np.full(len(columns["kind"]), ring), **columns})

    def _numbers(self, waits: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Events by our own numbers, which are small; names of new ones are looked up."""
        codes, which = np.unique(waits["event"], return_inverse=True)
        unknown = [int(code) for code in codes if int(code) not in self.events]
        if unknown:
            names = wait_ring.event_names(self.server.rows, unknown)
            labels = [names.get(code) or ("???", f"0x{code:08X}") for code in unknown]
            first = len(self._labels)
            self.events |= {code: first + i for i, code in enumerate(unknown)}
            self._define(range(first, first + len(unknown)), unknown, labels)
        numbers = np.array([self.events[int(code)] for code in codes], np.int64)
        return numbers[np.asarray(which).ravel()]

    def _define(
        self, events: Sequence[int], codes: Sequence[int], labels: Sequence[tuple[str, str]]
    ) -> None:
        """Say what our numbers of events mean."""
        self._labels |= dict(zip(events, labels, strict=True))
        self.writer.define(
            Table.EVENTS,
            {
                "event": np.array(events),
                "code": np.array(codes),
                "class": [(kind or "???").encode() for kind, _ in labels],
                "name": [(name or "???").encode() for _, name in labels],
            },
        )


def rings(server: Server, ended_since: datetime | None) -> list[Traced]:
    """All rings of calls, or of sessions' waits alone; of ended sessions, those since then."""
    query = _SESSIONS if server.has_calls else _SESSIONS_OF_WAITS
    return [Traced(*row) for row in server.rows(query, ended_since)]


def _over(records: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
    """When each wait ended, and when each mark was made, in ns since the ring began."""
    lengths = np.where(records["kind"] == RingRecordKind.WAIT, records["value"], 0)
    return np.asarray(records["start_ns"] + lengths, np.int64)


def _names(session: Traced | OpenWait) -> dict[str, str | None]:
    return {
        "user": session.user,
        "database": session.database,
        "application": session.application,
        "client": session.client,
    }


def _session_started(data: bytes) -> datetime:
    """When the session of a ring began, by the record SESSION with which its stream begins."""
    us = int.from_bytes(data[_SESSION_STARTED], "little", signed=True) + POSTGRES_EPOCH_US
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)
