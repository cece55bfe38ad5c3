"""`pgtare trace grab`: what the rings of traced sessions hold now, after the incident."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pgtare import cli
from pgtare.cli.command_line import command_line
from pgtare.errors import MeasurementError, UsageError
from pgtare.kit.notes import some
from pgtare.kit.numbers import counted, duration, percent, span, volume
from pgtare.kit.option_values import seconds, size
from pgtare.kit.progress import Display
from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.profile import Scope, profile
from pgtare.observing.trace.capture.grab import Grabbed, SessionReach, grab
from pgtare.observing.trace.capture.server import open_server
from pgtare.observing.trace.capture.target import Target, others_hidden
from pgtare.observing.trace.documents import TraceProfile
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.observing.trace.file.reader import load

#: Lines of the profile that are printed.
_COMPONENTS = 6
_NOTHING = (
    "no ring of a matching session holds anything to be seen{}: `pgtare trace status` shows which "
    "sessions are traced, and `ALTER SYSTEM SET sql_trace.level = 12` traces all sessions to come"
)


def grab_(
    path: Annotated[Path, typer.Argument(help="A new file for the trace.")],
    dsn: Annotated[str, typer.Option(help="The server, as a libpq connection string.")],
    last: Annotated[
        str | None, typer.Option(help="Only so much time before now, for example 60s.")
    ] = None,
    pid: Annotated[list[int] | None, typer.Option(help="This session; may be repeated.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="Sessions of this role.")] = None,
    database: Annotated[list[str] | None, typer.Option(help="Sessions in this database.")] = None,
    application: Annotated[
        str | None, typer.Option(help="Sessions by application_name: a pattern, for example shop*.")
    ] = None,
    max_size: Annotated[str, typer.Option(help="Most that is written.")] = "1G",
    reserve: Annotated[str, typer.Option(help="Space to leave free on the volume.")] = "512M",
) -> None:
    """Save what traced sessions did until now, open requests included, from their rings.

    For sessions that settings trace all the time: nothing has to be recording when it happens. A
    ring keeps the latest, so each session reaches back as far as its ring goes.

    Example: `pgtare trace grab incident --dsn "dbname=app" --last 60s`
    """
    length = seconds("--last", last) if last is not None else None
    target = Target(
        pids=frozenset(pid or ()),
        roles=frozenset(role or ()),
        databases=frozenset(database or ()),
        application=application,
    )
    limits = Limits(total=size("--max-size", max_size), reserve=size("--reserve", reserve))
    begun = time.monotonic()
    with open_server(dsn) as server, Display(cli.stderr(), "reading rings", None) as display:
        done = grab(
            server,
            path,
            target,
            length,
            limits,
            command_line(),
            lambda now, of: display.tick(time.monotonic() - begun, f"ring {now + 1} of {of}"),
        )
        if done is None:
            grant = others_hidden(server)
            raise MeasurementError(
                f"{_NOTHING.format(f' of the last {last}' if last else '')}{grant}"
            )
    for line in _summary(done, _where_time_went(path)):
        cli.say(line)


def _where_time_went(path: Path) -> TraceProfile | None:
    """Without the client's time; None: that is all there is."""
    try:
        return profile(ledger(load(path)), scope=Scope(busy=True))
    except UsageError:
        return None


def _summary(done: Grabbed, found: TraceProfile | None) -> list[str]:
    lines = [
        f"{counted(done.sessions, 'session')}, {volume(done.call_bytes)} of calls and "
        f"{counted(done.waits, 'wait')}; {volume(done.bytes)} on disk",
        *_reaches(done.reaches),
    ]
    if done.lost_bytes or done.lost_waits:
        lines.append(
            f"{volume(done.lost_bytes)} of calls and {counted(done.lost_waits, 'wait')} were "
            "overwritten before they could be read"
        )
    if found is not None:
        spent = ", ".join(
            f"{line.name} {percent(line.share_pct)}" for line in found.lines[:_COMPONENTS]
        )
        lines.append(f"where the time went, the client's left out: {spent}")
    return [
        *lines,
        *done.notes[1:],
        f"trace: {done.path} (`pgtare trace profile {done.path}` says more)",
    ]


def _reaches(reaches: Sequence[SessionReach]) -> list[str]:
    named, others = some(list(reaches))
    lines = [
        f"process {reach.pid} ({reach.user or '?'}, {reach.application or 'no name'}): the last "
        f"{duration(1e6 * reach.reach_s)}{', all of its trace' if reach.whole else ''}"
        f"{'' if reach.ended_s is None else f', ended {duration(1e6 * reach.ended_s)} ago'}"
        for reach in named
    ]
    if others:
        least, most = (duration(1e6 * others[i].reach_s) for i in (0, -1))
        lines.append(f"{counted(len(others), 'more session')}: the last {span(least, most)}")
    return lines
