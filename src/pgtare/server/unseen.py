"""A session of ours that the tracing modules leave out, and the server's errors in one sentence."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.server import trials

#: What keeps a session out of wait_event_timing, and out of sql_trace.
UNTIMED, UNTRACED = "wait_event_timing.capture=off", "sql_trace.level=0"
#: Longest time that a session of ours takes to leave.
_LEAVE_S = 1.0


def connect(dsn: str, settings: Sequence[str]) -> psycopg.Connection[Any]:
    """A session under these settings from its first request on, where that is allowed.

    Without the right to set them, or through a pooler that takes no options, one without. A session
    that asks for the right goes before it: to try would leave an error in the server's log. Raises
    MeasurementError where the server cannot be reached, UsageError for a wrong connection string.
    """
    plain = trials.connect(dsn)
    names = [setting.partition("=")[0] for setting in settings]
    try:
        if not _may_set(plain, names):
            return plain
        given = psycopg.conninfo.conninfo_to_dict(dsn).get("options")
        given = given or os.environ.get("PGOPTIONS", "")
        own = " ".join(f"-c {setting}" for setting in settings)
        conn = trials.connect(dsn, options=f"{given} {own}".strip())
    except MeasurementError:
        return plain  # a pooler that takes no options, or no room for a second session
    except BaseException:
        plain.close()
        raise
    pid = plain.info.backend_pid
    plain.close()
    _await_end(conn, pid)
    return conn


def _may_set(conn: psycopg.Connection[Any], names: list[str]) -> bool:
    """By the server's word; it lacks the function before 15, and only superusers set them there."""
    query = "SELECT bool_and(has_parameter_privilege(name, 'SET')) FROM unnest(%s::text[]) name"
    if conn.info.server_version < 150000:
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user AND %s IS NOT NULL"
    try:
        found = conn.execute(query, (names,)).fetchone()
    except psycopg.Error:
        return False
    return bool(found and found[0])


def _await_end(conn: psycopg.Connection[Any], pid: int) -> None:
    """Until a session has gone, and what it was counted for is the past."""
    until = time.monotonic() + _LEAVE_S
    there = "SELECT FROM pg_stat_activity WHERE pid = %s"
    with contextlib.suppress(psycopg.Error):
        while time.monotonic() < until and conn.execute(there, (pid,)).fetchone() is not None:
            time.sleep(0.002)


@contextlib.contextmanager
def telling(remedy: str) -> Iterator[None]:
    """Turn the server's errors into a sentence of ours. remedy: where a privilege is missing."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as ex:
        raise UsageError(f"{trials.first_line(ex)}: {remedy}") from ex
    except psycopg.errors.ObjectNotInPrerequisiteState as ex:
        raise UsageError(trials.first_line(ex)) from ex
    except psycopg.Error as ex:
        raise MeasurementError(f"the server did not answer: {trials.first_line(ex)}") from ex
