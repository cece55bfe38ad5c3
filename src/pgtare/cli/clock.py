"""`pgtare clock`: what reading the time costs here, and whether the clock can be trusted."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pgtare import cli
from pgtare.cli.command_line import command_line
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError
from pgtare.kit import files
from pgtare.kit.progress import Display
from pgtare.seeing.clock import compare_reports as comparing
from pgtare.seeing.clock import plan_text, show
from pgtare.seeing.clock.clocks import BY_NAME
from pgtare.seeing.clock.consequences import SYSTEM
from pgtare.seeing.clock.pg_test_timing import MOST_SECONDS
from pgtare.seeing.clock.schema import ClockReport
from pgtare.seeing.clock.survey import Request, Tick, planned_s, survey

if TYPE_CHECKING:
    from pgtare.seeing.clock.plan_source import Given

#: Progress is shown of what takes longer, in s.
_SHOWN_S = 2.0


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
            help="Predict what EXPLAIN's TIMING and track_io_timing cost this plan: a file that "
            "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) wrote."
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            help="The same for a statement, by the planner's estimates: it is not executed. "
            "Needs --dsn."
        ),
    ] = None,
    dsn: Annotated[
        str | None, typer.Option(help="The server for --query, as a libpq connection string.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Check the prediction: run the statement of --query 16 times with TIMING on and "
            "16 times off, in read-only transactions.",
        ),
    ] = False,
    # here for its help alone: pgtare.cli.compat_args takes these arguments before they are parsed
    compat: Annotated[
        bool,
        typer.Option(
            "--compat",
            help="Print what pg_test_timing of PostgreSQL 19 prints; takes its options alone "
            "(-d, -c, -V, -?) and has its exit statuses.",
        ),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            help="An earlier document of this command; exit status 1 if anything is worse beyond "
            "noise."
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

    `pgtare clock --output before.json`, and later `pgtare clock --compare before.json`

    `pgtare clock --query "SELECT count(*) FROM t" --dsn "dbname=app" --measure`
    """
    request = Request(tuple(clocks or ()), _duration(duration), cpu)
    percent = _cutoff(cutoff)
    files.check_target(html)
    destination = Destination(json, output)
    before = comparing.load(compare) if compare is not None else None
    given = _given(request, explain, query, dsn, measure)
    with _reading(request) as tick:
        report = survey(request, command_line(), tick)
    if given is not None and report.clock(SYSTEM) is not None:  # else interrupted before
        given.predict(report)
    if not destination.printed:
        _print(report, Console(), histogram, percent if exact else None)
    destination.write(report.to_json())
    if html is not None:
        from pgtare.seeing.clock.page import write_page  # the charts take long to load

        write_page(report, html)
        destination.tell(f"page: {html}")
    worse = False
    if before is not None:
        lines = comparing.compare(before, report)
        destination.console().print(show.comparison(lines), highlight=False)
        worse = any(line.worse for line in lines)
    if report.stopped_by == "interrupt":
        raise typer.Exit(cli.INTERRUPTED)
    if worse:
        raise typer.Exit(1)


def _duration(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"0*([0-9]{1,10})", text.strip())
    if found is None or not 1 <= int(found[1]) <= MOST_SECONDS:
        raise UsageError(f"--duration {text}: give whole seconds from 1 to {MOST_SECONDS}")
    return int(found[1])


def _cutoff(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:  # nan as well
        raise UsageError(f"--cutoff {text}: give a percentage from 0 to 100")
    return value


def _given(
    request: Request, explain: Path | None, query: str | None, dsn: str | None, measure: bool
) -> Given | None:
    """The plan to predict for, fetched before the clocks are read; None if none is asked for."""
    if explain is not None and query is not None:
        raise UsageError("--explain and --query: give the one or the other")
    if query is None and dsn is not None:
        raise UsageError("--dsn goes with --query, the statement to plan there")
    if query is None and measure:
        raise UsageError("--measure goes with --query, the statement to run")
    if explain is None and query is None:
        return None
    if request.clocks and SYSTEM not in request.clocks:
        raise UsageError(
            f"PostgreSQL's timing is predicted from the clock {SYSTEM}: add --clock {SYSTEM}, "
            "or leave --clock out"
        )
    from pgtare.seeing.clock import plan_source as given  # loads what talks to servers

    if explain is not None:
        return given.from_file(explain)
    assert query is not None
    if dsn is None:
        raise UsageError("--query needs --dsn, the server that plans the statement")
    if not measure:
        return given.from_server(query, dsn)
    with Display(cli.stderr(), "running it with TIMING on and off,", None) as display:
        return given.run_on_server(
            query, dsn, lambda seconds, text: display.tick(seconds, text, "; Ctrl-C ends it")
        )


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
        console.print(plan_text.view(report.plan), highlight=False)
