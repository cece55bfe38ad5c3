"""The agent's only session on a server: short read-only transactions, and one advisory lock."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import psycopg
from psycopg import pq, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from pgtare.errors import MeasurementError, UsageError
from pgtare.keeping.agent import queries
from pgtare.keeping.agent.bounded_connection import MOST_BYTES, BoundedConnection
from pgtare.postgres import own_session, pooler, untraced_session
from pgtare.postgres.untraced_session import ExtensionFunction
from pgtare.postgres.wait_counters.counter_table import Array

#: How long the server may take for one query before it gives it up.
STATEMENT_TIMEOUT_S = 5
SETTINGS = (
    "lock_timeout = '500ms'",
    "idle_in_transaction_session_timeout = '10s'",
    pooler.CLOSED_PATH,
    "TimeZone = 'UTC'",
    "jit = off",
)
_KEPT, _KEEP = "sql_trace_kept", "sql_trace_keep_for_finding"
#: The most bytes of answers that grow with the number of statements.
_MOST_BYTES = dict.fromkeys((queries.STATEMENTS, queries.TEXTS), 8 * MOST_BYTES)
#: For the server: else it would keep the session, and its lock, for two hours.
_SERVER_KEEPALIVES = tuple(f"tcp_{name}={value}" for name, value in own_session.KEEPALIVES.items())
#: How long to wait for an earlier session that was terminated, and the pause between checks, in s.
_ENDING_S, _ENDING_PAUSE_S = 5.0, 0.1
#: Errors that come again and again until somebody changes something.
_REFUSED_FOR_GOOD = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.ObjectNotInPrerequisiteState,
)


class AgentLocked(MeasurementError):
    """The server is watched already. by: the session that has the lock, if that is known."""

    def __init__(self, reason: str, by: SessionIdentity | None = None) -> None:
        super().__init__(reason)
        self.by = by


class ServerGone(MeasurementError):
    """The session ended: the server went away, or ended it."""


class LookRefused(MeasurementError):
    """The server refused a query, and the session goes on. lasting: it would again.

    slow: it gave the query up because it took too long.
    """

    def __init__(self, reason: str, *, lasting: bool = False, slow: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting
        self.slow = slow


class _Int8Array(Loader):
    """An array of bigint without NULL, as numpy has it."""

    format = pq.Format.BINARY
    _ITEM = np.dtype([("length", ">i4"), ("value", ">i8")])

    def load(self, data: Buffer) -> Array:
        raw = bytes(data)
        dimensions = int.from_bytes(raw[:4], "big")
        if not dimensions:
            return np.zeros(0, np.int64)
        sizes = np.frombuffer(raw, ">i4", 2 * dimensions, 12)[::2]
        items = np.frombuffer(raw, self._ITEM, offset=12 + 8 * dimensions)
        return items["value"].astype(np.int64).reshape(sizes)


class _Checked(Loader):
    """An array as psycopg reads it, if its lengths are those of its bytes: it does not look."""

    format = pq.Format.BINARY
    #: psycopg's own loader
    base: type[Loader]

    def load(self, data: Buffer) -> Any:
        raw = bytes(data)
        dimensions = int.from_bytes(raw[:4], "big")
        at = 12 + 8 * dimensions
        sizes = [int.from_bytes(raw[n : n + 4], "big") for n in range(12, min(at, len(raw)), 8)]
        items = math.prod(sizes) if dimensions else 0
        sound = dimensions <= _MOST_DIMENSIONS and all(sizes) and at + 4 * items <= len(raw)
        for _ in range(items if sound else 0):
            length = int.from_bytes(raw[at : at + 4], "big", signed=True)
            at += 4 + max(length, 0)
        if not sound or at != len(raw):
            raise psycopg.DataError("an array is not as long as it says")
        return self.base(self.oid).load(raw)


#: PostgreSQL has no array of more.
_MOST_DIMENSIONS = 6


@functools.cache
def _checked(base: type[Loader]) -> type[_Checked]:
    """One class for each of psycopg's, however many sessions there are."""
    return type("Checked", (_Checked,), {"base": base})


def _read_arrays_safely(conn: psycopg.Connection[Any]) -> None:
    """A server chooses the types of its answer, and psycopg reads beyond the end of a wrong one."""
    adapters = conn.adapters
    for kind in list(adapters.types):
        base = adapters.get_loader(kind.array_oid, pq.Format.BINARY) if kind.array_oid else None
        if base is not None:
            adapters.register_loader(kind.array_oid, _checked(base))
    adapters.register_loader(adapters.types["int8"].array_oid, _Int8Array)


class SessionIdentity(NamedTuple):
    """Which session of a server: its process, and when it began."""

    pid: int
    began: str


class LockHolder(NamedTuple):
    """A session with the advisory lock of an agent; its pid is 0: a prepared transaction.

    agent: its role could be an agent's.
    """

    identity: SessionIdentity
    role: str
    agent: bool


