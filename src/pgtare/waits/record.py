"""Records traces: drains the rings of all traced sessions into the parts of a recording."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psycopg

from pgtare.errors import UsageError
from pgtare.profile.reader import Reader, telling
from pgtare.server import signals, wait_ring
from pgtare.server.guard import Guard
from pgtare.server.wait_ring import Kind, Records
from pgtare.waits.guard import MODULE, give_back
from pgtare.waits.recording import OpenWait, RecordedSession, Recording, Writer

#: Pause between two looks at the rings, in s: a ring of the usual size takes a million waits a
#: second for as long.
PAUSE_S = 0.1
#: Rows of a part, and the time after which one is written all the same, in s.
PART_ROWS = 1_000_000
PART_S = 10.0

# Background processes can be traced too; a recording tells of what clients wait for.
# Rings of sessions that ended before the recording are there as well, for a while.
_RINGS = """
SELECT pid, started, ended, leader_pid FROM {waits}.wait_event_timing_rings()
WHERE pid <> {own} AND (ended IS NULL OR ended >= %s)
AND (backend_type = 'client backend' OR leader_pid IS NOT NULL)
"""
_DRAIN = "SELECT next, lost, started, records FROM {waits}.wait_event_trace_drain(%s, %s)"
_NAMES = """
SELECT event, wait_event_type, wait_event
FROM unnest(%s::bigint[]) AS event, {waits}.wait_event_timing_event(event)
"""
_WHO = "SELECT usename, datname, application_name FROM pg_stat_activity WHERE pid = %s"
_OPEN = """
SELECT c.pid, c.backend_type, c.wait_event_type, c.wait_event, c.idle,
       CASE a.state WHEN 'active' THEN coalesce(a.query_id, 0) ELSE 0 END, c.wait_start,
       a.usename, a.datname, a.application_name, c.blocking_pids
