"""`pgtare support`: what a bug report needs, gathered and shown; written only if wanted."""

from __future__ import annotations

import contextlib
import re
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

import pgtare
from pgtare import cli
from pgtare.errors import UsageError
from pgtare.kit import files, machine
from pgtare.kit.terminal_text import plain
from pgtare.postgres import server_facts
from pgtare.postgres.server_facts import Facts


def support(
    dsn: Annotated[
        str | None,
        typer.Option(help="The server that the report is about, as a libpq connection string."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write it to this new file as well, after a question.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write it without a question.")] = False,
) -> None:
    """Gather what a bug report needs: versions, settings, and the state of the modules.

    It has no secrets: no names of roles, databases, tables and hosts, no statements, no
    connection string. It is read-only, and nothing is sent anywhere.

    Example: `pgtare support --dsn "dbname=app" --out support.txt`
    """
    files.check_target(out)
    if out is not None and out.exists():
        raise UsageError(f"{out} exists: name a new file")
    gathered = [Facts("pgtare", _own()), Facts("machine of the command", _machine())]
    if dsn is not None:
        gathered += server_facts.read(dsn)
    lines = []
    for facts in gathered:
        lines += [f"[{facts.title}]", *(f"{name}: {plain(value)}" for name, value in facts.facts)]
    text = "\n".join(lines)
    typer.echo(text)
    if dsn is None:
        cli.say("note: --dsn adds a server's settings and the state of its modules", err=True)
    if out is None:
        return
    if yes or cli.confirm(f"Write this to {out}?"):
        files.write_text(out, text + "\n")
        cli.say(f"written: {out}", err=True)
    else:
        cli.say("not written: --yes writes it without a question", err=True)


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