@dataclass(frozen=True)
class Offer:
    """What a server offers this role.

    waits, texts, trace: schemas of wait_event_timing, pg_stat_statements and sql_trace, or None.
    may_stat_file: whether the role may ask how large a file is.
    keep: schema of the function that has traces kept, if the role may call it. keep_grant: how to
    allow that, if it may not.
    unseen: what is missing, a sentence with the remedy for each.
    """

    version: str
    standby: bool
    database: str
    role: str
    sees_all: bool
    system_identifier: int
    waits: str | None = None
    texts: str | None = None
    trace: str | None = None
    may_stat_file: bool = False
    keep: str | None = None
    keep_grant: str | None = None
    unseen: tuple[str, ...] = ()


def _grant(quoted_schema: str | None, functions: list[str], quoted_role: str) -> str:
    """What lets a role call functions. quoted_schema: None, if it may use that already."""
    grants = [f"GRANT EXECUTE ON FUNCTION {', '.join(functions)} TO {quoted_role};"]
    if quoted_schema is not None:
        grants.insert(0, f"{untraced_session.usage_grant(quoted_schema, quoted_role)};")
    return " ".join(grants)


class ServerSession:
    """One connection to a server, for `with`; it holds the advisory lock of an agent.

    ended: sessions of this agent that are over, or must make way. If one of them holds the lock, it
    is ended. identity: of this session; None behind a pooler.

    Raises MeasurementError if the server cannot be reached, AgentLocked if another agent watches
    it, UsageError for a wrong connection string, and behind a pooler that shares sessions.
    """

    def __init__(
        self, dsn: str, *, lock: bool = True, ended: Collection[SessionIdentity] = ()
    ) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        """time of the looks by name, as seen from here, in s"""
        try:
            full = psycopg.conninfo.make_conninfo(dsn, **own_session.NOTICES_VANISHED)
        except psycopg.ProgrammingError as ex:
            raise UsageError(own_session.unreadable(ex, dsn)) from ex
        conn = untraced_session.connect(
            full, [untraced_session.UNTIMED], _SERVER_KEEPALIVES, BoundedConnection
        )
        assert isinstance(conn, BoundedConnection)
        self.conn = conn
        self._locked = False
        self._unlocked: str | None = None
        """why there is no lock, and what to do, if somebody else keeps it from agents"""
        self.identity: SessionIdentity | None = None
        try:
            pooler.require_one_session(self.conn, dsn, "pgtare agent")
            _read_arrays_safely(self.conn)
            if lock:
                self._lock(ended)
                self.identity = self._own_identity()
            self.offer = self.read_offer()
        except BaseException:
            self.conn.close()
            raise

    def __enter__(self) -> ServerSession:
        return self

    def __exit__(self, *_: object) -> None:
        # behind a pooler the server's session outlasts this one
        if self._locked and not self.conn.closed:
            with contextlib.suppress(psycopg.Error, MeasurementError):
                self._plain(queries.UNLOCK, queries.LOCK_CLASS, queries.LOCK_OBJECT)
        self.conn.close()

    def _plain(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._telling():
            return pooler.rows(self.conn, query, *values)

    def _own_identity(self) -> SessionIdentity | None:
        if pooler.is_pooled(self.conn):
            return None  # the server's session may be another client's next
        (row,) = self._plain(queries.OWN_SESSION)
        return SessionIdentity(*row)

    def _lock(self, ended: Collection[SessionIdentity]) -> None:
        holder = self._try_to_lock()
        if holder is not None and holder.identity in ended:
            with contextlib.suppress(LookRefused):  # another role's may be out of reach
                self._plain(queries.END_SESSION, *holder.identity)
            deadline = time.monotonic() + _ENDING_S
            while holder is not None and time.monotonic() < deadline:
                time.sleep(_ENDING_PAUSE_S)
                holder = self._try_to_lock()
        if holder is not None:
            raise AgentLocked(
                "another pgtare agent watches this server (its session is process "
                f"{holder.identity.pid}): stop that one first, or let it go on alone",
                holder.identity,
            )
        if not self._locked:
            self._note_stranger()

    def _note_stranger(self) -> None:
        """Go on without the lock if a session that is no agent's has it; else raise AgentLocked."""
        for holder in self._lock_holders():
            if not holder.agent:
                pid = holder.identity.pid
                who = f"process {pid} of role {holder.role}, which is no agent,"
                remedy = f"SELECT pg_terminate_backend({pid});"
                if not pid:
                    who, remedy = "a prepared transaction", "see pg_prepared_xacts"
                self._unlocked = (
                    f"{who} has the advisory lock of pgtare agent, so a second agent would not be "
                    f"noticed: {remedy}"
                )
                return
        raise AgentLocked("another pgtare agent begins to watch this server: stop one of them")

    def _try_to_lock(self) -> LockHolder | None:
        """Take the lock if it is free. Returns the session of another agent that holds it."""
        if not self._locked:
            key = (queries.LOCK_CLASS, queries.LOCK_OBJECT)
            ((self._locked,),) = self._plain(queries.LOCK, *key)
        return self.watched_by()

    def watched_by(self) -> LockHolder | None:
        """The session of another agent that watches the server, in any database."""
        return next((holder for holder in self._lock_holders() if holder.agent), None)

    def _lock_holders(self) -> list[LockHolder]:
        """Other sessions with the lock, in any database."""
        found = self._plain(queries.LOCKED_BY, queries.LOCK_CLASS, queries.LOCK_OBJECT)
        return [LockHolder(SessionIdentity(*row[:2]), *row[2:]) for row in found]

    def read_offer(self) -> Offer:
        """What the server offers now: extensions come and go, and who has the lock."""
        if self._unlocked is not None:
            self._unlocked = None
            self._lock(())
        with self.look("connect"):
            ((version, standby, database, role, sees_all, quoted, may_control, may_stat),) = (
                self.rows(queries.SERVER)
            )
            found = self.rows(untraced_session.FUNCTIONS, list(queries.FUNCTION_NAMES))
            identifier = self.rows(queries.SYSTEM_IDENTIFIER)[0][0] if may_control else 0
        unseen = [] if self._unlocked is None else [self._unlocked]
        if not sees_all:
            unseen.append(
                f"sessions and statements of other roles are hidden from role {role}: "
                f"GRANT pg_monitor TO {quoted};"
            )
        schemas: dict[str, str] = {}
        names: set[str] = set()
        hidden: set[str] = set()
        closed: dict[str, list[str]] = {}
        keep_grant = None
        for function in (ExtensionFunction(*row) for row in found):
            if function.usable and function.executable:
                schemas[function.name] = function.schema
                if function.name == "wait_event_timing_moment":
                    names |= set(function.columns)
            elif function.name == _KEEP:
                keep_grant = _grant(
                    None if function.usable else function.quoted_schema,
                    [function.signature],
                    quoted,
                )
            elif function.name != _KEPT or sees_all:  # pg_monitor brings that one
                hidden.add(function.name)
                closed.setdefault(function.quoted_schema, []).append(function.signature)
        for schema, functions in sorted(closed.items()):
            unseen.append(
                f"role {role} may not call {', '.join(functions)}: "
                f"{_grant(schema, functions, quoted)}"
            )
        waits = schemas.get("wait_event_timing_info")
        if not {"wait_event_timing_moment", "wait_event_timing_statements"} <= schemas.keys():
            waits = None
            if not any(name.startswith("wait_event") for name in hidden):
                unseen.append(
                    f"database {database} has no extension wait_event_timing, so waits are only "
                    "sampled once a second: docs/install.md says how to install it"
                )
        elif "total_ns" not in names:
            waits = None
            unseen.append(
                f"the extension wait_event_timing of database {database} is of another version "
                "than the agent, so waits are only sampled once a second: docs/install.md says how "
                "to install it"
            )
        texts = schemas.get("pg_stat_statements")
        if texts is None and "pg_stat_statements" not in hidden:
            unseen.append(f"database {database} has no pg_stat_statements, so texts are unknown")
        return Offer(
            version,
            standby,
            database,
            role,
            sees_all,
            int(identifier),
            waits,
            texts,
            schemas.get(_KEPT) if sees_all else None,
            may_stat,
            schemas.get(_KEEP),
            keep_grant,
            tuple(unseen),
        )

    @contextlib.contextmanager
    def look(self, name: str, limit_s: float = STATEMENT_TIMEOUT_S) -> Iterator[None]:
        """One short read-only transaction, whose time is counted under a name.

        limit_s: the server cancels a query that takes longer. Raises LookRefused and ServerGone.
        """
        began = time.monotonic()
        settings = (*SETTINGS, f"statement_timeout = '{round(1000 * limit_s)}ms'")
        try:
            with (
                self._telling(limit_s),
                pooler.transaction(self.conn, *settings, read_only=True),
            ):
                yield
        finally:
            self.seconds[name] += time.monotonic() - began

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a query, within a look."""
        names = {
            name: sql.Identifier(getattr(self.offer, name) or "")
            for name in ("waits", "texts", "trace", "keep")
            if f"{{{name}}}" in query
        }
        text = sql.SQL(query).format(**names) if names else query.encode()
        self.conn.most_bytes = _MOST_BYTES.get(query, MOST_BYTES)
        try:
            return self.conn.execute(text, values or None, binary=True).fetchall()
        finally:
            self.conn.most_bytes = MOST_BYTES

    @contextlib.contextmanager
    def _telling(self, limit_s: float = STATEMENT_TIMEOUT_S) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.QueryCanceled as ex:
            raise LookRefused(f"a look took longer than {limit_s:g} s", slow=True) from ex
        except _REFUSED_FOR_GOOD as ex:
            raise LookRefused(own_session.first_line(ex), lasting=True) from ex
        except psycopg.Error as ex:
            if own_session.is_lost(self.conn, ex):
                raise ServerGone(f"the session ended: {own_session.first_line(ex)}") from ex
            if ex.sqlstate is None:
                raise  # the server did answer, with a value that cannot be read
            raise LookRefused(own_session.first_line(ex)) from ex
