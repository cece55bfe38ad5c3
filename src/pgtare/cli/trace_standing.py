"""`pgtare trace status` and `pgtare trace stop`: who is traced, and giving sessions back."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from typing import Annotated

import typer

from pgtare import cli
from pgtare.errors import MeasurementError
from pgtare.trace import owners, standing
from pgtare.trace.server import open_server
from pgtare.trace.show_standing import standing_view

Dsn = Annotated[str, typer.Option(help="The server, as a libpq connection string.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def status(dsn: Dsn, json: Json = False) -> None:
    """Say which sessions are traced, by what settings others will be, and who writes it down.

    Example: `pgtare trace status --dsn "dbname=app"`
    """
    with open_server(dsn) as server:
        now = standing.standing(server)
    if json:
        typer.echo(jsonlib.dumps(dataclasses.asdict(now), indent=2, default=str))
        return
    cli.stdout().print(standing_view(now), highlight=False)


def stop(
    dsn: Dsn,
    pid: Annotated[
        list[int] | None, typer.Option("--pid", help="Only this session; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Give sessions that were asked for, by whomever, back to their own settings.

    What settings have traced goes on; the SQL that ends it is told. A recording that runs asks
    for its sessions again: end that first.

    Example: `pgtare trace stop --dsn "dbname=app"`
    """
    pids = frozenset(pid) if pid else None
    with open_server(dsn) as server:
        before = standing.standing(server)
        stopped = standing.stop(server, pids)
        remedies = standing.remedies(server, before, pids)
        again = owners.recorders(server, stopped)
    if json:
        recordings = [dataclasses.asdict(recorder) for recorder in again]
        told_all = {"stopped": stopped, "left_to": remedies, "asked_again_by": recordings}
        typer.echo(jsonlib.dumps(told_all, indent=2))
    else:
        told = ", ".join(map(str, stopped))
        cli.say(
            f"given back to their settings, from their next request on: {told}"
            if stopped
            else _nothing(pids)
        )
        if remedies:
            cli.say("traced by settings; a superuser ends that by: " + " ".join(remedies))
    for recorder in again:
        cli.say(_asks_again(recorder), err=True)
    if pids and not stopped and remedies:
        raise MeasurementError("what was named goes on being traced")


def _asks_again(recorder: owners.Recorder) -> str:
    where = f" to {recorder.client}" if recorder.client else ""
    return (
        f"note: server process {recorder.pid} serves a recording{where} that asks for "
        f"{len(recorder.sessions)} of them again: end that first, by Ctrl-C or SIGTERM"
    )


def _nothing(pids: frozenset[int] | None) -> str:
    if not pids:
        return "no session is traced because somebody asked for it"
    named = ", ".join(map(str, sorted(pids)))
    if len(pids) == 1:
        return f"session {named} is not traced because somebody asked for it"
    return f"none of sessions {named} is traced because somebody asked for it"
