"""Databases for the built-in load: made, marked and dropped by pgtare, and never anybody else's."""

from __future__ import annotations

import contextlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import own_session, pooler
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.load.pgbench import create_tables, find_pgbench

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
#: pgbench's largest scale on the way to 2 ** 31 accounts.
_MAX_SCALE = 21_474


@dataclass(frozen=True)
class BenchDatabase:
    """A database with pgbench's tables which pgtare made, and the way to it."""

    name: str
    dsn: str
    scale: int


def mark(name: str) -> str:
    """The comment by which pgtare knows a database of that name as its own.

    It holds the name, so that a renamed or copied database is not taken for ours.
    """
    return f"pgtare load database {name}: made by pgtare, which may fill it anew and drop it"


def initialise(
    binaries: Binaries | None, dsn: str, scale: int = 1, name: str | None = None
) -> BenchDatabase:
    """Make a new database (`pgtare_bench_…` or `name`) with pgbench's tables (15 MB a scale unit).

    dsn: to any database of the server, as a role that may create databases. One that is there
    already is filled anew only if it carries our mark.

    Raises UsageError for a name or scale that cannot be and for a database that is not ours,
    MeasurementError if the server refuses or pgbench fails; what was made is then dropped.
    """
    if not 1 <= scale <= _MAX_SCALE:
        raise UsageError(f"the scale must be 1 to {_MAX_SCALE}, not {scale}")
    name = f"pgtare_bench_{secrets.token_hex(4)}" if name is None else name
    if not _NAME.fullmatch(name):
        raise UsageError(f"database name {name!r} may hold only a-z, 0-9 and _ (at most 63)")
    pgbench = find_pgbench(binaries)
    with own_session.connect(dsn) as conn:
        new = not _is_ours(conn, name)
        if new:
            _run(conn, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    # From here on the database is there, and ours to drop.
    try:
        with own_session.connect(dsn) as conn:
            _run(
                conn,
                sql.SQL("COMMENT ON DATABASE {} IS {}").format(
                    sql.Identifier(name), sql.Literal(mark(name))
                ),
            )
        target = make_conninfo(dsn, dbname=name)
        create_tables(pgbench, target, scale)
    except BaseException:
        if new:
            with (
                contextlib.suppress(UsageError, MeasurementError),
                own_session.connect(dsn) as conn,
            ):
                _run(conn, _drop(name))
        raise
    return BenchDatabase(name, target, scale)


def drop_database(dsn: str, name: str) -> None:
    """Drop a database that carries our mark, with sessions still in it; gone already is fine.

    Raises UsageError if it is not ours, MeasurementError if the server refuses.
    """
    with own_session.connect(dsn) as conn:
        if _is_ours(conn, name):
            _run(conn, _drop(name))


def _drop(name: str) -> sql.Composed:
    return sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))


def _is_ours(conn: psycopg.Connection[Any], name: str) -> bool:
    """True for a database with our mark, False if there is none; UsageError for any other."""
    query = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
    found = pooler.rows(conn, query, name)
    if not found:
        return False
    if found[0][0] != mark(name):
        raise UsageError(
            f"database {name} was not made by pgtare (it lacks its comment), so pgtare neither"
            " fills nor drops it: choose another name"
        )
    return True


def _run(conn: psycopg.Connection[Any], statement: sql.Composed) -> None:
    try:
        conn.execute(statement)
    except psycopg.Error as ex:
        message = ex.diag.message_primary or str(ex)
        raise MeasurementError(
            f"the server refused {statement.as_string(conn)}: {message.strip()}"
        ) from ex
