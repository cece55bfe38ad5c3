"""What a watch makes of looks that fail; no server answers."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.keeping.agent import server_watch
from pgtare.keeping.agent.config import Intervals
from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_findings import WINDOW_S
from pgtare.keeping.agent.server_looks import SESSIONS, WAITS, ServerLooks
from pgtare.keeping.agent.server_session import AgentLocked, ServerGone
from pgtare.keeping.agent.server_watch import EVALUATION, FINDINGS, ServerWatch
from pgtare.keeping.agent_log import AgentLog
from pgtare.observing.findings.read import Unreadable
from pgtare.postgres.inventory import InventoryServer


class Brought:
    """A watch that never connects, and what it hands on."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        looks = ServerLooks("shop", "agent", lambda part: None, 10)
        server = InventoryServer(dsn="host=nowhere")
        self.watch = ServerWatch(looks, server, Intervals(), self._collect, AgentLog())

    def _collect(self, _: str, batch: Batch) -> None:
        self.rows += [row for part in batch.rows.get("gaps", []) for row in part.to_pylist()]


def test_functions_that_went_leave_a_gap() -> None:
    brought = Brought()
    brought.watch._make([WAITS], Batch)
    brought.watch._note_dropped()
    assert [(row["kind"], "gone" in row["detail"]) for row in brought.rows] == [("lost", True)]


def test_a_refused_look_has_said_so_already() -> None:
    brought = Brought()
    brought.watch._refused = {WAITS}
    brought.watch._note_dropped()
    assert brought.rows == []


@pytest.mark.parametrize(
    "error",
    [
        Unreadable("it took longer than 2 s"),
        UsageError("a right is missing"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "it took longer"),
    ],
)
def test_a_doctor_that_fails_does_not_end_the_watch(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> Batch:
        raise error

    watch = Brought().watch
    watch._make([FINDINGS], look)
    assert "event=refused server=shop" in capsys.readouterr().err
    assert watch._due[FINDINGS] > 0


def test_what_a_look_could_not_read_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Brought().watch
    for _ in range(2):
        watch.looks.notes["texts"] = "texts were not read"
        watch._make([WAITS], Batch)
    assert capsys.readouterr().err.count("texts were not read") == 1
    assert watch.looks.notes == {}


def test_pauses_grow_to_ten_seconds_and_begin_anew_once_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, pauses = Brought().watch, list[float]()
    reached = iter([False] * 5 + [True, False])

    def connect(*_: object, **__: object) -> nullcontext[SimpleNamespace]:
        if not next(reached):
            raise MeasurementError("it is down")
        return nullcontext(SimpleNamespace(identity=None))

    def goes_away(_: object) -> None:
        watch.connected = True
        raise ServerGone("it is restarted")

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            watch.stop.set()

    monkeypatch.setattr(server_watch, "ServerSession", connect)
    monkeypatch.setattr(watch, "_watch", goes_away)
    monkeypatch.setattr(watch.stop, "wait", pause)
    watch.run()
    assert pauses == [2, 4, 8, 10, 10, 1, 2]


def test_a_server_that_went_is_not_connected_even_if_nothing_can_be_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Brought().watch

    def goes_away(_: object) -> None:
        watch.connected = True
        raise ServerGone("it is restarted")

    def fails(*_: object, **__: object) -> None:
        raise OSError("no space left")

    session = nullcontext(SimpleNamespace(identity=None))
    monkeypatch.setattr(server_watch, "ServerSession", lambda *_, **__: session)
    monkeypatch.setattr(watch, "_watch", goes_away)
    monkeypatch.setattr(watch._log, "once", fails)
    with pytest.raises(OSError, match="no space left"):
        watch.run()
    assert not watch.connected


@pytest.mark.parametrize("name", [FINDINGS, EVALUATION])
def test_what_findings_are_computed_of_is_read_less_often_from_a_slow_server(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def gives_up() -> Batch:
        raise Unreadable("it took longer than 2 s", slow=True)

    watch = Brought().watch
    watch._make([name], gives_up)
    assert watch._grids[name].factor == 2
    assert f"event=pace server=shop look={name}" in capsys.readouterr().err


def test_looks_within_an_evaluation_are_not_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, clock = Brought().watch, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def sessions() -> Batch:
        clock[0] += 5
        return Batch()

    def evaluation() -> Batch:
        watch._make([SESSIONS], sessions)
        clock[0] += 0.5
        return Batch()

    for _ in range(10):
        watch._make([EVALUATION], evaluation)
    assert watch._grids[EVALUATION].factor == 1
    assert watch._grids[SESSIONS].factor > 1


def test_evaluations_are_not_rarer_than_what_they_are_of() -> None:
    watch = Brought().watch
    for _ in range(10):
        watch._grids[EVALUATION].looked(9, gave_up=True)
    assert watch._grids[EVALUATION].step_s == WINDOW_S


def test_a_server_that_was_never_reached_holds_no_lock() -> None:
    """Whose lock it is may not be known."""
    watch = Brought().watch
    watch._sessions_of_all = lambda: [("shop", None), ("other", None)]
    assert str(watch._locked(AgentLocked("another agent begins"))) == "another agent begins"
