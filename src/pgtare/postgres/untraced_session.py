"""A session of ours that the tracing modules leave out, and the server's errors in one sentence."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import own_session, pooler

#: What keeps a session out of wait_event_timing, and out of sql_trace.
UNTIMED, UNTRACED = "wait_event_timing.capture=off", "sql_trace.level=0"

#: Only superusers make C functions: nobody else's function is taken for ours.
FUNCTIONS = """
SELECT p.proname, n.nspname, has_schema_privilege(n.oid, 'USAGE'), quote_ident(n.nspname),
       quote_ident(current_user), has_function_privilege(p.oid, 'EXECUTE'),
       p.oid::regprocedure::text, coalesce(p.proargnames, '{}')
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
WHERE l.lanname = 'c' AND p.proname = ANY(%s)
"""


def connect(
    dsn: str,
    settings: Sequence[str],
    allowed: Sequence[str] = (),
    kind: type[pooler.Connection] = pooler.Connection,
) -> pooler.Connection:
    """A session under these settings from its first request on, if that is allowed.

    allowed: settings that any role may make. Without the right to set the others, a session with
    only these; through a pooler that takes no options, one with none. Raises MeasurementError if
    the server cannot be reached, UsageError for a wrong connection string.
    """
    try:
        return _connect(dsn, (*settings, *allowed), kind)
    except psycopg.ProgrammingError:
        return own_session.connect(dsn, kind)  # which says what to do about the connection string
    except MeasurementError as ex:
        if _options_refused(ex, (*settings, *allowed)) is None:
            raise
        if not allowed or _options_refused(ex, settings) != "setting":
            return own_session.connect(dsn, kind)
    try:
        return _connect(dsn, allowed, kind)
    except MeasurementError as ex:
        if _options_refused(ex, allowed) is None:
            raise
        return own_session.connect(dsn, kind)


def _connect(dsn: str, settings: Sequence[str], kind: type[pooler.Connection]) -> pooler.Connection:
    given = psycopg.conninfo.conninfo_to_dict(dsn).get("options")
    given = given or os.environ.get("PGOPTIONS", "")
    own = " ".join(f"-c {setting}" for setting in settings)
    return own_session.connect(dsn, kind, options=f"{given} {own}".strip())


def _options_refused(ex: MeasurementError, settings: Sequence[str]) -> str | None:
    """What was refused: any startup "option", or one of these settings; None: something else."""
    said = str(ex.__cause__ or ex)
    if "startup parameter" in said:
        return "option"
    return "setting" if any(each.partition("=")[0] in said for each in settings) else None


class ExtensionFunction(NamedTuple):
    """A function in C of an extension.

    usable: we have the right to use its schema. executable: and to call it, wherever it is.
    signature: as GRANT names it. columns: names of its arguments, those of its rows included.
    """

    name: str
    schema: str
    usable: bool
    quoted_schema: str
    quoted_user: str
    executable: bool
    signature: str
    columns: list[str]


def find_functions(conn: psycopg.Connection[Any], *names: str) -> list[ExtensionFunction]:
    """Those of these functions that the database has. Raises psycopg.Error."""
    return [ExtensionFunction(*row) for row in pooler.rows(conn, FUNCTIONS, list(names))]


def require_usable(functions: Iterable[ExtensionFunction]) -> None:
    """Raise UsageError, with the GRANTs, if we may not use a function's schema."""
    closed = {(f.quoted_schema, f.quoted_user) for f in functions if not f.usable}
    grants = [usage_grant(schema, user) for schema, user in sorted(closed)]
    if grants:
        raise UsageError(
            f"to use the functions of the extensions, a superuser has to run: {'; '.join(grants)};"
        )


def usage_grant(quoted_schema: str, quoted_user: str) -> str:
    """What a superuser runs to let a role use a schema."""
    return f"GRANT USAGE ON SCHEMA {quoted_schema} TO {quoted_user}"


@contextlib.contextmanager
def telling(remedy: str) -> Iterator[None]:
    """Turn the server's errors into a sentence of ours. remedy: if a privilege is missing."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as ex:
        raise UsageError(f"{own_session.first_line(ex)}: {remedy}") from ex
    except psycopg.errors.ObjectNotInPrerequisiteState as ex:
        raise UsageError(own_session.first_line(ex)) from ex
    except psycopg.Error as ex:
        raise MeasurementError(f"the server did not answer: {own_session.first_line(ex)}") from ex
