"""`pgtare doctor`: what stalls a server, by SQL alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import MeasurementError, UsageError
from pgtare.kit.option_values import seconds
from pgtare.kit.progress import Display
from pgtare.observing.doctor import queries
from pgtare.observing.doctor.examine import Tick, examine, watch
from pgtare.observing.doctor.model import Report
from pgtare.observing.doctor.session import connected
from pgtare.observing.doctor.show import view

#: Sessions report what they did once a second.
_SHORTEST_S = 1.0
#: Progress is shown of what takes longer, in s.
_SHOWN_S = 2.0


def doctor(
    dsn: Annotated[
        str | None, typer.Option(help="The server, as a libpq connection string.")
    ] = None,
    interval: Annotated[
        str, typer.Option(help="Time between two looks at the counters, for example 3s.")
    ] = "3s",
    watching: Annotated[
        bool, typer.Option("--watch", help="Look again and again; Ctrl-C ends it.")
    ] = False,
    json: Json = False,
    output: Output = None,
    show_queries: Annotated[
        bool, typer.Option("--show-queries", help="List each query it sends, and end.")
    ] = False,
) -> None:
    """Look for what stalls a server: read-only, in seconds, without a module.

    Who holds up whom, which statement, disk, standby or client takes the active time, limits that
    come near, evictions of pg_stat_statements, settings that observe and log, and the clock. Each
    finding says what was seen, why it matters, the remedy as a command, and how sure that is. With
    --watch the JSON is one document a line.

    Exit status: 0 nothing found but information, 10 a warning, 11 something critical; 1, 2 and 130
    (Ctrl-C) as of every command.

    Examples: `pgtare doctor --dsn "host=db dbname=app"`

    `pgtare doctor --dsn "host=db dbname=app" --watch --interval 10s`
    """
    if show_queries:
        typer.echo(queries.listing())
        return
    if dsn is None:
        raise UsageError("--dsn is missing: name the server, as in --dsn 'host=db dbname=app'")
    every = seconds("--interval", interval)
    if every < _SHORTEST_S:
        raise UsageError(f"--interval {interval}: give {_SHORTEST_S:g}s or more")
    destination = Destination(json, output)
    if watching:
        with contextlib.suppress(KeyboardInterrupt):
            for number, report in enumerate(_without_end(dsn, every)):
                if number and not destination.printed:
                    typer.echo()
                destination.write_line(report.to_json(indent=None))
                if not destination.printed:
                    cli.show(view(report))
        raise typer.Exit(cli.INTERRUPTED)
    with _progress(every) as tick, connected(dsn) as session:
        report = examine(session, every, tick)
    destination.write(report.to_json())
    if not destination.printed:
        cli.show(view(report))
    raise typer.Exit(report.exit_status)


def _without_end(dsn: str, every: float) -> Iterator[Report]:
    """Reports; a server that goes away after the first, to be restarted maybe, is waited for."""
    begun = waiting = False
    while True:
        try:
            with connected(dsn) as session:
                for report in watch(session, every):
                    if waiting:
                        cli.say("pgtare: the server is back", err=True)
                    begun, waiting = True, False
                    yield report
        except MeasurementError as ex:
            if not begun:
                raise
            if not waiting:
                cli.say(f"pgtare: {ex}; trying again every {every:g} s", err=True)
            waiting = True
            time.sleep(every)


@contextlib.contextmanager
def _progress(every: float) -> Iterator[Tick]:
    if every <= _SHOWN_S:
        yield lambda seconds: None
        return
    with Display(cli.stderr(), "looking", every) as display:
        yield lambda seconds: display.tick(seconds, "sampling sessions")
