"""Watches one server in a thread: connects, looks when it is time, connects again."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable

import psycopg

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.keeping.agent.bounded_connection import AnswerBeyondBounds
from pgtare.keeping.agent.config import Intervals
from pgtare.keeping.agent.grid import LookGrid, stagger
from pgtare.keeping.agent.reading import CAPTURE_OFF, UnsteadyReading
from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_findings import EVALUATION_S
from pgtare.keeping.agent.server_looks import (
    ACTIVITY,
    SESSIONS,
    STATEMENTS,
    WAITS,
    ServerLooks,
)
from pgtare.keeping.agent.server_session import (
    AgentLocked,
    LookRefused,
    Offer,
    ServerGone,
    ServerSession,
    SessionIdentity,
)
from pgtare.keeping.agent_log import AgentLog
from pgtare.observing.findings.read import Unreadable
from pgtare.postgres.inventory import InventoryServer

FINDINGS, EVALUATION = "findings", "evaluation"
#: Between two attempts to connect, in s: at first, and at most.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0
#: How long a look is left out whose answer was beyond all bounds, in s: at first, and at most.
_FIRST_LEFT_OUT_S, _LONGEST_LEFT_OUT_S = 10.0, 3600.0
#: Looks that two servers should not make at once are spread over this many s.
_SPREAD_S = 10.0

#: Evaluations may become this many times rarer at most, as each covers the last 20 s.
_RAREST_EVALUATION = 2
#: How often the agent looks for an extension that has come or gone, in s.
_OFFER_S = 300.0

#: Takes what a look brought, of a server.
Collect = Callable[[str, Batch], None]
#: The names that an agent watches, in their order, and the last session of each.
Sessions = Callable[[], list[tuple[str, SessionIdentity | None]]]


class ServerWatch(threading.Thread):
    """One server that is watched, until `stop` is set.

    alone: no other one is watched. earlier: the watch that this one goes on for; its session may
    still hold the lock. sessions: if several names lead to one server, the first one is watched.
    """

    def __init__(
        self,
        looks: ServerLooks,
        server: InventoryServer,
        intervals: Intervals,
        collect: Collect,
        log: AgentLog,
        *,
        alone: bool = False,
        earlier: ServerWatch | None = None,
        sessions: Sessions = list,
    ) -> None:
        super().__init__(name=f"watch {looks.name}", daemon=True)
        self.looks, self.server, self.intervals = looks, server, intervals
        self.name_of_server = looks.name
        self.stop = threading.Event()
        self.failure: PgtareError | None = None
        """why the server is not watched now"""
        self.connected = False
        self.was_connected: bool = earlier is not None and earlier.was_connected
        self.began = time.monotonic()
        self.session: SessionIdentity | None = earlier.session if earlier is not None else None
        """the last session that held the lock"""
        self._collect, self._log, self._sessions_of_all = collect, log, sessions
        self._refused: set[str] = set()
        spread = min(_SPREAD_S, intervals.waits)
        phase = 0.0 if alone else stagger(looks.name) * spread
        self._grids = {
            name: LookGrid(getattr(intervals, name), phase % getattr(intervals, name))
            for name in (WAITS, STATEMENTS, SESSIONS, ACTIVITY, FINDINGS)
        }
        self._grids[EVALUATION] = LookGrid(EVALUATION_S, phase % EVALUATION_S, _RAREST_EVALUATION)
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._left_out_s: dict[str, float] = {}
        """for how long looks are left out whose answer was beyond all bounds"""
        self._looking: str | None = None
        """the look that is being made"""
        self._nested_s = 0.0
        """how long other looks took that were made within it"""
        self._settings: str | None = None

    def run(self) -> None:
        pause = _FIRST_PAUSE_S
        self._describe(None)
        while not self.stop.is_set():
            began_us = time.time_ns() // 1000
            beyond, self._looking = False, None
            try:
                try:
                    with ServerSession(self.server.dsn, ended=self._ended()) as session:
                        self.session = session.identity
                        self._watch(session)
                finally:
                    reached, self.connected = self.connected, False
            except PgtareError as ex:
                if isinstance(ex, AgentLocked):
                    ex = self._locked(ex)
                self.failure = ex
                beyond = self._note_beyond(ex, began_us)
                event = "locked" if isinstance(ex, AgentLocked) else "unreachable"
                if not beyond:
                    self._log.once("error", event, self.name_of_server, str(ex))
            except psycopg.Error as ex:
                self.failure = MeasurementError(f"the session ended: {ex}")
                self._log.once("error", "unreachable", self.name_of_server, str(self.failure))
            except Exception as ex:  # one server must not end the watch of the others
                self.failure = MeasurementError(f"{type(ex).__name__}: {ex}")
                self._log.once("error", "failed", self.name_of_server, str(self.failure))
            reached = reached and not beyond
            pause = _FIRST_PAUSE_S if reached else min(_LONGEST_PAUSE_S, 2 * pause)
            self.stop.wait(pause)

    def _ended(self) -> set[SessionIdentity]:
        """Sessions that must make way: the earlier one of this name, and those of later names."""
        names = self._sessions_of_all()
        later = itertools.dropwhile(lambda each: each[0] != self.name_of_server, names)
        found = {self.session, *(session for _, session in later)}
        return {session for session in found if session is not None}

    def _locked(self, error: AgentLocked) -> AgentLocked:
        """The error, with the name by which this agent watches the server, if it is the one."""
        for name, session in self._sessions_of_all():
            if error.by is not None and error.by == session and name != self.name_of_server:
                return AgentLocked(
                    f"this agent watches this server as {name} now; {self.name_of_server} is "
                    "watched again once it leads to another server",
                    error.by,
                )
        return error

    def _note_beyond(self, error: BaseException, began_us: int) -> bool:
        """Report what has not been read because an answer was beyond all bounds, if that is why.

        The look is then left out for a while, so that the others go on. began_us: when the session
        began.
        """
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, AnswerBeyondBounds):
            cause = cause.__cause__
        if cause is None:
            return False
        now, last, why = time.monotonic(), max(self._last.values(), default=-math.inf), str(cause)
        if (look := self._looking) is not None:
            pause_s = 2 * self._left_out_s.get(look, _FIRST_LEFT_OUT_S / 2)
            self._left_out_s[look] = min(_LONGEST_LEFT_OUT_S, pause_s)
            self._due[look] = now + self._left_out_s[look]
            last, why = self._last.get(look, -math.inf), f"{look} are left out for a while: {why}"
        since_us = max(began_us, time.time_ns() // 1000 - round(1e6 * min(now - last, 1e9)))
        self._hand_on(self.looks.refused("lost", since_us, why))
        self._log.once("error", "beyond_bounds", self.name_of_server, why)
        return True

    def _describe(self, offer: Offer | None) -> None:
        self._hand_on(self.looks.description.changed(self.server.labels, offer))

    def _watch(self, session: ServerSession) -> None:
        offer = session.offer
        self.looks.begin(session)
        self.looks.findings.between = lambda: self._look_at_moment(session)
        self._describe(offer)
        self.failure, self.connected, self.was_connected = None, True, True
        for event in ("unreachable", "locked", "failed"):
            self._log.forget(event, self.name_of_server)
        self._log.write(
            "info",
            "connected",
            self.name_of_server,
            version=offer.version,
            standby=offer.standby,
            waits="exact" if offer.waits else "sampled",
        )
        for missing in offer.unseen:
            self._log.once("warning", "unseen", self.name_of_server, missing)
        not_offered = set() if offer.waits else {WAITS, STATEMENTS}
        self._refused = set(not_offered)
        now = time.monotonic()
        self._due |= {name: now for name in self._grids if name not in self._left_out_s}
        self._last.pop(FINDINGS, None)
        if FINDINGS not in self._left_out_s:
            self._due[FINDINGS] = now + min(_SPREAD_S, self.intervals.waits)
        offered = now
        while not self.stop.wait(max(0.0, min(self._due.values()) - time.monotonic())):
            refused = len(self._refused)
            self._look(session)
            if len(self._refused) > refused or time.monotonic() - offered > _OFFER_S:
                offered = time.monotonic()
                now_offered = session.read_offer()
                if now_offered != offer:
                    if offer.waits is not None and now_offered.waits is None:
                        self._note_dropped()
                    self._log.write("info", "changed", self.name_of_server, why="extensions")
                    return
                if len(self._refused) <= refused:
                    # what was refused may be back: an extension that was made anew at once
                    for name in self._refused - not_offered:
                        self._due[name] = offered
                    self._refused = set(not_offered)

    def _note_dropped(self) -> None:
        """Report that waits are not read from now on, unless a refused look has done so."""
        if WAITS in self._refused:
            return
        since_s = time.monotonic() - self._last.get(WAITS, time.monotonic())
        since_us = time.time_ns() // 1000 - round(1e6 * since_s)
        why = "the functions of wait_event_timing are gone: waits are not read until they are back"
        self._hand_on(self.looks.refused("lost", since_us, why))

    def _look(self, session: ServerSession) -> None:
        """Make the looks that are due."""
        self._look_at_moment(session)
        due = self._now_due(ACTIVITY, FINDINGS, EVALUATION)
        if ACTIVITY in due:
            self._make([ACTIVITY], lambda: self._activity(session))
        if FINDINGS in due:
            self._make([FINDINGS], lambda: self.looks.check(session))
        if EVALUATION in due:
            self._make([EVALUATION], lambda: self.looks.evaluate(session))

    def _look_at_moment(self, session: ServerSession) -> None:
        """Make the looks that are due and show a moment; findings take many queries meanwhile."""
        due = self._now_due(WAITS, STATEMENTS, SESSIONS)
        if WAITS in due or STATEMENTS in due:
            # both belong to one reading: statements are never read without the waits around them
            names = [name for name in (WAITS, STATEMENTS) if name in due]
            self._make(names, lambda: self._counters(session, with_statements=STATEMENTS in due))
        if SESSIONS in due:
            step_s = self._grids[SESSIONS].step_s
            self._make([SESSIONS], lambda: self.looks.sessions(session, step_s))

    def _now_due(self, *names: str) -> set[str]:
        """Those of these looks that are due, and are not refused."""
        now = time.monotonic()
        due = {name for name in names if self._due[name] <= now}
        for name in due & self._refused:
            self._again(name)
        return due - self._refused

    def _counters(self, session: ServerSession, *, with_statements: bool) -> Batch:
        waits_s = self._grids[WAITS].step_s
        minute_s = self._grids[STATEMENTS].step_s if with_statements else None
        batch = self.looks.counters(session, waits_s, minute_s)
        if not self.looks.captures:
            self._log.once("warning", "unseen", self.name_of_server, CAPTURE_OFF)
        return batch

    def _activity(self, session: ServerSession) -> Batch:
        batch = self.looks.activity(session, self._grids[ACTIVITY].step_s)
        changed = self._settings is not None and self._settings != self.looks.settings
        if changed and FINDINGS not in self._left_out_s:
            self._due[FINDINGS] = time.monotonic()
        self._settings = self.looks.settings
        return batch

    def _make(self, names: list[str], look: Callable[[], Batch]) -> None:
        """Make one look, hand on what it brought, and set the time of the next one."""
        began, began_us = time.monotonic(), time.time_ns() // 1000
        gave_up = False
        # statements are read with waits, and are much more
        outer, before_s = self._looking, self._nested_s
        self._looking, self._nested_s = names[-1], 0.0
        try:
            self._hand_on(look())
            self._left_out_s.pop(names[-1], None)
        except ServerGone:
            raise
        except UnsteadyReading as ex:
            self._hand_on(self.looks.refused("busy", began_us, str(ex)))
        except LookRefused as ex:
            gave_up = ex.slow
            if ex.lasting:
                self._refused |= set(names)
                lost = f"{' and '.join(names)}: {ex}"
                self._hand_on(self.looks.refused("lost", began_us, lost))
            self._log.once("warning", "refused", self.name_of_server, f"{names[0]}: {ex}")
        except (UsageError, Unreadable) as ex:
            gave_up = isinstance(ex, Unreadable) and ex.slow
            self._log.once("warning", "refused", self.name_of_server, f"{names[0]}: {ex}")
        except UnicodeDecodeError as ex:
            why = f"{names[0]}: the answer is no text of its encoding: {ex.reason}"
            self._log.once("warning", "refused", self.name_of_server, why)
        except (PgtareError, psycopg.OperationalError, psycopg.InterfaceError):
            raise
        except Exception as ex:  # whatever the server answered, the next look may go well
            why, detail = f"the answer cannot be used: {type(ex).__name__}", str(ex)
            self._hand_on(
                self.looks.refused("unexpected", began_us, f"{names[0]}: {why}: {detail}")
            )
            self._log.once(
                "warning", f"unexpected_{names[0]}", self.name_of_server, why, detail=detail
            )
        self._looking = outer
        while self.looks.notes:
            what, why = self.looks.notes.popitem()
            self._log.once("warning", what, self.name_of_server, why)
        whole_s = time.monotonic() - began
        took, self._nested_s = whole_s - self._nested_s, before_s + whole_s
        for name in names:
            if self._grids[name].looked(took, gave_up=gave_up):
                self._log.write(
                    "warning",
                    "pace",
                    self.name_of_server,
                    look=name,
                    every=f"{self._grids[name].step_s:g}s",
                    took=f"{took:.3f}s",
                )
            first = name == FINDINGS and name not in self._last
            self._last[name] = time.monotonic()
            self._again(name)
            if first:  # rates take two looks
                self._due[name] = min(self._due[name], time.monotonic() + _SPREAD_S)

    def _hand_on(self, batch: Batch) -> None:
        """Hand on the rows of a look, unless it ended after the watch was given up.

        Another watch of the server goes on from the last reading that was handed on.
        """
        if not self.stop.is_set():
            self._collect(self.name_of_server, batch)

    def _again(self, name: str) -> None:
        now = time.monotonic()
        last = self._last.get(name)
        since = None if last is None else now - last
        self._due[name] = now + self._grids[name].wait_s(time.time(), since)
