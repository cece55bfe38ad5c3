"""Records a trace: arms sessions, drains their rings into a file, and gives the sessions back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

import pgtare
from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import machine
from pgtare.kit.notes import alike, who
from pgtare.observing.trace.analysis.tracing_cost import Costs
from pgtare.observing.trace.capture import open_waits
from pgtare.observing.trace.capture.arming import Arming
from pgtare.observing.trace.capture.drain import Drain, rings
from pgtare.observing.trace.capture.open_waits import OpenWait
from pgtare.observing.trace.capture.recorder_guard import Guard
from pgtare.observing.trace.capture.ring_selection import Choice
from pgtare.observing.trace.capture.server import Server, require_outside, telling
from pgtare.observing.trace.capture.target import NUMBERING, Target, check, unnumbered
from pgtare.observing.trace.documents import Losses, TraceRecorded
from pgtare.observing.trace.file.disk_limits import LimitReached, Limits
from pgtare.observing.trace.file.reader import unread_note, unwritten_note
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer
from pgtare.postgres import pooler, run_queue, signals
from pgtare.postgres.wait_counters.reader import Reader

#: Pause between two looks at the rings, in s, and the longest time before rows are on disk.
PAUSE_S = 0.1
FLUSH_S = 2.0

#: What a recording says if statements have no identifiers.
UNNUMBERED = (
    "without query identifiers statements are distinguished by their text without literals, so a "
    "list of another length is another statement; before the next "
    f"recording, as a superuser: {NUMBERING}"
)
_NO_STATEMENTS = (
    "without query identifiers all statements are one; before the next recording, as a superuser: "
    + NUMBERING
)


class TraceRecorder:
    """Records until it is stopped. Raises UsageError before anything is begun that cannot be."""

    def __init__(
        self,
        server: Server,
        dsn: str,
        path: Path,
        target: Target,
        limits: Limits,
        command: list[str] | None = None,
    ) -> None:
        self.server, self.target, self.path = server, target, path
        if server.has_calls and not target.armed_only:
            # its locks tell other recordings which sessions it answers for
            pooler.require_one_session(server.conn, dsn, "recording a trace of calls")
        pid = pooler.backend_pid(server.conn)
        self.guard = Guard(dsn, pid, calls=server.has_calls)
        try:
            server.level(None if target.armed_only else target.level)
            if not target.armed_only:
                check(server, target)
            require_outside(server, path)
            with telling():
                earlier = rings(server, None)
                ((self.began, version),) = server.rows(
                    "SELECT clock_timestamp(), current_setting('server_version_num')"
                )
                self.unnumbered = unnumbered(server)
                # a session that is not asked for can answer unnoticed, and wait anew
                asks = self._takes_waits and not target.armed_only
                self.waits_first = open_waits.look(server)[1] if asks else []
            document = {
                "pgtare": pgtare.__version__,
                "began": self.began.isoformat(),
                "server": version,
                "level": None if target.armed_only else target.level,  # then settings say
                "command": command or [],
                "calls": server.has_calls,
                "costs": dataclasses.asdict(self._costs()),
            }
            self.writer = Writer(path, json.dumps(document).encode(), limits)
        except BaseException:
            self.guard.__exit__(None, None, None)
            raise
        self.choice = Choice(target, self.began, {ring.key: ring.bytes or 0 for ring in earlier})
        self.arming = Arming(server, target, self.guard, self.choice)
        self.drain = Drain(server, self.writer, self.choice, waits=server.has_waits)
        self.until: datetime | None = None
        self.notes: list[str] = []
        self._schedstat = run_queue.is_local(server.conn.info.host, pid)

    @property
    def _takes_waits(self) -> bool:
        return self.server.has_waits and (self.target.armed_only or self.target.level >= 8)

    def _costs(self) -> Costs:
        """What the trace takes of its sessions, with this server's clock if it is known."""
        with contextlib.suppress(Exception):
            query = "SELECT clock_read_ns FROM {waits}.wait_event_timing_info()"
            ((reading,),) = self.server.rows(query)
            return Costs(reading_ns=float(reading))
        return Costs()

    def run(
        self,
        seconds: float | None,
        tell: Callable[[TraceRecorder], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> TraceRecorded:
        """Record for `seconds`, or until a signal or `stop` ends it; what was recorded is kept.

        Raises MeasurementError if the server goes away; what was written until then stays.
        """
        limit = math.inf if seconds is None else seconds
        start = time.monotonic()
        with self.guard, signals.asked_to_stop() as asked:
            try:
                stopped, why = self._loop(start, limit, lambda: asked.made or stop(), tell)
            except MeasurementError as ex:
                self._end("error", str(ex))
                raise MeasurementError(f"{ex}; {self.path} holds what came before") from ex
            except UsageError as ex:  # a right was revoked
                if not self.arming.armed:
                    self._end("error", str(ex))
                    raise
                stopped, why = "error", str(ex)
            return self._finish(stopped, why, start)

    def _loop(
        self,
        start: float,
        limit: float,
        asked: Callable[[], bool],
        tell: Callable[[TraceRecorder], None],
    ) -> tuple[str, str]:
        flushed = start
        try:
            while not asked() and time.monotonic() - start < limit:
                with telling():
                    self.arming.arm_new()
                    busy = self.drain.look()
                self._sample_processor()
                now = time.monotonic()
                if now - flushed >= FLUSH_S:
                    self.writer.flush(sync=True)
                    flushed = now
                tell(self)
                if not busy:
                    time.sleep(min(PAUSE_S, max(limit - (now - start), 0.0)))
        except LimitReached as ex:
            return ex.limit, str(ex)
        return ("interrupt", "") if asked() else ("time", "")

    def _finish(self, stopped: str, why: str, start: float) -> TraceRecorded:
        guarded, still_traced = False, list[int]()
        with signals.deferred():
            try:
                with telling():
                    try:
                        # before it is given back: a session that is woken waits anew
                        now, waits = (
                            open_waits.look(self.server) if self._takes_waits else (self.began, [])
                        )
                    finally:
                        self.arming.disarm()
                    if stopped not in ("size", "space"):
                        for _ in range(100):
                            if not self.drain.look():
                                break
                        self._keep_open_waits(waits, now)
                        self._keep_texts()
                self._sample_processor()
            except LimitReached as ex:
                stopped, why = ex.limit, str(ex)
            except (MeasurementError, UsageError) as ex:  # the file has to say it as well
                if str(ex) != why:
                    self.notes.append(f"{ex}; what sessions did last may be missing")
                guarded = isinstance(ex, MeasurementError)
            if self.arming.armed and not guarded:
                # the right to give them back was revoked, and our guard has no more than we have
                self.guard.dismiss()
                still_traced = sorted(self.arming.armed)
                left = who("session", still_traced)
                give_back = f"SELECT {self.server.setter_name}(pid, NULL)"
                self.notes.append(f"may still be traced: {left}; {give_back} ends that")
            seconds = time.monotonic() - start
            stopped, why = self._end(stopped, why)
            nobody = not (self.drain.sessions or self.drain.unread.sessions)
            if (nobody or stopped == "space") and self.writer.holds_nothing:
                self.writer.discard()
        drain, unread = self.drain, self.drain.unread
        hints = []
        if self.unnumbered and (drain.sessions or self.target.armed_only):
            hints.append(UNNUMBERED if self.server.has_calls else _NO_STATEMENTS)
        notes = []
        no_bytes, no_waits = self._unwritten()
        if no_bytes or no_waits:
            notes.append(unwritten_note(no_bytes, no_waits))
        if unread.sessions:
            notes.append(unread_note(unread.sessions, unread.records, unread.bytes))
        return TraceRecorded(
            path=str(self.path),
            duration_s=seconds,
            stopped_by=stopped,
            why=why,
            calls=self.server.has_calls,
            sessions=drain.sessions,
            call_bytes=self.writer.taken[Table.STREAM] - no_bytes,
            waits=self.writer.taken[Table.WAITS] - no_waits,
            bytes=self.writer.written,
            lost_bytes=drain.lost_bytes,
            lost_waits=drain.lost_waits,
            losses=[
                Losses(pid=pid, lost_bytes=calls, lost_waits=waits)
                for pid, (calls, waits) in drain.losses().items()
            ],
            unwritten_bytes=no_bytes,
            unwritten_waits=no_waits,
            unread_sessions=unread.sessions,
            unread_records=unread.records,
            unread_bytes=unread.bytes,
            still_traced=still_traced,
            notes=[*self.arming.notes, *hints, *self.notes, *notes],
        )

    def _keep_open_waits(self, waits: list[OpenWait], now: datetime) -> None:
        """Waits that no ring has: those under way, and those of sessions that never answered."""
        taken = self.drain.keep_open_waits(waits, now, idle=False)
        if not (self.target.armed_only and self.server.has_calls):
            untraced = [
                wait
                for wait in open_waits.throughout(self.waits_first, waits, self.began)
                if not self.drain.knows(wait.pid) and self._means(wait)
            ]
            for wait in untraced:
                self.drain.keep_untraced(wait, now)
            if untraced:
                self.notes.append(open_waits.note(untraced, now))
            taken += untraced
        self.until = now if taken else None

    def _means(self, wait: OpenWait) -> bool:
        names = wait.user, wait.database, wait.application
        return wait.leader_pid is None and self.choice.means(wait.pid, wait.session_started, *names)

    def _keep_texts(self) -> None:
        """What statements say of which there are only identifiers, if the server knows."""
        if not self.drain.query_ids:
            return
        reader = Reader(self.server.conn, any_version=True)
        if found := reader.texts(self.drain.query_ids):
            texts = [text.encode() for text in found.values()]
            query_ids = np.array(list(found), np.int64)
            self.writer.add(Table.TEXTS, {"query_id": query_ids, "text": texts})

    def _unwritten(self) -> tuple[int, int]:
        unwritten = self.writer.unwritten
        return unwritten[Table.STREAM], unwritten[Table.WAITS]

    def _end(self, stopped: str, why: str) -> tuple[str, str]:
        """Close the file; what stopped it, as the last rows may have no room either."""
        try:
            self.writer.flush()
        except LimitReached as ex:
            if not why:
                stopped, why = ex.limit, str(ex)
        self.notes += alike("process", self.drain.unreadable())
        # times of calls have their own clock, and waits follow it
        behind = {} if self.server.has_calls else self.drain.behind()
        self.notes += alike(
            "process",
            (
                (pid, f"the clock of its trace was {ns / 1e9:.0f} s behind; its times are moved")
                for pid, ns in behind.values()
            ),
        )
        unwritten = dict(zip(("bytes", "waits"), self._unwritten(), strict=True))
        document: dict[str, Any] = {
            "stopped_by": stopped,
            "why": why,
            "notes": [*self.arming.notes, *self.notes],
            "until": self.until.isoformat() if self.until else None,
            "unwritten": unwritten,
            "unread": dataclasses.asdict(self.drain.unread),
            "behind": {str(ring): ns for ring, (_, ns) in behind.items()},
        }
        try:
            self.writer.close(json.dumps(document).encode())
        except LimitReached as ex:
            if not why:
                stopped, why = ex.limit, str(ex)
        return stopped, why

    def _sample_processor(self) -> None:
        """How long each traced process has run and has waited for a processor, by the kernel."""
        if not self._schedstat:
            return
        rows = []
        for kind in (self.drain.calls, self.drain.rings):
            for ring in kind.values():
                if not ring.done and (found := machine.schedstat(ring.pid)) is not None:
                    rows.append((ring.number, time.time_ns(), *found))
        if rows:
            columns = np.array(rows, np.int64).T
            names = ("ring", "when_ns", "cpu_ns", "queue_ns")
            with contextlib.suppress(LimitReached):
                self.writer.add(Table.PROCESSOR, dict(zip(names, columns, strict=True)))
