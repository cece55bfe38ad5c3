"""`pgtare waits`: where time goes, by wait event, session and statement."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.live import Live

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError
from pgtare.kit import files
from pgtare.kit.option_values import seconds
from pgtare.observing.waits import documents, show
from pgtare.observing.waits.live import watch
from pgtare.postgres.backend_types import is_background
from pgtare.postgres.wait_counters import caveats, rates
from pgtare.postgres.wait_counters.model import Counters, Event, Snapshot
from pgtare.postgres.wait_counters.reader import Reader, open_reader

app = typer.Typer(
    no_args_is_help=True,
    help="Show where time goes on a server that has wait_event_timing loaded.\n\n"
    'Example: `pgtare waits top --dsn "host=/var/run/postgresql dbname=app"`',
)
Dsn = Annotated[str, typer.Option(help="The server, as a libpq connection string.")]
Idle = Annotated[bool, typer.Option("--idle", help="Include waits for something to do.")]
Background = Annotated[bool, typer.Option("--background", help="Include background processes.")]


@app.command("top")
def top(
    dsn: Dsn,
    interval: Annotated[str, typer.Option(help="Time between two figures, for example 2s.")] = "2s",
    iterations: Annotated[
        int | None,
        typer.Option(min=1, help="How many figures; by default no end on a terminal, else one."),
    ] = None,
    idle: Idle = False,
    background: Background = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Show the share of time by event and by statement, again and again.

    CPU time by statement comes from samples. --json prints one document a line for each interval.

    Example: `pgtare waits top --dsn "host=/var/run/postgresql" --interval 5s --iterations 3`
    """
    every = seconds("--interval", interval)
    console = cli.stdout()
    destination = Destination(json, output)
    live = console.is_terminal and not destination.printed
    count = iterations if iterations is not None or live else 1
    with open_reader(dsn) as reader:
        reader.require_capture()
        profiles = watch(reader, every, count, idle=idle, background=background)
        if not live:
            for found in profiles:
                if not destination.printed:
                    console.print(show.profile_view(found), highlight=False)
                destination.write_line(found.to_json(indent=None))
            return
        with Live(f"the first figures come in {every:g} s", console=console) as screen:
            for found in profiles:
                screen.update(show.profile_view(found), refresh=True)
                destination.write_line(found.to_json(indent=None))


@app.command("histogram")
def histogram(
    event: Annotated[str, typer.Argument(help="The wait event, for example DataFileRead.")],
    dsn: Dsn,
    json: Json = False,
    output: Output = None,
) -> None:
    """Show how long the waits for an event took, in powers of two, over all processes.

    Example: `pgtare waits histogram DataFileRead --dsn "host=/var/run/postgresql"`
    """
    destination = Destination(json, output)
    with open_reader(dsn) as reader:
        totals = rates.totals(reader.events())
        buckets = reader.buckets()
        _doubt(reader)
    found = _find_event(event, totals)
    parts = found, totals[found], buckets
    destination.deliver(documents.histogram(*parts), show.histogram_view(*parts))


def _doubt(reader: Reader) -> None:
    """Say on standard error what the counters lack."""
    for note in (
        *caveats.of_clock(reader.clock_reason()),
        *caveats.of_clients(reader.clients()),
        *caveats.of_losses(reader.losses()),
    ):
        cli.say(f"note: {note}", err=True)


def _find_event(name: str, totals: dict[Event, Counters]) -> Event:
    if not name.strip():
        raise UsageError("EVENT is empty: name a wait event, as DataFileRead")
    ended = {event: counters for event, counters in totals.items() if counters.waits}
    named = [event for event in ended if name.lower() in (event.name.lower(), event.label.lower())]
    if named:  # of an event that is both, waits within statements, not those for the next one
        return min(named, key=lambda event: event.idle)
    names = {event.name.lower(): event.name for event in ended}
    near = difflib.get_close_matches(name.rpartition("/")[2].lower(), names, n=1)
    hint = (
        f": did you mean {names[near[0]]}?" if near else ": `pgtare waits top --idle` lists events"
    )
    raise UsageError(f"nothing has waited for {name} since the counters were reset{hint}")


@app.command("sessions")
def sessions(
    dsn: Dsn,
    idle: Idle = False,
    background: Background = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """List processes by the time they waited, and what each waits for now.

    Example: `pgtare waits sessions --dsn "host=/var/run/postgresql" --background`
    """
    destination = Destination(json, output)
    with open_reader(dsn) as reader:
        events = rates.by_process(reader.by_process(), idle=idle)
        rank = {pid: i for i, pid in enumerate(events)}
        found = [
            session
            for session in reader.sessions()
            if background or not is_background(session.backend_type)
        ]
        _doubt(reader)
    found.sort(key=lambda session: rank.get(session.pid, len(rank)))
    destination.deliver(documents.sessions(found, events), show.sessions_view(found, events))


@app.command("statements")
def statements(dsn: Dsn, json: Json = False, output: Output = None) -> None:
    """List statements by the time they waited since the counters were reset.

    Their texts come from pg_stat_statements, if it is there.

    Example: `pgtare waits statements --dsn "host=/var/run/postgresql dbname=app"`
    """
    destination = Destination(json, output)
    with open_reader(dsn) as reader:
        found = rates.by_statement(reader.statements())
        texts = reader.texts(found)
        _doubt(reader)
    none = "no statement has waited yet; are compute_query_id and capture on?"
    destination.deliver(
        documents.statements(found, texts),
        show.totals_view(found, texts) if found else none,
    )


@app.command("snapshot")
def snapshot(
    file: Annotated[Path, typer.Argument(help="The file to write.")], dsn: Dsn, json: Json = False
) -> None:
    """Write all counters to a file, for `pgtare waits diff`.

    Example: `pgtare waits snapshot before.json --dsn "host=/var/run/postgresql"`
    """
    files.check_target(file)
    with open_reader(dsn) as reader:
        found = reader.snapshot()
    text = found.to_json(indent=None)
    files.write_text(file, text + "\n")
    if json:
        typer.echo(text)
    else:
        cli.say(f"snapshot: {file}")


@app.command("diff")
def diff(
    a: Annotated[Path, typer.Argument(help="The earlier snapshot.")],
    b: Annotated[Path, typer.Argument(help="The later one.")],
    idle: Idle = False,
    background: Background = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Show where time went between two snapshots of a server.

    Example: `pgtare waits diff before.json after.json`
    """
    destination = Destination(json, output)
    found = rates.profile(_load(a), _load(b), idle=idle, background=background)
    destination.deliver(found, show.profile_view(found))


def _load(path: Path) -> Snapshot:
    try:
        return Snapshot.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except (ValidationError, UnicodeDecodeError) as ex:
        raise UsageError(
            f"{path} is no snapshot of this version of pgtare: take one with "
            "`pgtare waits snapshot`"
        ) from ex
