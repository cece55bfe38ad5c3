"""`pgtare doctor`: what stalls a server, by SQL alone."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import numbers
from pgtare.kit.option_values import seconds
from pgtare.kit.progress import Display
from pgtare.observing.doctor import queries
from pgtare.observing.doctor.check_settings import Weight
from pgtare.observing.doctor.examine import Tick, examine, watch
from pgtare.observing.doctor.model import Report
from pgtare.observing.doctor.session import connected
from pgtare.observing.doctor.show import view
from pgtare.weighing.weigh import store

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
    weighed: Annotated[
        list[Path] | None,
        typer.Option(
            help="What `pgtare weigh` found on this load (its --out directory or JSON document): "
            "gives observers their cost. Repeatable."
        ),
    ] = None,
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
    weights = read_weights(weighed or ())
    if watching:
        with contextlib.suppress(KeyboardInterrupt):
            for number, report in enumerate(_without_end(dsn, every, weights)):
                if number and not destination.printed:
                    typer.echo()
                destination.write_line(report.to_json(indent=None))
                if not destination.printed:
                    cli.show(view(report))
        raise typer.Exit(cli.INTERRUPTED)
    with _progress(every) as tick, connected(dsn) as session:
        report = examine(session, every, weights, tick)
    destination.write(report.to_json())
    if not destination.printed:
        cli.show(view(report))
    raise typer.Exit(report.exit_status)


def _without_end(dsn: str, every: float, weights: Mapping[str, Weight]) -> Iterator[Report]:
    """Reports; a server that goes away after the first, to be restarted maybe, is waited for."""
    begun = waiting = False
    while True:
        try:
            with connected(dsn) as session:
                for report in watch(session, every, weights):
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


def read_weights(paths: Iterable[Path]) -> Mapping[str, Weight]:
    """Costs by arm, from result directories and documents of `pgtare weigh`; the last counts.

    Raises UsageError and PgtareError as `store` does.
    """
    found: dict[str, Weight] = {}
    for path in paths:
        document = path / store.RESULT_FILE if path.is_dir() else path
        result = store.load_result(document)
        if result.compares_servers:
            raise UsageError(f"{path} compares servers: it has no weights of instruments")
        for arm in result.arms:
            if arm.role != "instrument" or arm.answer is None:
                continue
            if arm.verdict not in ("cost", "gain", "equivalent", "inconclusive"):
                continue
            us, share = arm.answer.us, arm.answer.pct
            if us.estimate is None or share.estimate is None:
                continue
            found[arm.name] = Weight(
                us.estimate,
                share.estimate,
                -math.inf if share.lo is None else share.lo,
                arm.verdict == "cost",
                f"weighed {result.created[:10]}: {numbers.bounds(us)} µs, {arm.verdict} ({path})",
            )
    return found
