"""The driver's session: harmless while it lasts, and ended with all that it still does."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import own_session, pooler, signals

#: What keeps the session from doing harm: it gives up waiting for a lock, keeps no transaction
#: open, and ends in the middle of a statement if its client is gone. It rests as long as it wants.
#: All of this is so in each arm, except for what is weighed: that has the role's value in the base.
_HARMLESS = {
    "idle_session_timeout": "0",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
    "client_connection_check_interval": "1s",
}
#: The script has the characteristics of transactions that the role's own sessions have.
_ITS_OWN = ("RESET default_transaction_isolation", "RESET default_transaction_deferrable")
_READ_ONLY = "SET default_transaction_read_only = on"
#: What a script that may not write must not have changed at the end of a block.
READ_ONLY_SETTING = "default_transaction_read_only"
#: What sessions of ours set for themselves. The default is what the role's own sessions have.
SET_BY_US = frozenset(
    {
        "default_transaction_deferrable",
        "default_transaction_isolation",
        "search_path",
        *_HARMLESS,
    }
)
#: What sessions of ours have alike on all servers, and what each transaction has anew.
SET_ALIKE = frozenset(
    {
        "application_name",
        "client_encoding",
        "transaction_deferrable",
        "transaction_isolation",
        "transaction_read_only",
        *_HARMLESS,
    }
)

_OWN_VALUE = """
SELECT pg_catalog.current_setting(name) FROM pg_catalog.pg_settings
WHERE lower(name) = %s AND source = 'session'
"""
_RESET_VALUE = """
SELECT pg_catalog.set_config(name, reset_val, false) FROM pg_catalog.pg_settings
WHERE lower(name) = %s
"""
_SET_VALUE = "SELECT pg_catalog.set_config(%s, %s, false)"
#: Who sets what a session does not get from the server's configuration, and what helps.
_SET_BY = {
    "session": ("by pgtare, so that a script writes nothing", "add --writes if it may"),
    "client": ("by its connection", "leave it out of the connection string and PGOPTIONS"),
    "user": ("by its role", "connect as a role without it"),
    "database user": ("by its role in this database", "connect as a role without it"),
    "database": ("by its database", "connect to another one"),
    "global": ("by ALTER ROLE ALL", "take it back there"),
    "command line": ("by the server's command line", "start the server without it"),
}
_SOURCE = "SELECT source FROM pg_catalog.pg_settings WHERE lower(name) = %s"

#: Older ones do not say which settings the planner obeys.
_FIRST_VERSION = 15
_POOLED = (
    "the connection goes through a pooler, whose sessions of the server others use after us, with "
    "whatever settings a killed command left in them: connect to the server itself"
)


@contextlib.contextmanager
def control_session(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that asks and watches, and notices a host that vanishes.

    The driven session is waited for no longer than its work may take. Raises UsageError if a pooler
    is in between, or if the server is too old.
    """
    with (
        signals.unwind_at_exit_signals(),
        contextlib.closing(
            own_session.connect(dsn, pooler.Connection, **own_session.NOTICES_VANISHED)
        ) as conn,
    ):
        if pooler.is_pooled(conn):
            raise UsageError(_POOLED)
        if conn.info.server_version < _FIRST_VERSION * 10_000:
            raise UsageError(
                f"the server is PostgreSQL {conn.info.server_version // 10_000}: from outside, "
                f"{_FIRST_VERSION} and later are weighed"
            )
        conn.execute("SET idle_session_timeout = 0")
        yield conn


#: As a number: a session may have any style of dates.
_LIFE = (
    "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text,"
    " pg_catalog.pg_is_in_recovery()"
)
_ELSEWHERE = (
    "the connection string led to another server than before, or the server was restarted: connect "
    "to the server itself, not to several behind one address"
)


@contextlib.contextmanager
def driven_session(
    dsn: str, control: psycopg.Connection[Any], *, writes: bool, weighed: Collection[str] = ()
) -> Iterator[psycopg.Connection[Any]]:
    """The session in which the script runs. control: a session on the same server.

    weighed: settings of the server that are weighed, and so are not set here. Raises
    MeasurementError if it is not the same server.
    """
    with contextlib.closing(own_session.connect(dsn, client_encoding="UTF8")) as conn:
        if pooler.rows(conn, _LIFE) != pooler.rows(control, _LIFE):
            raise MeasurementError(_ELSEWHERE)
        own_session.find_as_usual(conn)
        harmless = [
            f"SET {name} = '{value}'" for name, value in _HARMLESS.items() if name not in weighed
        ]
        for line in (*harmless, *_ITS_OWN, *(() if writes else (_READ_ONLY,))):
            try:
                conn.execute(line.encode())
            except psycopg.errors.InvalidParameterValue:
                continue  # the server's system cannot see whether a client is gone
        yield conn


@contextlib.contextmanager
def without_own(conn: psycopg.Connection[Any], name: str) -> Iterator[None]:
    """For a while, give a session of ours the server's value of a setting that it has SET."""
    own = conn.execute(_OWN_VALUE, (name,)).fetchone()
    if own is not None:
        conn.execute(_RESET_VALUE, (name,))
    try:
        yield
    finally:
        if own is not None:
            conn.execute(_SET_VALUE, (name, own[0]))


def require_follows(conn: psycopg.Connection[Any], switch: str, name: str) -> None:
    """Raise UsageError if a session does not get the server's value of a setting.

    conn: the driven session. switch: what is weighed, as it was given.
    """
    row = conn.execute(_SOURCE, (name,)).fetchone()
    if row is not None and row[0] in _SET_BY:
        by, remedy = _SET_BY[row[0]]
        raise UsageError(
            f"{switch}: {name} is set {by} in the session that runs the statements, where the "
            f"server's value would seem to cost nothing: {remedy}"
        )


def end(control: psycopg.Connection[Any], driven: psycopg.Connection[Any]) -> None:
    """End the driven session's process in the middle of its work.

    To close the connection would not do: what is in the server's buffer would be carried out. The
    right to end it is the login's own, whatever role ALTER ROLE ... SET role gives its sessions.
    """
    query = "SELECT pg_catalog.pg_terminate_backend(%s)"
    with (
        contextlib.suppress(psycopg.Error),
        pooler.transaction(control, pooler.CLOSED_PATH, "role = 'none'"),
    ):
        control.execute(query, (driven.info.backend_pid,))
