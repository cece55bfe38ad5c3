"""The doctor's session: read-only, with limits of time, and only the queries of `queries`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql

from pgtare.errors import MeasurementError
from pgtare.observing.doctor import queries
from pgtare.observing.findings.queries import Query
from pgtare.observing.findings.read import Unreadable
from pgtare.postgres import own_session, pooler

#: A host that has vanished is noticed after this many ms.
_VANISHED_MS = 15_000


class Session:
    """One connection to a server, for `with`.

    Raises MeasurementError if the server cannot be reached or goes away, UsageError if the
    connection string cannot be read.
    """

    def __init__(self, dsn: str) -> None:
        self._conn: psycopg.Connection[Any] = own_session.connect(
            dsn, tcp_user_timeout=str(own_session.VANISHED_MS)
        )
        self._settings: tuple[str, ...] = queries.SET_UP
        self._limit_s: float = queries.TIMEOUT_S
        self._spent: Callable[[float], None] = lambda _: None

    @classmethod
    def within(
        cls,
        conn: psycopg.Connection[Any],
        limit_s: float = queries.TIMEOUT_S,
        spent: Callable[[float], None] = lambda _: None,
    ) -> Session:
        """A session by a connection of the caller's own, who closes it.

        limit_s: after so long the server gives a query up. spent: gets the time of each
        transaction, in s.
        """
        session = cls.__new__(cls)
        session._conn, session._limit_s, session._spent = conn, limit_s, spent
        session._settings = (*queries.SET_UP, f"statement_timeout = '{round(1000 * limit_s)}ms'")
        return session

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine: it is reached through a socket of its own."""
        return self._conn.info.host.startswith("/")

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

    def _send(
        self, text: str | sql.Composed, values: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        began = time.monotonic()
        try:
            with (
                self._telling(),
                pooler.transaction(self._conn, *self._settings, read_only=True),
            ):
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
