"""Records traces: drains the rings of all traced sessions into the parts of a recording."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from pgtare.errors import DiskFull, MeasurementError, UsageError
from pgtare.seeing.waits.recorder_guard import MODULE, give_back
from pgtare.seeing.waits.recording import OpenWait, RecordedSession, Recording, Writer
from pgtare.server import signals, statement_spans, wait_ring
from pgtare.server.recorder_guard import Guard
from pgtare.server.wait_counters.reader import Reader, telling
from pgtare.server.wait_ring import FoundRing, Records, RingRecordKind, WaitRing

#: Pause between two looks at the rings, in s: a ring of the usual size takes a million waits a
#: second for as long.
PAUSE_S = 0.1
#: Rows of a part, and the time after which one is written all the same, in s.
PART_ROWS = 1_000_000
PART_S = 10.0

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
    """One ring, its session, and the statement that ran when it was read last."""

    session: RecordedSession
    wait_ring: WaitRing
    query_id: int = 0


@dataclass(frozen=True)
class Progress:
    """How a recording goes: seconds gone, records kept and lost, sessions seen."""

    seconds: float
    records: int
    lost: int
    sessions: int


def _check_rights(reader: Reader) -> None:
    """Raise UsageError, with the line that mends it, if others cannot be traced."""
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


class WaitRecorder:
    """Drains until it is stopped. trace_all: begin to trace every client session, and end it.

    dsn: by which a guard reaches the server if we are killed. Raises UsageError, before
    anything is done, if that is not allowed.
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

        Raises MeasurementError if the server goes away; the parts written until then stay, with
        a description of them. A full disk ends the recording, and is what it was stopped by.
        """
        try:
            with telling():
                self.began = self.reader.identity()[0]  # by the server's clock, as the records
                self.waiting = self._open_waits()
        except MeasurementError:
            self.writer.discard()
            raise
        limit = math.inf if seconds is None else seconds
        start = time.monotonic()
        stopped = "error"
        with self.guard or contextlib.nullcontext(), signals.asked_to_stop() as asked:
            try:
                self._loop(start, lambda now: asked.made or stop() or now - start >= limit, tell)
                stopped = "interrupt" if asked.made else "time"
            except DiskFull:
                stopped = "space"
            finally:
                done = self._finish(time.monotonic() - start, stopped)
        return done

    def _loop(
        self, start: float, ended: Callable[[float], bool], tell: Callable[[Progress], None]
    ) -> None:
        written = start
        while not ended(now := time.monotonic()):
            busy = self._look()
            if self.writer.rows >= PART_ROWS or now - written >= PART_S:
                self.writer.keep_room(self._described(now - start, "error"))
                self.writer.flush()
                written = now
            tell(self._progress(now - start))
            if not busy:
                time.sleep(PAUSE_S)

    def _finish(self, seconds: float, stopped: str) -> Recording:
        texts: dict[int, str] = {}
        open_waits: list[OpenWait] = []
        failure: MeasurementError | None = None
        if stopped == "error":  # what the sessions pay has to end all the same
            with contextlib.suppress(psycopg.Error):
                self._untrace()
        else:
            try:
                with telling():
                    open_waits = self._open_waits()
                    self._untrace()
                    if stopped != "space":
                        self._look()
                    self._join(open_waits)
                    texts = self.reader.texts(
                        self.writer.query_ids | {wait.query_id for wait in open_waits}
                    )
            except MeasurementError as ex:  # what was recorded can be read all the same
                failure = ex
        try:
            self.writer.flush()
        except DiskFull:
            stopped = stopped if stopped == "error" else "space"
        except MeasurementError as ex:
            failure = failure or ex
        recording = self._described(seconds, "error" if failure else stopped, texts, open_waits)
        for session, rows in self.writer.unwritten().items():
            recording.sessions[session].records -= rows
            recording.sessions[session].unwritten = rows
        self.writer.close(recording)
        if failure is not None:
            raise failure
        return recording

    def _described(
        self,
        seconds: float,
        stopped: str,
        texts: Mapping[int, str] | None = None,
        open_waits: Sequence[OpenWait] = (),
    ) -> Recording:
        return Recording(
            started=self.began,
            duration_s=seconds,
            stopped_by=stopped,
            server=str(self.reader.conn.info.server_version),
            sessions=[ring.session for ring in self.rings.values()],
            events={str(event): list(names) for event, names in self.events.items()},
            texts={str(query_id): text for query_id, text in (texts or {}).items()},
            waiting_at_start=self.waiting,
            waiting_at_end=list(open_waits),
        )

    def _progress(self, seconds: float) -> Progress:
        lost = sum(ring.session.lost for ring in self.rings.values())
        return Progress(seconds, self.records, lost, len(self.rings))

    def _look(self) -> bool:
        """Read every ring once; whether one is so full that it wants to be read again at once."""
        with telling():
            if self.trace_all:
                self._trace_new_sessions()
            busy = False
            for found in wait_ring.rings(self._rows, self.began):
                # background processes can be traced too; a recording is of what clients wait for
                if found.backend_type != "client backend" and found.leader_pid is None:
                    continue
                ring = self._ring(found)
                if not ring.wait_ring.done:
                    busy |= self._drain(ring)
                    ring.wait_ring.done = found.ended is not None
        return busy

    def _open_waits(self) -> list[OpenWait]:
        return [
            OpenWait(
                pid=pid,
                backend_type=backend_type,
                type=kind,
                event=name,
                idle=idle,
                query_id=query_id,
                started=started,
                user=user,
                database=database,
                application=application,
                blocked_by=blocked or [],
            )
            for (
                pid,
                backend_type,
                kind,
                name,
                idle,
                query_id,
                started,
                user,
                database,
                application,
                blocked,
            ) in self.reader.rows(_OPEN)
        ]

    def _join(self, open_waits: list[OpenWait]) -> None:
        """One wait of a session without a record is the one it was in at the beginning.

        A wake-up, as by our own switching its trace on, begins the wait under way anew.
        """
        traced = {ring.session.pid for ring in self.rings.values() if ring.session.records}
        first = {(w.pid, w.type, w.event, w.query_id): w.started for w in self.waiting}
        for wait in open_waits:
            began = first.get((wait.pid, wait.type, wait.event, wait.query_id))
            if began is not None and wait.pid not in traced:
                wait.started = min(wait.started, began)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self.reader.rows(query, *values, binary=True)

    def _ring(self, found: FoundRing) -> _Ring:
        ring = self.rings.get((found.pid, found.started))
        if ring is None:
            # a worker may have ended already, and is its leader's in any case
            known = self.reader.rows(_WHO, found.leader_pid or found.pid) or [(None, None, None)]
            user, database, application = known[0]
            session = RecordedSession(
                number=len(self.rings),
                pid=found.pid,
                started=found.started,
                user=user,
                database=database,
                application=application,
                leader_pid=found.leader_pid,
            )
            ring = _Ring(session, WaitRing(found.pid, found.started))
            self.rings[found.pid, found.started] = ring
        return ring

    def _drain(self, ring: _Ring) -> bool:
        session, source = ring.session, ring.wait_ring
        records = source.drain(self._rows, self.began)
        session.gone, session.refused = source.gone, source.refused
        session.lost, session.before = source.lost, source.before
        if len(records):
            self._keep(ring, records)
        return len(records) > 50_000

    def _keep(self, ring: _Ring, records: Records) -> None:
        query_ids, ring.query_id = statement_spans.running(
            records["kind"], records["depth"], records["value"], ring.query_id
        )
        session = ring.session
        number = wait_ring.numbers(records, ring.wait_ring.position)
        self._learn_names(records)
        self.writer.add(
            {
                "session": np.full(len(records), session.number, np.int32),
                "number": number,
                "kind": records["kind"],
                "depth": records["depth"],
                "event": records["event"],
                "calls": records["calls"],
                "start_ns": records["start_ns"] + ring.wait_ring.started_ns,
                "value": records["value"],
                "query_id": query_ids,
            }
        )
        session.records += len(records)
        self.records += len(records)

    def _learn_names(self, records: Records) -> None:
        """Records have numbers for events: look up the names of those not met before."""
        met = np.unique(records["event"][records["kind"] == RingRecordKind.WAIT])
        unknown = [int(event) for event in met if int(event) not in self.events]
        if unknown:
            self.events |= wait_ring.event_names(self._rows, unknown)

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
