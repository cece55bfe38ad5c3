"""The recorder's session on the server, and errors of the server in a sentence of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgtare.errors import UsageError
from pgtare.server import module_setup, module_versions, pooler, untraced_session

_NO_WAITS = (
    "levels 8 and 12 need the extension wait_event_timing, which database {} does not have: "
    "CREATE EXTENSION wait_event_timing; there, or use --level 4"
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
    """A session that drains; has_waits: the extension wait_event_timing is there, too.

    any_version: versions that do not go together are no error, but noted in `mismatch`; to end what
    another version began.
    """

    def __init__(self, conn: psycopg.Connection[Any], *, any_version: bool = False) -> None:
        self.conn = conn
        own = 0 if pooler.is_pooled(conn) else conn.info.backend_pid
        self._names: dict[str, sql.Composable] = {"own": sql.Literal(own)}
        found = untraced_session.find_functions(conn, "sql_trace_drain", "wait_event_trace_drain")
        self.schemas = {function.name: function.schema for function in found}
        if "sql_trace_drain" not in self.schemas:
            # by default waits are traced, too
            steps = module_setup.remaining_steps(conn, ["wait_event_timing", "sql_trace"])
            raise module_setup.missing(
                f"database {conn.info.dbname} has no extension sql_trace",
                steps,
                ", or connect to the database that has it" if len(steps) == 1 else "",
            )
        untraced_session.require_usable(found)
        self._names["trace"] = sql.Identifier(self.schemas["sql_trace_drain"])
        self.has_waits = "wait_event_trace_drain" in self.schemas
        if self.has_waits:
            self._names["waits"] = sql.Identifier(self.schemas["wait_event_trace_drain"])
        modules = ("sql_trace", "wait_event_timing") if self.has_waits else ("sql_trace",)
        mismatches = [module_versions.compare(conn, module) for module in modules]
        self.mismatch = "; ".join(str(one) for one in mismatches if one is not None)
        if self.mismatch and not any_version:
            raise module_versions.VersionMismatch(self.mismatch)
        self.rows("SELECT * FROM {trace}.sql_trace_info()")

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a query; bytes come as they are, not as text.

        {trace} and {waits} are the schemas of sql_trace and of wait_event_timing, {own} is our
        process; 0 behind a pooler, where our session is one of the application's as well.
        """
        text = sql.SQL(query).format(**self._names)
        return pooler.rows(self.conn, text, *values, binary=True)

    def unread(self) -> Unread:
        """Since the server started."""
        (found,) = self.rows(
            "SELECT unread_sessions, unread_records, unread_bytes FROM {trace}.sql_trace_info()"
        )
        return Unread(*found)

    def name(self, function: str) -> str:
        """A function of sql_trace with its schema."""
        return f"{self.schemas['sql_trace_drain']}.{function}"

    def require_waits(self) -> None:
        """Raise UsageError if waits cannot be traced."""
        if not self.has_waits:
            raise UsageError(_NO_WAITS.format(self.conn.info.dbname))

    @property
    def local(self) -> bool:
        """Whether the server runs on this machine, as far as the connection tells."""
        host = self.conn.info.host or ""
        address = self.conn.info.hostaddr or host
        return not host or host.startswith(("/", "@")) or address in ("127.0.0.1", "::1")


def require_outside(server: Server, path: Path) -> None:
    """Raise UsageError if a trace would be written into the server's data directory."""
    with telling():
        readable = server.rows(
            "SELECT current_setting('data_directory') WHERE "
            "pg_has_role('pg_read_all_settings', 'USAGE')"
        )
    if readable and server.local:
        data = Path(readable[0][0]).resolve()
        if path.resolve().is_relative_to(data):
            raise UsageError(
                f"{path} lies in the server's data directory, whose disk must never fill: "
                "name a place elsewhere, best on another volume"
            )


@contextlib.contextmanager
def open_server(dsn: str, *, any_version: bool = False) -> Iterator[Server]:
    """A session of the recorder's own, itself neither traced nor counted if that is allowed.

    any_version: as for `Server`. Raises UsageError if the extension is missing, VersionMismatch if
    its version is not ours, MeasurementError if there is no server.
    """
    with (
        untraced_session.connect(
            dsn, [untraced_session.UNTIMED, untraced_session.UNTRACED]
        ) as conn,
        telling(),
    ):
        yield Server(conn, any_version=any_version)


def telling() -> contextlib.AbstractContextManager[None]:
    """Turn the server's errors into a sentence of ours."""
    return untraced_session.telling(
        "connect as a superuser, or as a member of pg_read_all_stats that may run sql_trace_set"
    )
