"""`pgtare trace kept`: traces that a server kept because a trigger fired."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError
from pgtare.kit.numbers import volume
from pgtare.seeing.trace.capture import kept
from pgtare.seeing.trace.capture.server import open_server
from pgtare.seeing.trace.output import documents
from pgtare.seeing.trace.output.show_kept import kept_view


def kept_(
    number: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", help="Take this one; without it, all are listed."),
    ] = None,
    dsn: Annotated[
        str | None, typer.Option(help="The server, as a libpq connection string.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="List the files in this sql_trace.keep_directory instead.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With ID: the new file, whose name ends in .pgtrace.")
    ] = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List the traces that the server kept because a trigger fired, or take one of them.

    The settings sql_trace.keep_... say what fires: slow requests and transactions, errors, long
    waits for locks. What was taken is a trace, which profile, statements and report read.

    Example: `pgtare trace kept --dsn "dbname=app"`, then
    `pgtare trace kept 3 --dsn "dbname=app" --out incident.pgtrace`
    """
    destination = Destination(json, output)
    if (dsn is None) == (directory is None):
        raise UsageError("name one of --dsn, a server, and --directory, where it writes them")
    if number is not None and (dsn is None or out is None):
        raise UsageError(f"kept {number}: name the server by --dsn, and the new file by --out")
    if number is None and out is not None:
        raise UsageError("--out: name the kept trace by its ID, as the list has it")
    if directory is not None:
        _list(kept.of_directory(directory), destination)
        return
    assert dsn is not None
    with open_server(dsn) as server:
        if number is None or out is None:
            _list(kept.of_server(server), destination)
            return
        size = kept.take(server, number, out)
    destination.write(documents.taken(number, out, size).to_json())
    if not destination.printed:
        cli.say(
            f"kept trace {number}, {volume(size)}: {out} "
            f"(`pgtare trace profile {out}` says where time went)"
        )


def _list(found: kept.KeptTraces, destination: Destination) -> None:
    destination.write(documents.kept_traces(found).to_json())
    if not destination.printed:
        cli.stdout().print(kept_view(found), highlight=False)
