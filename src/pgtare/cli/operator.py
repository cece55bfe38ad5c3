"""`pgtare status` and `pgtare stop`: for whoever looks after the server."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from typing import Annotated

import typer

from pgtare.server import trials
from pgtare.server.trials import Status, Trials

Dsn = Annotated[str, typer.Option(help="The server, as a libpq connection string.")]


def status(
    dsn: Dsn, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Say whether a trial runs on a server, and how the last one ended.

    Example: `pgtare status --dsn "host=/var/run/postgresql dbname=app"`
    """
    with trials.connect(dsn) as conn:
        module = Trials(conn)
        module.require_module()
        found = module.status()
    if json:
        typer.echo(jsonlib.dumps(dataclasses.asdict(found), indent=2, default=str))
    else:
        for line in _lines(found):
            typer.echo(line)


def _lines(s: Status) -> list[str]:
    if s.started is None:
        return ["no trial has run since the server started"]
    if s.running:
        head = (
            f"a trial runs: begun {s.started:%Y-%m-%d %H:%M:%S %Z} by process {s.owner_pid}, "
            f"{s.seconds_left:.0f} s left at most"
        )
    else:
        head = f"no trial runs; the last one began {s.started:%Y-%m-%d %H:%M:%S %Z}"
        if s.ended is not None:
            head += f" and ended {s.ended:%H:%M:%S} ({s.end_reason})"
    return [
        head,
        f"sessions: {s.sessions} took part, {s.sessions_now} do now, {s.sessions_no_ring} found no "
        f"ring, {s.sessions_lacking_settings} lack a setting",
        f"observations: {s.observations} kept, {s.lost} lost; clock steps back: {s.negative_clock}",
    ]


def stop(dsn: Dsn) -> None:
    """Stop a trial; each session gets its own settings back before its next request.

    Example: `pgtare stop --dsn "host=/var/run/postgresql dbname=app"`
    """
    with trials.connect(dsn) as conn:
        module = Trials(conn)
        module.require_module()
        typer.echo("the trial is stopped" if module.stop() else "no trial was running")
