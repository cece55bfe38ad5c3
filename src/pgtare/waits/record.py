"""Records traces: drains the rings of all traced sessions into the parts of a recording."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg

from pgtare.server import signals
from pgtare.waits import trace
from pgtare.waits.reader import Reader, telling
from pgtare.waits.recording import RecordedSession, Recording, Writer
from pgtare.waits.trace import Kind, Records

#: Pause between two looks at the rings, in s: a ring of the usual size takes a million waits a
#: second for as long.
PAUSE_S = 0.1
#: Rows of a part, and the time after which one is written all the same, in s.
PART_ROWS = 1_000_000
PART_S = 10.0

# Background processes can be traced too; a recording tells of what clients wait for.
# Rings of sessions that ended before the recording are there as well, for a while.
_RINGS = """
SELECT pid, started, ended FROM wait_event_timing_rings()
WHERE pid <> pg_backend_pid() AND (ended IS NULL OR ended >= %s)
AND (backend_type = 'client backend' OR leader_pid IS NOT NULL)
"""
_DRAIN = "SELECT next, lost, started, records FROM wait_event_trace_drain(%s, %s)"
_NAMES = """
SELECT event, wait_event_type, wait_event
FROM unnest(%s::bigint[]) AS event, wait_event_timing_event(event)
"""
_WHO = "SELECT usename, datname, application_name FROM pg_stat_activity WHERE pid = %s"
_UNTRACED = """
SELECT pid, capture FROM pg_stat_wait_event_timing_sessions
WHERE backend_type = 'client backend' AND capture <> 'trace' AND pid <> pg_backend_pid()
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


class Recorder:
    """Drains until told to stop. trace_all: begin to trace every client session, and end it."""

    def __init__(self, reader: Reader, writer: Writer, *, trace_all: bool = False) -> None:
        self.reader, self.writer, self.trace_all = reader, writer, trace_all
        self.rings: dict[tuple[int, datetime], _Ring] = {}
        self.levels: dict[int, str] = {}
        self.events: dict[int, tuple[str, str]] = {}
        self.records = 0
        self.began = datetime.now(UTC)

    def run(self, seconds: float | None, tell: Callable[[Progress], None]) -> Recording:
        """Record for `seconds`, or until a signal asks to stop; what was recorded is kept.

        Raises MeasurementError where the server goes away or the disk is full; the parts written
        until then stay, with a description of them.
        """
        with telling():
            self.began = self.reader.identity()[0]  # by the server's clock, as the records
        limit = math.inf if seconds is None else seconds
        start = written = time.monotonic()
        stopped = "error"
        with signals.asked_to_stop() as asked:
            try:
                while not asked.made and time.monotonic() - start < limit:
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
        if stopped != "error":
            with telling():
                self._untrace()
                self._look()
                texts = self.reader.texts(self.writer.queryids)
        recording = Recording(
            began=self.began,
            seconds=seconds,
            stopped_by=stopped,
            server=str(self.reader.conn.info.server_version),
            sessions=[ring.session for ring in self.rings.values()],
            events={str(event): list(names) for event, names in self.events.items()},
            texts={str(queryid): text for queryid, text in texts.items()},
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
            for pid, started, ended in self.reader.rows(_RINGS, self.began):
                ring = self._ring(pid, started)
                if not ring.done:
                    busy |= self._drain(ring)
                    ring.done = ended is not None
        return busy

    def _ring(self, pid: int, started: datetime) -> _Ring:
        ring = self.rings.get((pid, started))
        if ring is None:
            user, database, application = (self.reader.rows(_WHO, pid) or [(None, None, None)])[0]
            session = RecordedSession(
                number=len(self.rings), pid=pid, started=started, user=user, database=database,
                application=application,
            )  # fmt: skip
            ring = self.rings[pid, started] = _Ring(session)
        return ring

    def _drain(self, ring: _Ring) -> bool:
        session = ring.session
        try:
            with self.reader.conn.cursor() as cursor:
                cursor.execute(_DRAIN, (session.pid, ring.following), binary=True)
                row: Any = cursor.fetchone()
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
        records = trace.decode(data)
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
        queryids, ring.queryid = trace.statements(records, ring.queryid)
        session = ring.session
        number = trace.numbers(records, ring.following)
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
        for pid, level in self.reader.rows(_UNTRACED):
            if pid not in self.levels:
                self.levels[pid] = level
                self.reader.rows("SELECT wait_event_timing_set(%s, 'trace')", pid)

    def _untrace(self) -> None:
        for pid, level in self.levels.items():
            self.reader.rows("SELECT wait_event_timing_set(%s, %s)", pid, level)
        self.levels.clear()
        self.trace_all = False
