"""`pgtare support`: what a bug report needs, gathered and shown."""

from __future__ import annotations

import contextlib
import re
from importlib import metadata
from typing import Annotated

import typer

import pgtare
from pgtare import cli
from pgtare.kit import machine
from pgtare.kit.terminal_text import plain
from pgtare.postgres import server_facts
from pgtare.postgres.server_facts import Facts


def support(
    dsn: Annotated[
        str | None,
        typer.Option(help="The server that the report is about, as a libpq connection string."),
    ] = None,
) -> None:
    """Gather what a bug report needs: versions, settings, and the state of the modules.

    It has no secrets: no names of roles, databases, tables and hosts, no statements, no
    connection string. It is read-only, and nothing is sent anywhere.

    Example: `pgtare support --dsn "dbname=app" > support.txt`
    """
    gathered = [Facts("pgtare", _own()), Facts("machine of the command", _machine())]
    if dsn is not None:
        gathered += server_facts.read(dsn)
    for facts in gathered:
        typer.echo(f"[{facts.title}]")
        for name, value in facts.facts:
            typer.echo(f"{name}: {plain(value)}")
    if dsn is None:
        cli.say("note: --dsn adds a server's settings and the state of its modules", err=True)


def _own() -> list[tuple[str, str]]:
    """Versions of the command and of the packages that it needs or can use."""
    found = [("version", pgtare.__version__)]
    for requirement in metadata.requires("pgtare") or ():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"](\w+)", requirement)
        if extra is not None and extra[1] in ("dev", "build"):
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    return found


def _machine() -> list[tuple[str, str]]:
    return [(name, "unknown" if v is None else str(v)) for name, v in machine.describe().items()]
