"""Drains the rings of calls and of waits of traced sessions into a writer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psycopg

from pgtare.server import wait_ring
from pgtare.server.wait_ring import Kind, Records
from pgtare.trace.choice import Choice, Traced
from pgtare.trace.earlier import Earlier
from pgtare.trace.server import Server, Unread
from pgtare.trace.stream import POSTGRES_EPOCH_US
from pgtare.trace.tables import NO_RING, Table
from pgtare.trace.writer import Writer

#: Bytes of one answer above which a ring is read again at once.
_MUCH = 256 * 1024
#: How much older than the recording a wait may be, in ns: clocks of rings drift.
_SLACK = 10**9
#: Where a record SESSION says when the session began.
_SESSION_STARTED = slice(56, 64)
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
_DRAIN = "SELECT next, lost, started, ended, data FROM {trace}.sql_trace_drain(%s, %s)"
_WAIT_RINGS = """
SELECT pid, started, ended, coalesce(leader_pid, 0) FROM {waits}.wait_event_timing_rings()
WHERE (pid = ANY(%s) OR leader_pid = ANY(%s)) AND (ended IS NULL OR ended >= %s)
"""
_DRAIN_WAITS = "SELECT next, lost, started, records FROM {waits}.wait_event_trace_drain(%s, %s)"
_NAMES = """
SELECT event, wait_event_type, wait_event
FROM unnest(%s::bigint[]) AS event, {waits}.wait_event_timing_event(event)
"""


@dataclass
class _Ring:
    """One ring: its number in the trace, and how far it has been read."""

    number: int
    pid: int
    started: datetime
    position: int = 0
    done: bool = False
    damaged: bool = False
    lost: int = 0
    earlier: Earlier = field(default_factory=lambda: Earlier(0))
    session_started: datetime | None = None

    @property
    def started_ns(self) -> int:
        return epoch_ns(self.started)


class Drain:
    """Reads every ring once a look; lost: rows of waits, and bytes of calls, by process.

    unread: sessions that ended meanwhile and made way for others before anybody had read them.
    """

    def __init__(self, server: Server, writer: Writer, choice: Choice, *, waits: bool) -> None:
        self.server, self.writer, self.choice, self.waits = server, writer, choice, waits
        self.began = choice.began
        self.calls: dict[tuple[int, datetime], _Ring] = {}
        self.rings: dict[tuple[int, datetime], _Ring] = {}
        self.events: dict[int, int] = {}
        self.kept_bytes = self.kept_waits = 0
        self.unread = Unread()
        self._unread_before = server.unread()
        self._rings = 0

    @property
    def sessions(self) -> int:
        """Sessions whose calls were traced."""
        return len(self.calls)

    @property
    def lost_bytes(self) -> int:
        """Bytes of calls that were overwritten unread."""
        return sum(ring.lost for ring in self.calls.values())

    @property
    def lost_waits(self) -> int:
        """Waits (and marks between them) that were overwritten unread."""
        return sum(ring.lost for ring in self.rings.values())

    def losses(self) -> dict[int, tuple[int, int]]:
        """By process: bytes of calls and waits that were overwritten unread; only who lost any."""
        found: dict[int, tuple[int, int]] = {}
        for i, rings in enumerate((self.calls, self.rings)):
            for ring in rings.values():
                if ring.lost:
                    before = found.get(ring.pid, (0, 0))
                    more = (before[0] + ring.lost, before[1]) if i == 0 else (
                        before[0], before[1] + ring.lost)  # fmt: skip
                    found[ring.pid] = more
        return found

    def damaged(self) -> list[int]:
        """Processes whose rings held what is no record, and were read no further."""
        return sorted({ring.pid for ring in self.calls.values() if ring.damaged})

    def look(self) -> bool:
        """Read every ring; whether one is so full that it wants to be read again at once."""
        busy = False
        told: dict[int, tuple[Traced, _Ring]] = {}
        for found in rings(self.server, self.began):
            if not self.choice.takes(found):
                continue
            ring = self.calls.get(found.key)
            if ring is None:
                ring = self._new(found.pid, found.started, {"kind": "sql", **_names(found)})
                ring.earlier = Earlier(self.choice.before(found.key))
                self.calls[found.key] = ring
            told[found.pid] = found, ring
            if not ring.done:
                busy |= self._drain_calls(ring)
                ring.done = found.ended is not None and ring.done
        if self.waits and told:
            busy |= self._look_at_waits(told)
        self._look_at_unread()
        return busy

    def _look_at_unread(self) -> None:
        now = self.server.unread() - self._unread_before
        if lost := now.bytes - self.unread.bytes:
            self._tell_loss(NO_RING, lost)
        self.unread = now

    def _new(self, pid: int, started: datetime, told: dict[str, Any]) -> _Ring:
        self._rings += 1
        ring = _Ring(self._rings, pid, started)
        self.writer.define(
            Table.RINGS,
            {
                "ring": np.array([ring.number]), "pid": np.array([pid]),
                "started_ns": np.array([ring.started_ns]), "json": [json.dumps(told).encode()],
            },
        )  # fmt: skip
        return ring

    def _drain_calls(self, ring: _Ring) -> bool:
        for _ in range(_TURNS):
            found = self._read(_DRAIN, ring)
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
                self._lose(ring, ours)
            for at, kept in ring.earlier.without(ring.position, lost, bytes(data)):
                self.writer.add(
                    Table.STREAM,
                    {
                        "ring": np.array([ring.number]), "position": np.array([at]),
                        "data": [kept],
                    },
                )  # fmt: skip
                self.kept_bytes += len(kept)
            if ended and position == ring.position:
                ring.done = True
            ring.position = position
            if len(data) < _MUCH:
                return False
        return True

    def _read(self, query: str, ring: _Ring) -> list[tuple[Any, ...]]:
        """What a ring gives; nothing, and never again, where it has gone or is not ours to see."""
        try:
            return self.server.rows(query, ring.pid, ring.position)
        except (psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege):
            ring.done = True
        except psycopg.errors.InvalidParameterValue:
            # something wrote over it: others can still be read
            ring.done = ring.damaged = True
        return []

    def _lose(self, ring: _Ring, lost: int) -> None:
        ring.lost += lost
        self._tell_loss(ring.number, lost)

    def _tell_loss(self, ring: int, lost: int) -> None:
        when = np.array([epoch_ns(datetime.now(self.began.tzinfo))])
        self.writer.add(
            Table.LOSSES, {"ring": np.array([ring]), "when_ns": when, "lost": np.array([lost])}
        )

    def _look_at_waits(self, told: dict[int, tuple[Traced, _Ring]]) -> bool:
        busy = False
        pids = list(told)
        for pid, started, ended, leader in self.server.rows(_WAIT_RINGS, pids, pids, self.began):
            session, calls = told.get(leader or pid, (None, None))
            if session is None or calls is None or not _of_session(started, session, calls):
                continue
            ring = self.rings.get((pid, started))
            if ring is None:
                who = {"kind": "waits", "leader_pid": leader or None, **_names(session)}
                ring = self._new(pid, started, who)
                self.rings[pid, started] = ring
            if not ring.done:
                busy |= self._drain_waits(ring)
                ring.done = ended is not None
        return busy

    def _drain_waits(self, ring: _Ring) -> bool:
        for _ in range(_TURNS):
            found = self._read(_DRAIN_WAITS, ring)
            if not found:
                return False
            ((position, lost, started, data),) = found
            if started != ring.started:
                ring.done = True
                return False
            # what a ring that is older forgot before we came is not our loss
            if lost and (ring.position or ring.started >= self.began):
                self._lose(ring, lost)
            records = wait_ring.decode(bytes(data))
            if not ring.position and ring.started < self.began:
                records = self._since(records, ring)
            self._keep(ring, records)
            ring.position = position
            if len(data) < _MUCH:
                return False
        return True

    def _since(self, records: Records, ring: _Ring) -> Records:
        """Without what was over before the recording began; clocks of rings may have drifted."""
        waits = records["kind"] == Kind.WAIT
        over = records["start_ns"] + np.where(waits, records["value"], 0).astype(np.int64)
        since = epoch_ns(self.began) - ring.started_ns
        return records[over >= min(since, int(over.max(initial=since))) - _SLACK]

    def _keep(self, ring: _Ring, records: Records) -> None:
        waits = records[records["kind"] == Kind.WAIT]
        marks = records[records["kind"] != Kind.WAIT]
        if len(waits):
            self.writer.add(
                Table.WAITS,
                {
                    "ring": np.full(len(waits), ring.number), "event": self._numbers(waits),
                    "gap_ns": waits["start_ns"] + ring.started_ns,
                    "length_ns": waits["value"].astype(np.int64),
                    "calls": waits["calls"].astype(np.int64),
                },
            )  # fmt: skip
            self.kept_waits += len(waits)
        if len(marks):
            self.writer.add(
                Table.MARKS,
                {
                    "ring": np.full(len(marks), ring.number), "kind": marks["kind"].astype(int),
                    "depth": marks["depth"].astype(int),
                    "when_ns": marks["start_ns"] + ring.started_ns,
                    "value": marks["value"].astype(np.int64),
                },
            )  # fmt: skip

    def _numbers(self, waits: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Events by our own numbers, which are small; names of new ones are looked up."""
        codes, which = np.unique(waits["event"], return_inverse=True)
        unknown = [int(code) for code in codes if int(code) not in self.events]
        if unknown:
            names = {code: (kind, name) for code, kind, name in self.server.rows(_NAMES, unknown)}
            first = len(self.events)
            for code in unknown:
                self.events[code] = len(self.events)
            told = [names.get(code) or ("???", f"0x{code:08X}") for code in unknown]
            self.writer.define(
                Table.EVENTS,
                {
                    "event": np.arange(first, first + len(unknown)), "code": np.array(unknown),
                    "class": [(kind or "???").encode() for kind, _ in told],
                    "name": [(name or "???").encode() for _, name in told],
                },
            )  # fmt: skip
        numbers = np.array([self.events[int(code)] for code in codes], np.int64)
        return numbers[np.asarray(which).ravel()]


def rings(server: Server, ended_since: datetime | None) -> list[Traced]:
    """All rings of calls; of sessions that have ended, those that did so since then."""
    return [Traced(*row) for row in server.rows(_SESSIONS, ended_since)]


def _names(session: Traced) -> dict[str, str | None]:
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


def _of_session(started: datetime, session: Traced, calls: _Ring) -> bool:
    """Whether a ring of waits is of a session or its workers: numbers of processes come again."""
    if calls.session_started is None or started < calls.session_started:
        return False
    return session.ended is None or started <= session.ended


def epoch_ns(when: datetime) -> int:
    """A moment in ns since 1970, to the µs."""
    return round(when.timestamp() * 1e6) * 1000
