"""`pgtare clock`: what reading the time costs here, and whether the clock can be trusted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from pgtare import cli
from pgtare.cli.command_line import command_line
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.kit.option_values import seconds
from pgtare.kit.progress import Display
from pgtare.observing.clock import show
from pgtare.observing.clock.schema import ClockReport
from pgtare.observing.clock.survey import Tick, planned_s, survey

#: Progress is shown of what takes longer, in s.
_SHOWN_S = 2.0


def clock(
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration", "-d", help="Time for each clock, as 3s; about 1 s for all without it."
        ),
    ] = None,
    histogram: Annotated[
        bool, typer.Option("--histogram", help="Also show durations by powers of two.")
    ] = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Read every clock of this machine: cost, resolution, steps back, processors, gaps.

    Needs no server. Says what is wrong with the clock, if anything, and the remedy, and what its
    readings cost PostgreSQL: a row, an I/O, or a wait.

    Examples: `pgtare clock`

    `pgtare clock -d 3 --histogram`
    """
    length = seconds("--duration", duration) if duration is not None else None
    destination = Destination(json, output)
    with _reading(length) as tick:
        report = survey(length, command_line(), tick)
    if not destination.printed:
        _print(report, Console(), histogram)
    destination.write(report.to_json())
    if report.stopped_by == "interrupt":
        raise typer.Exit(cli.INTERRUPTED)


@contextlib.contextmanager
def _reading(duration_s: float | None) -> Iterator[Tick]:
    """The progress of reading the clocks, if that takes long enough to be asked for."""
    length = planned_s(duration_s)
    if length <= _SHOWN_S:
        yield lambda done, what: None
        return
    with Display(cli.stderr(), "reading", length) as display:
        yield lambda done, what: display.tick(done, what, "; Ctrl-C ends it")


def _print(report: ClockReport, console: Console, histogram: bool) -> None:
    console.print(show.summary(report), highlight=False)
    for one in report.clocks if histogram else ():
        console.print(show.histogram(one), highlight=False)
