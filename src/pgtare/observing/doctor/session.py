"""The doctor's session: read-only, with limits of time, and only the queries of `queries`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql

from pgtare.errors import MeasurementError
from pgtare.observing.doctor import queries
from pgtare.observing.findings.queries import Query
from pgtare.observing.findings.read import Unreadable
from pgtare.postgres import own_session, pooler, run_queue


@contextlib.contextmanager
def connected(dsn: str) -> Iterator[Session]:
    """A session of the doctor's own.

    Raises MeasurementError if the server cannot be reached, UsageError if the connection string
    cannot be read.
    """
    timeout = str(own_session.VANISHED_MS)
    with contextlib.closing(own_session.connect(dsn, tcp_user_timeout=timeout)) as conn:
        yield Session(conn)


class Session:
    """Sends the queries by a connection that somebody else closes.

    limit_s: after so long the server gives a query up. spent: gets the time of each transaction,
    in s. Raises MeasurementError if the server goes away.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        limit_s: float = queries.TIMEOUT_S,
        spent: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._conn, self._limit_s, self._spent = conn, limit_s, spent
        self._settings = queries.set_up(limit_s)

    @cached_property
    def is_local(self) -> bool:
        """Whether the server is on this machine: what answers a socket here is a process here."""
        host = self._conn.info.host
        if not host.startswith("/"):
            return False
        with self._telling():
            return run_queue.is_local(host, pooler.backend_pid(self._conn))

    def stay_out(self) -> None:
        """Keep our statements out of pg_stat_statements, if it is loaded; a superuser's right."""
        before = self._settings
        # first, so that the other settings stay out as well
        self._settings = (pooler.UNTRACKED, *before)
        try:
            self._send(pooler.PID)
        except Unreadable:
            self._settings = before

    def rows(
        self, query: Query, schema: str | None = None, values: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows of a query, its extension found in `schema`. Raises Unreadable."""
        text: str | sql.Composed = query.text
        if schema is not None:
            text = sql.SQL(query.text).format(schema=sql.Identifier(schema))
        return self._send(text, values)

    def readable(self, query: Query, schema: str | None = None) -> list[tuple[Any, ...]]:
        """The same; none if it is refused or given up, as its library may not be loaded."""
        try:
            return self.rows(query, schema)
        except Unreadable:
            return []

    def _send(
        self, text: str | sql.Composed, values: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        began = time.monotonic()
        try:
            with self._telling(), pooler.transaction(self._conn, *self._settings, read_only=True):
                statement = text.encode() if isinstance(text, str) else text
                return self._conn.execute(statement, values).fetchall()
        finally:
            self._spent(time.monotonic() - began)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.QueryCanceled as ex:
            raise Unreadable(f"it took longer than {self._limit_s:g} s", slow=True) from ex
        except psycopg.Error as ex:
            if own_session.is_lost(self._conn, ex):
                raise MeasurementError(
                    f"the server went away while it was looked at: {own_session.first_line(ex)}"
                ) from ex
            raise Unreadable(
                own_session.first_line(ex),
                privilege=isinstance(ex, psycopg.errors.InsufficientPrivilege),
                slow=isinstance(ex, psycopg.errors.LockNotAvailable),
            ) from ex
