"""Asks the server to trace the sessions that are meant, and gives them back."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from datetime import datetime

from pgtare.kit.notes import alike, who
from pgtare.observing.trace.capture import recorder_locks
from pgtare.observing.trace.capture.recorder_guard import Guard
from pgtare.observing.trace.capture.ring_selection import Choice, Key
from pgtare.observing.trace.capture.server import Server
from pgtare.observing.trace.capture.target import BY_RECORDER, BY_STATEMENT, Target
from pgtare.postgres import pooler

_CLIENTS = """
SELECT a.pid, a.backend_start, a.usename, a.datname, a.application_name, coalesce(s.level, 0),
       s.reason, s.started, s.bytes
FROM pg_stat_activity a
LEFT JOIN {trace}.sql_trace_sessions() s ON s.pid = a.pid AND s.ended IS NULL
WHERE a.backend_type = 'client backend' AND a.pid <> {own} ORDER BY a.pid
"""
#: The same of waits alone; nothing tells who had them traced, nor how much its ring holds: that is
#: what is older than now.
_CLIENTS_OF_WAITS = """
SELECT a.pid, a.backend_start, a.usename, a.datname, a.application_name,
       CASE s.capture WHEN 'trace' THEN 8 ELSE 0 END, 'wait_event_timing.capture', r.started,
       clock_timestamp()
FROM pg_stat_activity a
LEFT JOIN {waits}.pg_stat_wait_event_timing_sessions s USING (pid)
LEFT JOIN {waits}.wait_event_timing_rings() r ON r.pid = a.pid AND r.ended IS NULL
WHERE a.backend_type = 'client backend' AND a.pid <> {own} ORDER BY a.pid
"""
#: Why a session is traced, or is not any more: somebody called this for it.
_SET = "sql_trace_set"


@dataclass
class _Session:
    """A session that is meant. traced: it was when we last looked; over: we let it be."""

    traced: bool = False
    over: bool = False


@dataclass
class Arming:
    """Sessions that we have asked the server to trace; `guard` gives them back if we die."""

    server: Server
    target: Target
    guard: Guard
    choice: Choice
    armed: dict[int, datetime] = field(default_factory=dict)
    _kept: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _said: list[tuple[int, str]] = field(default_factory=list)
    _sessions: dict[Key, _Session] = field(default_factory=dict)

    def arm_new(self) -> None:
        """Ask for sessions that match and that we have not met yet, and for those we have lost."""
        if self.target.armed_only:
            return
        query = _CLIENTS if self.server.has_calls else _CLIENTS_OF_WAITS
        clients = self.server.rows(query)
        self._let_go_of_ended({(pid, started) for pid, started, *_ in clients})
        for pid, started, *names, level, reason, ring, held in clients:
            if not self.choice.means(pid, started, *names):
                continue
            traced = level > 0 and reason not in (BY_STATEMENT, BY_RECORDER)
            session = self._sessions.get((pid, started))
            if session is None:
                session = self._sessions[pid, started] = _Session(traced)
                self.choice.found((pid, started), ring, held)
                if traced:
                    self._leave(pid, started, level, reason)
                else:
                    self._arm(pid, started)
            elif traced or not session.traced or session.over:
                session.traced |= traced
            elif reason == _SET:
                session.over = True
                self._said.append((pid, f"no longer traced: {_SET}(..., 0) was called for it"))
            else:
                session.traced = False
                self._said.append(
                    (
                        pid,
                        "no longer traced in mid-recording, and asked for again, at level "
                        f"{self.target.level}: what it did in between is missing",
                    )
                )
                self._arm(pid, started)

    def _let_go_of_ended(self, live: Set[Key]) -> None:
        """Nothing is left to give back of them; a lock for each would fill the server's table."""
        gone = (self._sessions.keys() | self.armed.items()) - live
        hidden = recorder_locks.hidden(self.server, {pid for pid, _ in gone})
        for pid, started in gone:
            if pid in hidden:
                continue
            self._sessions.pop((pid, started), None)
            if self.armed.get(pid) == started:
                recorder_locks.let_go(self.server, pid)
                self.guard.let_go(pid)
                del self.armed[pid]

    def _arm(self, pid: int, started: datetime) -> None:
        self._answer_for(pid, started)
        self.server.trace(pid, self.target.level)

    def _leave(self, pid: int, started: datetime, level: int, reason: str | None) -> None:
        """It is traced already, at its own level: that is not ours to change."""
        by = {"application": "sql_trace.application", "setting": "sql_trace.level"}.get(
            reason or "", reason or "sql_trace.level"
        )
        others = [pooler.backend_pid(self.server.conn)]
        asked = reason == _SET or not self.server.has_calls
        if asked and recorder_locks.owned(self.server, [pid], others):
            by = "another recording"
            self._answer_for(pid, started)  # when that one ends, it leaves the session to us
        self._kept.setdefault((by, level), []).append(pid)

    @property
    def notes(self) -> list[str]:
        """What the reader of the recording has to know of how traces were requested."""
        sentences = []
        for (by, level), pids in self._kept.items():
            ours = self.target.level
            other = f"; --level {ours} was left aside" if level != ours else ""
            sentences.append(
                f"traced already, by {by}, at level {level}, which was kept: "
                f"{who('session', pids)}{other}"
            )
        return [*sentences, *alike("session", self._said)]

    def _answer_for(self, pid: int, started: datetime) -> None:
        if self.armed.get(pid) == started:
            return
        self.guard.armed(pid, started.isoformat())
        recorder_locks.own(self.server, pid)
        self.armed[pid] = started

    def disarm(self) -> None:
        """Give every session back to its settings. Those that have ended are no trouble.

        Those that we may not give back any more stay in `armed`.
        """
        if self.armed:
            left = recorder_locks.give_back(self.server, self.armed)
            self.armed = {pid: self.armed[pid] for pid in left}
        self.guard.dismiss()
