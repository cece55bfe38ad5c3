"""`pgtare trace kept`: traces that a server kept because a trigger fired."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError
from pgtare.kit.numbers import volume
from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.moment import what_it_did
from pgtare.observing.trace.capture import kept
from pgtare.observing.trace.capture.server import Server, open_server
from pgtare.observing.trace.documents import TraceIncident, TraceKept
from pgtare.observing.trace.output.show_kept import incident_view, kept_view


def kept_(
    number: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", help="Show this one; without it, all are listed."),
    ] = None,
    dsn: Annotated[
        str | None, typer.Option(help="The server, as a libpq connection string.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="List the files in this sql_trace.keep_directory instead.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With ID: write it to this new file.")] = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List the traces that the server kept because a trigger fired, show one, or save it.

    The settings sql_trace.keep_... say what fires: slow requests and transactions, errors, long
    waits for locks. What --out writes is a trace, which profile, statements and report read.

    Example: `pgtare trace kept --dsn "dbname=app"`, then `pgtare trace kept 3 --dsn "dbname=app"`
    """
    destination = Destination(json, output)
    if (dsn is None) == (directory is None):
        raise UsageError("name one of --dsn, a server, and --directory, where it writes them")
    if number is None and out is not None:
        raise UsageError("--out: name the kept trace by its ID, as the list has it")
    if out is not None and dsn is None:
        raise UsageError(f"kept {number}: its file is in {directory} already; leave out --out")
    if out is not None:
        destination.refuse("--out")
    if directory is not None:
        _list_or_show(kept.of_directory(directory), directory, number, destination)
        return
    assert dsn is not None
    with open_server(dsn) as server:
        if number is None or out is None:
            _list_or_show(kept.of_server(server), server, number, destination)
            return
        size = kept.take(server, number, out)
    cli.say(
        f"kept trace {number}, {volume(size)}: {out} "
        f"(`pgtare trace profile {out}` says where time went)"
    )


def _list_or_show(
    found: TraceKept, place: Server | Path, number: int | None, destination: Destination
) -> None:
    if number is None:
        destination.deliver(found, kept_view(found))
        return
    victim, others = kept.of_incident(found, number)
    involved = []
    for one in (victim, *others):
        trace = kept.read(place, one)
        involved.append(what_it_did(one, ledger(trace), trace))
    incident = TraceIncident(session=involved[0], others=involved[1:])
    destination.deliver(incident, incident_view(incident))
