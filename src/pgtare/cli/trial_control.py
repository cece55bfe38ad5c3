"""`pgtare status` and `pgtare stop`: for an administrator of the server."""

from __future__ import annotations

from typing import Annotated

import typer

from pgtare import cli
from pgtare.kit import numbers
from pgtare.postgres import own_session
from pgtare.weighing.trials import Status, Trials

Dsn = Annotated[str, typer.Option(help="The server, as a libpq connection string.")]


def status(dsn: Dsn) -> None:
    """Say whether a trial runs on a server, and how the last one ended.

    Example: `pgtare status --dsn "host=/var/run/postgresql dbname=app"`
    """
    with own_session.answered(), own_session.connect(dsn) as conn:
        module = Trials(conn)
        module.require_module()
        found = module.status()
    for line in _lines(found):
        typer.echo(line)


def _lines(s: Status) -> list[str]:
    if s.started is None:
        return ["no trial has run since the server started"]
    began = f"{s.started.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    if s.running:
        head = (
            f"a trial runs: begun {began} by process {s.owner_pid}, "
            f"{s.seconds_left:.0f} s left at most"
        )
    else:
        head = f"no trial runs; the last one began {began}"
        if s.ended is not None:
            head += f" and ended {s.ended.astimezone():%H:%M:%S} ({s.end_reason})"
    took_part = f"sessions: {s.sessions:,} took part"
    if s.running:
        took_part += f", {s.sessions_now:,} do so now"
    left_out = [
        (s.sessions_no_ring, "no memory for observations"),
        (s.sessions_lacking_settings, "no such setting: a library is not loaded there"),
    ]
    outside = [f"; {sessions:,} stayed outside ({why})" for sessions, why in left_out if sessions]
    observed = f"observations: {s.observations:,} kept, {s.lost:,} lost"
    if s.negative_clock:
        observed += f"; the clock stepped back {numbers.counted(s.negative_clock, 'time')}"
    return [head, "".join([took_part, *outside]), observed]


def stop(dsn: Dsn) -> None:
    """Stop a trial; each session gets its own settings back before its next request.

    Example: `pgtare stop --dsn "host=/var/run/postgresql dbname=app"`
    """
    with own_session.answered(), own_session.connect(dsn) as conn:
        stopped, mismatch = Trials(conn).stop_in_any_version()
    typer.echo("the trial is stopped" if stopped else "no trial was running")
    if mismatch:
        cli.say(f"note: {mismatch}", err=True)
