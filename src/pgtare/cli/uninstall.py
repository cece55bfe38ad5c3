"""`pgtare uninstall`: list what pgtare left on a machine, and remove it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgtare import cli
from pgtare.errors import MeasurementError, PgtareError
from pgtare.postgres import binaries, leftovers


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
) -> None:
    """List everything that pgtare left on this machine, and with --yes remove it.

    That is: extensions, settings and databases of loads of the server of --dsn (by DROP EXTENSION,
    ALTER SYSTEM, ALTER ROLE, ALTER DATABASE and DROP DATABASE), modules in the installation of
    --pg-config, and pgtare's own directory of private servers and builds (PGTARE_DIR). What is in
    use and directories with traces stay, and exit status 1 says so.

    Example: `pgtare uninstall --dsn "dbname=app" --pg-config /usr/bin/pg_config --yes`
    """
    found = [] if dsn is None else list(leftovers.on_server(dsn))
    if pg_config is not None:
        found += leftovers.in_installation(binaries.from_pg_config(pg_config), dsn)
    found += leftovers.own_files()
    kept = False
    for leftover in found:
        line = leftover.what
        if yes and leftover.remove is not None:
            try:
                leftover.remove()
                line = f"removed: {leftover.what}"
            except PgtareError as ex:
                line = f"left: {leftover.what}: {ex}"
                kept = True
        cli.say(line)
    if not found:
        cli.say("nothing of pgtare is left here")
    elif not yes:
        cli.say("nothing was removed: --yes removes what is listed")
    if dsn is None or pg_config is None:
        cli.say("note: --dsn and --pg-config look at a server and its installation, too", err=True)
    if kept:
        raise MeasurementError(
            "something was left, for the reason that its line gives: restart the server without "
            "the modules, or end what uses them, then run the same command again"
        )
    if any(leftover.remove is None for leftover in found):
        raise MeasurementError(
            "a database or directory could not be looked at: let the role of --dsn connect to it, "
            "or the server read it, then run the same command again"
        )
