"""Waits that are under way: no ring has them before they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pgtare.kit import numbers
from pgtare.kit.numbers import counted
from pgtare.observing.trace.capture.server import Server
from pgtare.postgres.backend_types import blockers

_OPEN = """
SELECT c.pid, c.wait_event_type, c.wait_event, c.idle,
       CASE a.state WHEN 'active' THEN coalesce(a.query_id, 0) ELSE 0 END, c.wait_start,
       a.backend_start, a.leader_pid, a.usename, a.datname, a.application_name,
       a.client_addr::text, coalesce(c.blocking_pids, ARRAY[]::int[])
FROM {waits}.pg_stat_wait_event_timing_current c JOIN pg_stat_activity a USING (pid)
WHERE c.backend_type IN ('client backend', 'parallel worker') AND pid <> {own}
"""
#: So many waits are told one by one.
_NAMED = 5


@dataclass(frozen=True)
class OpenWait:
    """A wait under way. idle: for something to do. blocked_by: of a wait for a lock.

    session_started: when its process began. leader_pid: of a parallel worker.
    """

    pid: int
    type: str
    event: str
    idle: bool
    query_id: int
    started: datetime
    session_started: datetime
    leader_pid: int | None
    user: str | None
    database: str | None
    application: str | None
    client: str | None
    blocked_by: list[int]


def look(server: Server) -> tuple[datetime, list[OpenWait]]:
    """What time it is, and the waits under way then; one that begins as they are read is none."""
    ((now,),) = server.rows("SELECT clock_timestamp()")
    found = [OpenWait(*row) for row in server.rows(_OPEN)]
    return now, [wait for wait in found if wait.started <= now]


def throughout(
    first: Sequence[OpenWait], last: Sequence[OpenWait], began: datetime
) -> list[OpenWait]:
    """Waits for something other than work from before a recording to its end, of those at its end.

    Of sessions without a ring: one wait of such a session is the one it was in at the beginning. A
    wake-up, as by our own having it traced, begins the wait under way anew.
    """
    since = {_key(wait): wait.started for wait in first}
    found = [
        replace(wait, started=min(wait.started, since.get(_key(wait), wait.started)))
        for wait in last
    ]
    return [wait for wait in found if not wait.idle and wait.started <= began]


def _key(wait: OpenWait) -> tuple[int, datetime, str, str, int]:
    return wait.pid, wait.session_started, wait.type, wait.event, wait.query_id


def note(waits: Sequence[OpenWait], until: datetime) -> str:
    """Tell of sessions that waited throughout."""
    more = "; …" if len(waits) > _NAMED else ""
    return (
        f"{counted(len(waits), 'session')} waited throughout and left no trace; what is shown of "
        "them was seen at the end: "
        + "; ".join(_told(wait, until) for wait in waits[:_NAMED])
        + more
    )


def _told(wait: OpenWait, until: datetime) -> str:
    blocked = f", blocked by {blockers(wait.blocked_by)}" if wait.blocked_by else ""
    since = numbers.seconds((until - wait.started).total_seconds())
    return f"process {wait.pid}, {since} in {wait.type}/{wait.event}{blocked}"
