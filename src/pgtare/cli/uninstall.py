"""`pgtare uninstall`: list what pgtare left on a machine, and remove it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import MeasurementError, PgtareError
from pgtare.postgres import binaries, leftovers
from pgtare.postgres.module_documents import LeftThing, Uninstalled


def uninstall(
    dsn: Annotated[
        str | None,
        typer.Option(help="Look in this server for our settings and extensions; as a superuser."),
    ] = None,
    pg_config: Annotated[
        Path | None,
        typer.Option(help="Look in the installation of this pg_config for our modules."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove what is listed; else it is only listed.")
    ] = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """List everything that pgtare left on this machine, and with --yes remove it.

    That is: extensions and settings of the server of --dsn (by DROP EXTENSION and ALTER SYSTEM),
    modules in the installation of --pg-config, and pgtare's own directory of private servers and
    builds (PGTARE_DIR). What is in use stays, and exit status 1 says so.

    Example: `pgtare uninstall --dsn "dbname=app" --pg-config /usr/bin/pg_config --yes`
    """
    destination = Destination(json, output)
    found = [] if dsn is None else list(leftovers.on_server(dsn))
    if pg_config is not None:
        found += leftovers.in_installation(binaries.from_pg_config(pg_config), dsn)
    found += leftovers.own_files()
    things = []
    for leftover in found:
        thing = (
            _removed(leftover) if yes else LeftThing(what=leftover.what, outcome="found", why="")
        )
        things.append(thing)
        if not destination.printed:
            cli.say(_line(thing))
    destination.write(Uninstalled(things=things).to_json())
    if not found and not destination.printed:
        cli.say("nothing of pgtare is left here")
    elif not yes and not destination.printed:
        cli.say("nothing was removed: --yes removes what is listed")
    if dsn is None or pg_config is None:
        cli.say("note: --dsn and --pg-config look at a server and its installation, too", err=True)
    if any(thing.outcome == "kept" for thing in things):
        raise MeasurementError(
            "something is in use and was left: restart the server without the modules, or end what "
            "uses them, then run the same command again"
        )


def _removed(leftover: leftovers.Leftover) -> LeftThing:
    try:
        leftover.remove()
    except PgtareError as ex:
        return LeftThing(what=leftover.what, outcome="kept", why=str(ex))
    return LeftThing(what=leftover.what, outcome="removed", why="")


def _line(thing: LeftThing) -> str:
    if thing.outcome == "found":
        return thing.what
    if thing.outcome == "removed":
        return f"removed: {thing.what}"
    return f"left: {thing.what}: {thing.why}"
