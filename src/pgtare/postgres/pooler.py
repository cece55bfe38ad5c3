"""Poolers between us and a server: noticed, and left as they were found.

A pooler (pgbouncer, pgcat, Odyssey) gives each of our transactions any of its sessions of the
server, which the application uses next. So what we send to a server that is not ours lasts no
longer than its transaction, and what needs one session throughout looks first whether it has one.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from typing import Any, TypeGuard

import psycopg
from psycopg import pq, sql

from pgtare.errors import UsageError

#: Nothing that others have made is found unless it is named with its schema.
CLOSED_PATH = "search_path = pg_catalog, pg_temp"
#: Keeps what follows in a transaction out of pg_stat_statements; without the module it is harmless.
UNTRACKED = "pg_stat_statements.track = 'none'"
#: Which process answers.
PID = "SELECT pg_catalog.pg_backend_pid()"
#: Transactions of ours have characteristics of their own, whatever is the default of the role or
#: the database: a serializable one may wait for others if it is deferrable, and a standby has none.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED NOT DEFERRABLE"
BEGIN_READ_ONLY = f"{BEGIN} READ ONLY"
_ASK_PID = f"{BEGIN_READ_ONLY}; {PID}; COMMIT".encode()
LIKE_OURS = (
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED NOT DEFERRABLE",
    f"SET {CLOSED_PATH}",
)
#: Looks at whose session answers, before it is taken for ours alone, and the pause between two.
_LOOKS = 6
_PAUSE_S = 0.02
#: So long a second session is waited for, in s: a pool may be full.
_PATIENCE_S = 1.0

_STATEMENT_MODE = (
    "the connection goes through a pooler in statement mode, which allows no transactions: connect "
    "to the server itself, or through a pool in session or transaction mode"
)
_SHARED = (
    "{} needs one session of the server throughout, but the connection goes through a pooler in "
    "transaction mode: connect to the server itself, or through a pool in session mode"
)


class Connection(psycopg.Connection[Any]):
    """A session of ours. pooled: it goes through a pooler.

    alone: there is no other one with which it must be on one server.
    """

    pooled: bool = False
    alone: bool = False

    def readable(self, seconds: float) -> bool:
        """Whether there is something to read within that time."""
        waiting = select.poll()
        waiting.register(self.pgconn.socket, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))


@contextlib.contextmanager
def transaction(
    conn: psycopg.Connection[Any], *settings: str, read_only: bool = False
) -> Iterator[None]:
    """A transaction in which these settings ("name = value") hold; all of them end with it."""
    begin = BEGIN_READ_ONLY if read_only else BEGIN
    own = (UNTRACKED,) if UNTRACKED not in settings and _may_stay_out(conn) else ()
    lines = [begin, *(f"SET LOCAL {setting}" for setting in (*own, *settings))]
    try:
        # one message: each setting would be a round trip
        conn.execute("; ".join(lines).encode())
        yield
        conn.commit()
    except BaseException:
        if not conn.closed:
            with contextlib.suppress(psycopg.Error):
                conn.rollback()
        raise


def _may_stay_out(conn: psycopg.Connection[Any]) -> bool:
    """Whether we may keep what we send out of pg_stat_statements: as a superuser, by ourselves."""
    return not is_pooled(conn) and conn.info.parameter_status("is_superuser") == "on"


def rows(
    conn: psycopg.Connection[Any], query: str | sql.Composed, *values: object, binary: bool = False
) -> list[tuple[Any, ...]]:
    """All rows of a query, in a transaction of its own that finds only names with their schema.

    binary: the values of its columns, so that bytes come as they are.
    """
    with (
        transaction(conn, CLOSED_PATH),
        conn.cursor(row_factory=psycopg.rows.tuple_row) as cursor,
    ):
        text = query.encode() if isinstance(query, str) else query
        return cursor.execute(text, values or None, binary=binary).fetchall()


def is_pooled(conn: psycopg.Connection[Any]) -> TypeGuard[Connection]:
    """Whether others use the server's end of this session too, at least after us."""
    return isinstance(conn, Connection) and conn.pooled


def backend_pid(conn: psycopg.Connection[Any]) -> int:
    """The process of the server that serves this session; behind a pooler, that answers now."""
    return _pid(conn) if is_pooled(conn) else conn.info.backend_pid


def look(conn: Connection) -> None:
    """Find out whether there is a pooler, and whether it allows transactions.

    Raises UsageError if it does not. Without a pooler, each statement's own transaction is like
    ours from then on, and finds only names with their schema: who owns the database chooses its
    search path, and what that finds would run with our rights. A pooler gives each client a key of
    its own, with a number in it that is no process's, or another's.
    """
    conn.pooled = _pid(conn) != conn.info.backend_pid
    if not conn.pooled:  # the session is ours alone, and ends with us
        conn.execute("; ".join(LIKE_OURS).encode())
        return
    try:
        conn.execute("BEGIN")
        conn.rollback()
    except psycopg.Error as ex:
        conn.close()
        if "statement pooling" in str(ex):
            raise UsageError(_STATEMENT_MODE) from ex
        raise


def require_one_session(conn: psycopg.Connection[Any], dsn: str, purpose: str) -> None:
    """Raise UsageError, with the next step, if a pooler shares the server's sessions out.

    purpose: what needs one session. Through a pool in session mode we have one.
    """
    if is_pooled(conn) and _is_shared(conn, dsn):
        raise UsageError(_SHARED.format(purpose))


def _is_shared(conn: Connection, dsn: str) -> bool:
    """Whether sessions of the server change hands between transactions.

    Either two transactions of ours in a row reach two sessions, or a second client gets the one
    that we have just left. The second client is asked without blocking: a full pool in session
    mode never answers it, while one in transaction mode answers it before it answers us again.
    """
    own = _pid(conn)
    second = type(conn).connect(dsn, autocommit=True, application_name="pgtare", connect_timeout=10)
    with contextlib.closing(second):
        for _ in range(_LOOKS):
            # two of ours: with two sessions that take turns, every second one would be the same
            if _pid(conn) != own or _pid(conn) != own:
                return True
            theirs = _pid_within(second, _PATIENCE_S)
            if theirs == own or theirs is None:
                return theirs is not None
            time.sleep(_PAUSE_S)
    return False


def _pid(conn: psycopg.Connection[Any]) -> int:
    try:
        cursor = conn.execute(_ASK_PID)
    except psycopg.Error:
        if not conn.closed:
            conn.rollback()
        raise
    cursor.nextset()
    ((pid,),) = cursor.fetchall()
    return int(pid)


def _pid_within(conn: Connection, seconds: float) -> int | None:
    """The same; None if no answer comes within that time, and the session is of no more use."""
    raw = conn.pgconn
    raw.send_query(_ASK_PID)
    deadline = time.monotonic() + seconds
    found = None
    while True:
        while raw.is_busy():  # to get a result earlier would block
            left = deadline - time.monotonic()
            if left <= 0 or not conn.readable(left):
                return None
            raw.consume_input()
        result = raw.get_result()
        if result is None or time.monotonic() > deadline:
            return found
        if result.status == pq.ExecStatus.TUPLES_OK:
            found = int(result.get_value(0, 0) or b"0")
