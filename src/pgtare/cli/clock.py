"""`pgtare clock`: what reading the time costs here, and whether the clock can be trusted."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pgtare import cli
from pgtare.cli.command_line import command_line
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError
from pgtare.kit.progress import Display
from pgtare.observing.clock import show
from pgtare.observing.clock.clocks import BY_NAME
from pgtare.observing.clock.consequences import ROW, SYSTEM
from pgtare.observing.clock.explain_timing import node_calls, plan_timing
from pgtare.observing.clock.schema import ClockReport
from pgtare.observing.clock.survey import Request, Tick, planned_s, survey

#: Progress is shown of what takes longer, in s.
_SHOWN_S = 2.0
_MOST_SECONDS = 4294967295


def clock(
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration", "-d", help="Whole seconds for each clock; about 1 s for all without it."
        ),
    ] = None,
    clocks: Annotated[
        list[str] | None,
        typer.Option("--clock", help=f"Read only this one (repeatable): {', '.join(BY_NAME)}."),
    ] = None,
    cpu: Annotated[int | None, typer.Option(help="The processor to read on.")] = None,
    histogram: Annotated[
        bool, typer.Option("--histogram", help="Also show durations by powers of two.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Also show every duration that was seen.")
    ] = False,
    cutoff: Annotated[
        str,
        typer.Option("--cutoff", "-c", help="List exact durations up to this percentage of all."),
    ] = "99.99",
    explain: Annotated[
        Path | None,
        typer.Option(
            help="Predict what EXPLAIN's TIMING costs this plan: a file that "
            "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) wrote."
        ),
    ] = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Read every clock of this machine: cost, resolution, steps back, processors, gaps.

    Needs no server. Says what is wrong with the clock, if anything, and the remedy, and what its
    readings cost PostgreSQL: a row, an I/O, a wait, or a whole plan.

    Examples: `pgtare clock`

    `pgtare clock -d 3 --clock tsc --exact`

    `pgtare clock --explain plan.json`
    """
    request = Request(tuple(clocks or ()), _duration(duration), cpu)
    percent = _cutoff(cutoff)
    destination = Destination(json, output)
    calls = _node_calls(request, explain)
    with _reading(request) as tick:
        report = survey(request, command_line(), tick)
    cost = next((one.cost_ns for one in report.meaning if one.what == ROW), None)
    if explain is not None and calls is not None and cost is not None:  # else interrupted before
        report.plan = plan_timing(explain, calls, cost)
    if not destination.printed:
        _print(report, Console(), histogram, percent if exact else None)
    destination.write(report.to_json())
    if report.stopped_by == "interrupt":
        raise typer.Exit(cli.INTERRUPTED)


def _duration(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"0*([0-9]{1,10})", text.strip())
    if found is None or not 1 <= int(found[1]) <= _MOST_SECONDS:
        raise UsageError(f"--duration {text}: give whole seconds from 1 to {_MOST_SECONDS}")
    return int(found[1])


def _cutoff(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:  # nan as well
        raise UsageError(f"--cutoff {text}: give a percentage from 0 to 100")
    return value


def _node_calls(request: Request, explain: Path | None) -> int | None:
    """The calls of the plan's nodes, before the clocks are read; None without a plan."""
    if explain is None:
        return None
    if request.clocks and SYSTEM not in request.clocks:
        raise UsageError(
            f"PostgreSQL's timing is predicted from the clock {SYSTEM}: add --clock {SYSTEM}, "
            "or leave --clock out"
        )
    return node_calls(explain)


@contextlib.contextmanager
def _reading(request: Request) -> Iterator[Tick]:
    """The progress of reading the clocks, if that takes long enough to be asked for."""
    seconds = planned_s(request)
    if seconds <= _SHOWN_S:
        yield lambda done, what: None
        return
    with Display(cli.stderr(), "reading", seconds) as display:
        yield lambda done, what: display.tick(done, what, "; Ctrl-C ends it")


def _print(report: ClockReport, console: Console, histogram: bool, exact: float | None) -> None:
    console.print(show.summary(report), highlight=False)
    for one in report.clocks:
        if histogram:
            console.print(show.histogram(one), highlight=False)
        if exact is not None:
            console.print(show.exact(one, exact), highlight=False)
    if report.plan is not None:
        console.print(f"\n{show.plan(report.plan)}", highlight=False, markup=False)
