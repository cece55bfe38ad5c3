"""Taking what rings hold: all of it, or no file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from pgtare.errors import MeasurementError
from pgtare.observing.trace.capture import grab
from pgtare.observing.trace.capture.drain import Drain, rings
from pgtare.observing.trace.capture.ring_selection import HeldRings, Start
from pgtare.observing.trace.capture.server import Server, Unread
from pgtare.observing.trace.file.writer import Writer
from tests.unit.made_traces import NO_RESERVE


class _Gone:
    """A server that ends the session at the first question."""

    has_waits = True

    def unread(self) -> Unread:
        raise psycopg.OperationalError("server closed the connection unexpectedly")


def test_a_server_that_goes_away_at_once_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", NO_RESERVE)
    held = HeldRings(datetime.now(UTC), {})
    with pytest.raises(MeasurementError):
        grab._take(cast(Server, _Gone()), writer, held, [])
    assert not path.exists()


class _Refusing:
    """A server on which a live session has a ring that it does not give."""

    has_calls, has_waits = True, False

    def __init__(self, why: psycopg.Error, started: datetime) -> None:
        self.why, self.started = why, started
        self.asked = 0

    def unread(self) -> Unread:
        return Unread()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if "sql_trace_drain" in query:
            self.asked += 1
            raise self.why
        names = ("app", "shop", "web", None)
        return [(4711, self.started, None, *names, 12, "setting", 1000, self.started)]


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (psycopg.errors.InsufficientPrivilege(), "no right to read its calls"),
        (psycopg.errors.InvalidParameterValue(), "a damaged ring"),
    ],
    ids=["refused", "damaged"],
)
def test_a_ring_that_cannot_be_read_is_asked_for_once(
    tmp_path: Path, why: psycopg.Error, told: str
) -> None:
    """Each try again is an error in the server's log, ten a second."""
    began = datetime.now(UTC)
    server = _Refusing(why, began)
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    held = HeldRings(began, {(4711, began): Start(0, 1, 0)})
    drain = Drain(cast(Server, server), writer, held, waits=False)
    for _ in range(3):
        assert not drain.look()
    writer.abandon()
    assert server.asked == 1
    ((pid, note),) = drain.unreadable()
    assert pid == 4711
    assert told in note
    # of what is grabbed it is said as well
    unreadable: list[tuple[int, str]] = []
    (ring,) = rings(cast(Server, server), began)
    assert grab._start(cast(Server, server), ring, None, unreadable) is None
    assert unreadable == [(pid, note)]


class _BegunAnew(_Refusing):
    """One on which another session has the number of the process by now."""

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        (old,) = super().rows(query, *values)
        if not self.asked:
            return [old]
        later = self.started + timedelta(seconds=1)
        return [(4711, later, None, *old[3:-1], later)]


def test_a_ring_that_began_anew_is_not_damaged(tmp_path: Path) -> None:
    """The position in the old one lies behind the end of the new one."""
    began = datetime.now(UTC)
    server = _BegunAnew(psycopg.errors.InvalidParameterValue(), began)
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    held = HeldRings(began, {(4711, began): Start(0, 1, 0)})
    drain = Drain(cast(Server, server), writer, held, waits=False)
    assert not drain.look()
    writer.abandon()
    assert server.asked == 1
    assert not drain.unreadable()