FROM {waits}.pg_stat_wait_event_timing_current c JOIN pg_stat_activity a USING (pid)
WHERE c.backend_type IN ('client backend', 'parallel worker') AND pid <> {own}
"""
_UNTRACED = """
SELECT pid, a.backend_start FROM {waits}.pg_stat_wait_event_timing_sessions s
JOIN pg_stat_activity a USING (pid)
WHERE s.backend_type = 'client backend' AND s.capture <> 'trace' AND pid <> {own}
"""


_RIGHTS = """
SELECT quote_ident(current_user), format('%I.%I(integer,text)', n.nspname, p.proname),
       has_function_privilege(p.oid, 'EXECUTE')
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
JOIN pg_language l ON l.oid = p.prolang
WHERE l.lanname = 'c' AND p.proname = 'wait_event_timing_set'
"""


@dataclass
class _Ring:
    """One ring, and how far it has been read."""

    session: RecordedSession
    following: int = 0
    queryid: int = 0
    read: bool = False
    done: bool = False


@dataclass(frozen=True)
class Progress:
    """How a recording goes: seconds gone, records kept and lost, sessions seen."""

    seconds: float
    records: int
    lost: int
    sessions: int


def _check_rights(reader: Reader) -> None:
    """Raise UsageError, with the line that mends it, where others cannot be traced."""
    with telling():
        ((user, signature, may_set),) = reader.rows(_RIGHTS)
    missing = []
    if not reader.sees_all:
        missing.append(f"GRANT pg_read_all_stats TO {user}")
    if not may_set:
        missing.append(f"GRANT EXECUTE ON FUNCTION {signature} TO {user}")
    if missing:
        raise UsageError(
            f"to trace every client session, a superuser has to run: {'; '.join(missing)};"
        )


class Recorder:
    """Drains until told to stop. trace_all: begin to trace every client session, and end it.

    dsn: by which a guard reaches the server if we are killed meanwhile. Raises UsageError where it
    may not, before anything is done.
    """

    def __init__(
        self, reader: Reader, dsn: str, directory: Path, *, trace_all: bool = False
    ) -> None:
        if trace_all:
            _check_rights(reader)
        self.writer = Writer(directory)
        self.reader, self.trace_all = reader, trace_all
        self.rings: dict[tuple[int, datetime], _Ring] = {}
        self.traced: dict[int, datetime] = {}
        self.guard = Guard(MODULE, dsn, reader.pid) if trace_all else None
        self.events: dict[int, tuple[str, str]] = {}
        self.records = 0
        self.began = datetime.now(UTC)
        self.waiting: list[OpenWait] = []

    def run(
        self,
        seconds: float | None,
        tell: Callable[[Progress], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> Recording:
        """Record for `seconds`, or until a signal or `stop` ends it; what was recorded is kept.

        Raises MeasurementError where the server goes away or the disk is full; the parts written
        until then stay, with a description of them.
        """
        with telling():
            self.began = self.reader.identity()[0]  # by the server's clock, as the records
            self.waiting = self._open_waits()
        limit = math.inf if seconds is None else seconds
        start = written = time.monotonic()
        stopped = "error"
        with self.guard or contextlib.nullcontext(), signals.asked_to_stop() as asked:
            try:
                while not (asked.made or stop()) and time.monotonic() - start < limit:
                    busy = self._look()
                    now = time.monotonic()
                    if self.writer.rows >= PART_ROWS or now - written >= PART_S:
                        self.writer.flush()
                        written = now
                    tell(self._progress(now - start))
                    if not busy:
                        time.sleep(PAUSE_S)
                stopped = "interrupt" if asked.made else "time"
            finally:
                done = self._finish(time.monotonic() - start, stopped)
        return done

    def _finish(self, seconds: float, stopped: str) -> Recording:
        texts: dict[int, str] = {}
        open_waits: list[OpenWait] = []
        if stopped == "error":  # as of a full disk: what the sessions pay has to end all the same
            with contextlib.suppress(psycopg.Error):
                self._untrace()
        else:
            with telling():
                open_waits = self._open_waits()
                self._untrace()
                self._look()
                self._join(open_waits)
                texts = self.reader.texts(
                    self.writer.queryids | {wait.queryid for wait in open_waits}
                )
        recording = Recording(
            began=self.began,
            seconds=seconds,
            stopped_by=stopped,
            server=str(self.reader.conn.info.server_version),
            sessions=[ring.session for ring in self.rings.values()],
            events={str(event): list(names) for event, names in self.events.items()},
            texts={str(queryid): text for queryid, text in texts.items()},
            waiting_at_begin=self.waiting,
            waiting_at_end=open_waits,
        )
        self.writer.close(recording)
        return recording

    def _progress(self, seconds: float) -> Progress:
        lost = sum(ring.session.lost for ring in self.rings.values())
        return Progress(seconds, self.records, lost, len(self.rings))

    def _look(self) -> bool:
        """Read every ring once; whether one is so full that it wants to be read again at once."""
        with telling():
            if self.trace_all:
                self._trace_new_sessions()
            busy = False
            for pid, started, ended, leader in self.reader.rows(_RINGS, self.began):
                ring = self._ring(pid, started, leader)
                if not ring.done:
                    busy |= self._drain(ring)
                    ring.done = ended is not None
        return busy

    def _open_waits(self) -> list[OpenWait]:
        return [
            OpenWait(
                pid=pid, backend_type=backend_type, type=kind, event=name, idle=idle,
                queryid=queryid, started=started, user=user, database=database,
                application=application, blocked_by=blocked or [],
            )
            for (
                pid, backend_type, kind, name, idle, queryid, started, user, database,
                application, blocked,
            ) in self.reader.rows(_OPEN)
        ]  # fmt: skip

    def _join(self, open_waits: list[OpenWait]) -> None:
        """One wait of a session without a record is the one it was in at the beginning.

        A wake-up, as by our own switching its trace on, begins the wait under way anew.
        """
        traced = {ring.session.pid for ring in self.rings.values() if ring.session.records}
        first = {(w.pid, w.type, w.event, w.queryid): w.started for w in self.waiting}
        for wait in open_waits:
            began = first.get((wait.pid, wait.type, wait.event, wait.queryid))
            if began is not None and wait.pid not in traced:
                wait.started = min(wait.started, began)

    def _ring(self, pid: int, started: datetime, leader: int | None) -> _Ring:
        ring = self.rings.get((pid, started))
        if ring is None:
            # a worker may have ended already, and is its leader's in any case
            known = self.reader.rows(_WHO, leader or pid) or [(None, None, None)]
            user, database, application = known[0]
            session = RecordedSession(
                number=len(self.rings), pid=pid, started=started, user=user, database=database,
                application=application, leader_pid=leader,
            )  # fmt: skip
            ring = self.rings[pid, started] = _Ring(session)
        return ring

    def _drain(self, ring: _Ring) -> bool:
        session = ring.session
        try:
            (row,) = self.reader.rows(_DRAIN, session.pid, ring.following, binary=True)
        except psycopg.errors.UndefinedObject:  # the server gave it up for a newer one
            ring.done = session.gone = True
            return False
        except psycopg.errors.InsufficientPrivilege:
            ring.done = session.refused = True
            return False
        following, lost, started, data = row
        if started != session.started:  # the process identifier is another session's now
            ring.done = session.gone = True
            return False
        records = wait_ring.decode(data)
        ring.following = following
        # What a ring had forgotten before the recording began is not a loss of the recording.
        if not ring.read and session.started < self.began:
            session.before += lost
        else:
            session.lost += lost
        ring.read = True
        if len(records):
            self._keep(ring, records)
        return len(records) > 50_000

    def _keep(self, ring: _Ring, records: Records) -> None:
        queryids, ring.queryid = wait_ring.statements(records, ring.queryid)
        session = ring.session
        number = wait_ring.numbers(records, ring.following)
        self._learn_names(records)
        epoch_ns = round(session.started.timestamp() * 1e6) * 1000
        self.writer.add(
            {
                "session": np.full(len(records), session.number, np.int32),
                "number": number,
                "kind": records["kind"],
                "depth": records["depth"],
                "event": records["event"],
                "calls": records["calls"],
                "start_ns": records["start_ns"] + epoch_ns,
                "value": records["value"],
                "queryid": queryids,
            }
        )
        session.records += len(records)
        self.records += len(records)

    def _learn_names(self, records: Records) -> None:
        """Records have numbers for events: look up the names of those not met before."""
        met = np.unique(records["event"][records["kind"] == Kind.WAIT])
        unknown = [int(event) for event in met if int(event) not in self.events]
        if unknown:
            for event, kind, name in self.reader.rows(_NAMES, unknown):
                self.events[event] = (kind, name)

    def _trace_new_sessions(self) -> None:
        for pid, started in self.reader.rows(_UNTRACED):
            if self.traced.get(pid) != started:
                if self.guard is not None:
                    self.guard.armed(pid, started.isoformat())
                self.traced[pid] = started
                self.reader.rows("SELECT {waits}.wait_event_timing_set(%s, 'trace')", pid)

    def _untrace(self) -> None:
        """Give each session back to its configuration."""
        if self.traced:
            give_back(self.reader, self.traced)
        if self.guard is not None:
            self.guard.dismiss()
        self.traced.clear()
        self.trace_all = False
