"""The recorder's session on the server, and errors of the server in a sentence of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgtare.errors import UsageError
from pgtare.server import unseen

_FUNCTIONS = """
SELECT p.proname, n.nspname, has_schema_privilege(n.oid, 'USAGE'), quote_ident(n.nspname),
       quote_ident(current_user) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
JOIN pg_language l ON l.oid = p.prolang
WHERE l.lanname = 'c' AND p.proname IN ('sql_trace_drain', 'wait_event_trace_drain')
"""
_NO_EXTENSION = (
    "database {} has no extension sql_trace: put the module into the installation with "
    "`pgtare module install --module sql_trace --pg-config PATH`, load it "
    "(shared_preload_libraries = 'wait_event_timing, sql_trace'), restart, and run "
    "CREATE EXTENSION sql_trace; there"
)
_NOT_HERE = (
    "database {} has no extension sql_trace: CREATE EXTENSION sql_trace; there, or connect to the "
    "database that has it"
)
# our session sets the level: without the module it has a value all the same, but no row here
_LOADED = "SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'sql_trace.level')"
_NO_WAITS = (
    "levels 8 and 12 need the extension wait_event_timing, which database {} does not have: "
    "CREATE EXTENSION wait_event_timing; there, or ask for --level 4"
)


@dataclass(frozen=True)
class Unread:
    """Sessions whose traces made way for others' before anybody had read them, and what of them."""

    sessions: int = 0
    records: int = 0
    bytes: int = 0

    def __sub__(self, other: Unread) -> Unread:
        return Unread(
            self.sessions - other.sessions, self.records - other.records, self.bytes - other.bytes
        )


class Server:
    """A session that drains; has_waits: the extension wait_event_timing is there, too."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        # only superusers make C functions: nobody else's function is taken for ours
        found = self.rows(_FUNCTIONS)
        self.schemas = {function: schema for function, schema, *_ in found}
        if "sql_trace_drain" not in self.schemas:
            ((loaded,),) = self.rows(_LOADED)
            raise UsageError((_NOT_HERE if loaded else _NO_EXTENSION).format(conn.info.dbname))
        closed = sorted({(schema, user) for *_, usable, schema, user in found if not usable})
        if closed:
            grants = "; ".join(f"GRANT USAGE ON SCHEMA {name} TO {user}" for name, user in closed)
            raise UsageError(
                f"to use the functions of the extensions, a superuser has to run: {grants};"
            )
        path = sql.SQL(", ").join(
            sql.Identifier(schema) for schema in sorted(set(self.schemas.values()))
        )
        conn.execute(sql.SQL("SET search_path = {}").format(path))
        self.has_waits = "wait_event_trace_drain" in self.schemas
        self.rows("SELECT * FROM sql_trace_info()")

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a query; bytes come as they are, not as text."""
        with self.conn.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            return cursor.execute(query.encode(), values or None, binary=True).fetchall()

    def unread(self) -> Unread:
        """Since the server started; nothing where its extension does not tell."""
        with self.conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            found = cursor.execute("SELECT * FROM sql_trace_info()").fetchone() or {}
        return Unread(
            *(found.get(f"unread_{what}", 0) for what in ("sessions", "records", "bytes"))
        )

    def name(self, function: str) -> str:
        """A function of sql_trace with its schema."""
        return f"{self.schemas['sql_trace_drain']}.{function}"

    def require_waits(self) -> None:
        """Raise UsageError where waits cannot be had."""
        if not self.has_waits:
            raise UsageError(_NO_WAITS.format(self.conn.info.dbname))

    @property
    def local(self) -> bool:
        """Whether the server runs on this machine, as far as the connection tells."""
        host = self.conn.info.host or ""
        address = self.conn.info.hostaddr or host
        return not host or host.startswith(("/", "@")) or address in ("127.0.0.1", "::1")


@contextlib.contextmanager
def open_server(dsn: str) -> Iterator[Server]:
    """A session of the recorder's own, itself neither traced nor counted where that is allowed.

    Raises UsageError where the extension is missing, MeasurementError where there is no server.
    """
    with unseen.connect(dsn, [unseen.UNTIMED, unseen.UNTRACED]) as conn, telling():
        yield Server(conn)


def telling() -> contextlib.AbstractContextManager[None]:
    """Turn the server's errors into a sentence of ours."""
    return unseen.telling(
        "connect as a superuser, or as a member of pg_read_all_stats who may run sql_trace_set"
    )
