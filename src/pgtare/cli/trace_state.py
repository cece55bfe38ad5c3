"""`pgtare trace status` and `pgtare trace stop`: which sessions are traced, and the end of it."""

from __future__ import annotations

from typing import Annotated

import typer

from pgtare import cli
from pgtare.errors import MeasurementError
from pgtare.kit.notes import who
from pgtare.observing.trace.capture import recorder_locks, server_state
from pgtare.observing.trace.capture.server import open_server
from pgtare.observing.trace.output.show_server_state import status_view
from pgtare.postgres.own_session import APPLICATION_NAME

Dsn = Annotated[str, typer.Option(help="The server, as a libpq connection string.")]


def status(dsn: Dsn) -> None:
    """Show which sessions are traced, which settings will trace others, and what records them.

    Example: `pgtare trace status --dsn "dbname=app"`
    """
    with open_server(dsn) as server:
        now = server_state.status(server)
    cli.stdout().print(status_view(now), highlight=False)


def stop(
    dsn: Dsn,
    pid: Annotated[
        list[int] | None, typer.Option("--pid", help="Only this session; may be repeated.")
    ] = None,
) -> None:
    """Return sessions that were traced on request, of whatever user, to their own settings.

    Tracing turned on by settings continues; the SQL to stop it is printed. A recording that runs
    asks for its sessions again: end that first.

    Example: `pgtare trace stop --dsn "dbname=app"`
    """
    pids = frozenset(pid) if pid else None
    with open_server(dsn, any_version=True) as server:
        before = server_state.status(server)
        stopped = server_state.stop(server, pids)
        remedies = server_state.remedies(server, before, pids)
        again = len(recorder_locks.owned(server, stopped))
    listed = ", ".join(map(str, stopped))
    cli.say(
        f"given back to their settings, from their next request on: {listed}"
        if stopped
        else _nothing(pids)
    )
    if remedies:
        cli.say("traced by settings; a superuser ends that by: " + " ".join(remedies))
    if server.mismatch:
        cli.say(f"note: {server.mismatch}", err=True)
    if again:
        cli.say(
            f"note: a recording that runs asks for {again} of them again: end that first, by "
            "Ctrl-C or SIGTERM; it is served by one of these processes: SELECT pid, client_addr "
            f"FROM pg_stat_activity WHERE application_name = '{APPLICATION_NAME}'",
            err=True,
        )
    if pids and not stopped and remedies:
        raise MeasurementError("what was named goes on being traced")


def _nothing(pids: frozenset[int] | None) -> str:
    if not pids:
        return "no session is traced because somebody asked for it"
    return f"{who('session', sorted(pids))}: not traced because somebody asked for it"
