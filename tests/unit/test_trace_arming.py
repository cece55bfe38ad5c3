"""Which sessions a recorder has traced, and that it gives each of them back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg

from pgtare.observing.trace.capture.arming import Arming
from pgtare.observing.trace.capture.before_recording import Earlier
from pgtare.observing.trace.capture.drain import Drain, _Ring
from pgtare.observing.trace.capture.record import TraceRecorder
from pgtare.observing.trace.capture.recorder_guard import Guard
from pgtare.observing.trace.capture.ring_selection import Choice
from pgtare.observing.trace.capture.server import Server, Unread
from pgtare.observing.trace.capture.target import Target
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.writer import Writer
from tests.unit.made_traces import BEGAN_NS, NO_RESERVE

BEGAN = datetime.fromtimestamp(BEGAN_NS / 1e9, UTC)


class _Sessions:
    """A server whose client sessions are the given ones: process and begin of each."""

    has_calls, pooled = True, False
    conn = SimpleNamespace(info=SimpleNamespace(backend_pid=1))

    def __init__(self) -> None:
        self.live: list[tuple[int, datetime]] = []
        self.traced: list[int] = []
        self.given_back: list[tuple[int, datetime]] = []

    def trace(self, pid: int, level: int) -> None:
        self.traced.append(pid)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if "{setter}" in query:
            self.given_back += zip(*values, strict=True)
        if "sql_trace_sessions" not in query:
            return []
        names = ("app", "shop", "web")
        return [(pid, began, *names, 0, None, None, None) for pid, began in self.live]


class _Recorded(_Sessions):
    """One that is recorded, and lost nothing."""

    has_waits, setter_name = False, "public.sql_trace_set"

    def unread(self) -> Unread:
        return Unread()


class _Guard:
    """What a guard would give back if the recorder died."""

    def __init__(self) -> None:
        self.sessions: dict[int, str] = {}

    def armed(self, pid: int, started: str) -> None:
        self.sessions[pid] = started

    def let_go(self, pid: int) -> None:
        del self.sessions[pid]

    def dismiss(self) -> None:
        self.sessions.clear()


def test_a_session_with_the_number_of_one_that_has_ended_is_given_back() -> None:
    server, guard = _Sessions(), _Guard()
    target = Target()
    arming = Arming(cast(Server, server), target, cast(Guard, guard), Choice(target, BEGAN))
    later = BEGAN + timedelta(seconds=5)
    for began in (BEGAN, later):
        server.live = [(4711, began)]
        arming.arm_new()
    assert server.traced == [4711, 4711]
    assert guard.sessions == {4711: later.isoformat()}
    arming.disarm()
    assert server.given_back == [(4711, later)]
    assert not guard.sessions


def test_a_right_that_is_lost_in_mid_recording_ends_it_as_usual(tmp_path: Path) -> None:
    """Its sessions cannot be given back: that is said, and the file has its end."""
    path = tmp_path / "t.pgtrace"

    def disarm() -> None:
        raise psycopg.errors.InsufficientPrivilege("permission denied for function sql_trace_set")

    server = cast(Server, _Recorded())
    recorder = TraceRecorder.__new__(TraceRecorder)
    recorder.server, recorder.target, recorder.path = server, Target(4), path
    recorder.choice = Choice(recorder.target, BEGAN)
    recorder.began, recorder.until, recorder.notes = BEGAN, None, []
    recorder.guard = cast(Guard, SimpleNamespace(dismiss=lambda: None))
    recorder.unnumbered, recorder._schedstat = False, False
    recorder.writer = Writer(path, b"{}", NO_RESERVE)
    recorder.drain = Drain(server, recorder.writer, recorder.choice, waits=False)
    recorder.drain.calls[4711, BEGAN] = _Ring(1, 4711, BEGAN, Earlier(0))
    arming = SimpleNamespace(armed={4711: BEGAN}, notes=[], disarm=disarm)
    recorder.arming = cast(Arming, arming)
    done = recorder._finish("time", "", 0.0)
    assert done.still_traced == [4711]
    why, left = done.notes
    assert why.startswith("permission denied for function sql_trace_set: ")
    assert "session 4711; SELECT public.sql_trace_set(pid, NULL)" in left
    assert load(path).notes() == done.notes
