"""Names and texts that somebody else chose cannot steer the terminal, nor break what is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pgtare import cli
from pgtare.cli import trace as trace_commands
from pgtare.kit import labelled_text
from pgtare.kit.progress import Display
from pgtare.kit.terminal_text import plain
from pgtare.observing.doctor import show as doctor_show
from pgtare.observing.findings.model import of_setting
from pgtare.observing.flame import processes
from pgtare.observing.flame import show as flame_show
from pgtare.observing.flame.events import Event, waker
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer
from pgtare.observing.waits.show import one_line
from pgtare.weighing.weigh.progress import Stages
from tests.terminal import printed
from tests.unit.made_traces import MS, NO_RESERVE, define_events, ring, waits

HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\u202ed\x9be"
STEERS = "\x1b\x07\u202e\x9b"


def harmless(text: str) -> bool:
    return not set(text) & set(STEERS)


def test_what_steers_a_terminal_is_marked() -> None:
    assert plain(HOSTILE) == "a?]0;title?b?[2Jc?d?e"
    assert plain("one\ntwo\tthree µs …") == "one two three µs …"


def test_statements_and_names_on_the_terminal() -> None:
    finding = of_setting(
        "churn",
        level="warning",
        title=HOSTILE,
        evidence=[HOSTILE],
        why="",
        remedy=[HOSTILE],
        sure="likely",
        because=HOSTILE,
    )
    assert harmless(printed(doctor_show._finding(finding), 200))
    assert harmless(printed(labelled_text.rows([(HOSTILE, HOSTILE)]), 200))
    assert harmless(printed(flame_show.table(["frame"], [[HOSTILE]]), 200))
    assert harmless(one_line(HOSTILE, 1))


def test_what_a_trace_file_and_a_server_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", NO_RESERVE)
    end = {"stopped_by": "error", "why": HOSTILE + "\nnote: " + HOSTILE}
    names = {"user": HOSTILE, "database": HOSTILE, "application": HOSTILE}
    define_events(writer)
    writer.define(Table.RINGS, ring(1, 4711, "waits", **names))
    writer.add(Table.WAITS, waits(1, [(0, 1 * MS, 2 * MS), (1, 5 * MS, 1 * MS)]))
    writer.close(json.dumps(end).encode())
    trace_commands._book(path)
    cli.say(f"pgtare: {HOSTILE}", err=True)
    printed = capsys.readouterr().err.splitlines()
    assert printed == [
        f"note: the recording ended early: {plain(HOSTILE)} note: {plain(HOSTILE)}",
        f"pgtare: {plain(HOSTILE)}",
    ]


def test_who_wakes_cannot_steer_the_terminal_by_its_name() -> None:
    event = Event(HOSTILE, 1, 1, "sched_waking", "", ("main",))
    assert all(harmless(frame) for frame in waker(event))


def test_a_title_of_progress_is_neither_markup_nor_a_format() -> None:
    file = io.StringIO()
    title = "recording process 1 ([/b] {task.nothing} {0})"
    console = Console(file=file, force_terminal=True, width=200)
    with Display(console, title, 3.0) as display:
        display.tick(1.0, "[/i]")
    assert title in file.getvalue()


def test_a_session_is_no_background_process_whatever_its_role_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    titles = {
        "postgres: logger app [local] SELECT": ("SELECT", "backend"),
        "postgres: main: archiver my db 10.0.0.1(5) UPDATE waiting": ("UPDATE waiting", "backend"),
        "postgres: u checkpointer ::1(5432) idle": ("idle", "backend"),
        "postgres: u d [local] [local] idle in transaction": ("idle in transaction", "backend"),
        "postgres: archiver last was 000000010000000000000001": ("archiver", "archiver"),
        "postgres: main: io worker 1": ("io worker", "io worker"),
        "postgres: checkpointer ": ("checkpointer", "checkpointer"),
        "postgres: autovacuum worker logger": ("autovacuum worker", "autovacuum worker"),
        "/usr/bin/postgres -D x": ("postmaster", "postmaster"),
    }
    for title, expected in titles.items():
        monkeypatch.setattr(processes, "read", lambda pid, name, t=title: t)
        assert processes.activity(1) == expected, title


def test_progress_of_a_command_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Stages(cli.stderr()).say(f"a session of our own runs {HOSTILE}")
    shown = capsys.readouterr().err
    assert "runs a?]0;title" in shown
    assert not set(STEERS) & set(shown)
