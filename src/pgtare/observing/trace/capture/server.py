"""The recorder's session on the server, and errors of the server in a sentence of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgtare.errors import UsageError
from pgtare.postgres import module_setup, module_versions, pooler, untraced_session

_NO_WAITS = (
    "levels 8 and 12 need the extension wait_event_timing, which database {} does not have: "
    "CREATE EXTENSION wait_event_timing; there, or use --level 4"
)
_NO_CALLS = (
    "only waits are recorded here, which is level 8: leave out --level {}, or record with the "
    "extension sql_trace"
)


class Need(Enum):
    """Which extension has to be there; EITHER: calls are recorded if sql_trace is there."""

    CALLS = auto()
    WAITS = auto()
    EITHER = auto()


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
    """A session that drains. has_calls, has_waits: what it reads of sql_trace, wait_event_timing.

    any_version: versions that do not go together are no error, but noted in `mismatch`; to end what
    another version began.
    """

    def __init__(
        self, conn: psycopg.Connection[Any], need: Need = Need.CALLS, *, any_version: bool = False
    ) -> None:
        self.conn = conn
        self.pooled = pooler.is_pooled(conn)
        own = 0 if self.pooled else conn.info.backend_pid
        self._names: dict[str, sql.Composable] = {"own": sql.Literal(own)}
        found = untraced_session.find_functions(conn, "sql_trace_drain", "wait_event_trace_drain")
        self.schemas = {function.name: function.schema for function in found}
        self._quoted = {function.name: function.quoted_schema for function in found}
        self.has_waits = "wait_event_trace_drain" in self.schemas
        self.has_calls = "sql_trace_drain" in self.schemas and need is not Need.WAITS
        if not self.has_calls and not (self.has_waits and need is not Need.CALLS):
            # by default waits are traced, too
            modules = ["wait_event_timing", "sql_trace"][: 1 if need is Need.WAITS else 2]
            steps = module_setup.remaining_steps(conn, modules)
            raise module_setup.missing(
                f"database {conn.info.dbname} has no extension {modules[-1]}",
                steps,
                ", or connect to the database that has it" if len(steps) == 1 else "",
            )
        untraced_session.require_usable(found)
        used = []
        if self.has_waits:
            self._names["waits"] = sql.Identifier(self.schemas["wait_event_trace_drain"])
            used.append("wait_event_timing")
        if self.has_calls:
            self._names["trace"] = sql.Identifier(self.schemas["sql_trace_drain"])
            used.insert(0, "sql_trace")
        mismatches = [module_versions.compare(conn, module) for module in used]
        self.mismatch = "; ".join(str(one) for one in mismatches if one is not None)
        if self.mismatch and not any_version:
            raise module_versions.VersionMismatch(self.mismatch)
        of = "trace}.sql_trace" if self.has_calls else "waits}.wait_event_timing"
        self._names["setter"] = sql.SQL(f"{{{of}_set").format(**self._names)
        self._names["level"] = sql.SQL(self.setter_takes)
        self.rows(f"SELECT * FROM {{{of}_info()")

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a query; bytes come as they are, not as text.

        {trace} and {waits} are the schemas of sql_trace and of wait_event_timing, {setter} is what
        has a session traced at a level of the type {level}; {own} is our process, 0 behind a
        pooler, where our session is one of the application's as well.
        """
        text = sql.SQL(query).format(**self._names)
        return pooler.rows(self.conn, text, *values, binary=True)

    def unread(self) -> Unread:
        """Since the server started."""
        if not self.has_calls:
            return Unread()
        (found,) = self.rows(
            "SELECT unread_sessions, unread_records, unread_bytes FROM {trace}.sql_trace_info()"
        )
        return Unread(*found)

    @property
    def setter(self) -> str:
        """The function that has a session traced, by its process and a level; NULL ends that."""
        return "sql_trace_set" if self.has_calls else "wait_event_timing_set"

    @property
    def setter_name(self) -> str:
        """The same with its schema, as it is typed."""
        of = "sql_trace_drain" if self.has_calls else "wait_event_trace_drain"
        return f"{self._quoted[of]}.{self.setter}"

    @property
    def setter_takes(self) -> str:
        """The type of its level. Each argument has its own: no other function can fit better."""
        return "integer" if self.has_calls else "text"

    def trace(self, pid: int, level: int) -> None:
        """Have a session traced, as long as nobody ends that."""
        wanted = level if self.has_calls else "trace"
        self.rows("SELECT {setter}(%s::integer, %s::{level})", pid, wanted)

    def level(self, asked: int | None) -> int:
        """The level of a recording; if none was asked for, all that can be recorded."""
        if not self.has_calls:
            if asked not in (None, 8):
                raise UsageError(_NO_CALLS.format(asked))
            return 8
        if asked is None:
            return 12 if self.has_waits else 4
        if asked >= 8 and not self.has_waits:
            raise UsageError(_NO_WAITS.format(self.conn.info.dbname))
        return asked

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
def open_server(
    dsn: str, need: Need = Need.CALLS, *, any_version: bool = False
) -> Iterator[Server]:
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
        yield Server(conn, need, any_version=any_version)


def telling() -> contextlib.AbstractContextManager[None]:
    """Turn the server's errors into a sentence of ours."""
    return untraced_session.telling(
        "connect as a superuser, or as a member of pg_read_all_stats that may run sql_trace_set "
        "(wait_event_timing_set to record only waits)"
    )
