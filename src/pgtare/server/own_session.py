"""Sessions of pgtare's own: every session on a server that is not ours begins here."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.server import encodings, pooler

#: Our own sessions; the module never lets them take part.
APPLICATION_NAME = "pgtare"
#: So long an answer takes at most before we say that we wait, in s.
_LONG_S = 3.0
_WAITING = (
    "pgtare: connected, but nothing answers yet: a pooler keeps sessions waiting while its pool is "
    "full or paused (Ctrl-C stops)"
)


def connect(dsn: str, **parameters: str) -> pooler.Connection:
    """A session of pgtare's own, in autocommit mode.

    Every session on a server that is not ours begins here. Nothing that it sends may last longer
    than a transaction: behind a pooler the server's session is the application's next.

    Raises MeasurementError if the server cannot be reached, UsageError if the connection
    string cannot be read, and if a pooler allows no transactions.
    """
    try:
        conn = pooler.Connection.connect(
            dsn,
            autocommit=True,
            application_name=APPLICATION_NAME,
            connect_timeout=10,
            prepare_threshold=None,  # a prepared statement would stay
            **parameters,  # type: ignore[arg-type]
        )
        encodings.read_any(conn)
        with _waiting_is_said():
            pooler.look(conn)
        return conn
    except psycopg.ProgrammingError as ex:
        raise UsageError(f"cannot read the connection string: {first_line(ex)}") from ex
    except psycopg.OperationalError as ex:
        # psycopg says once more what libpq says
        why = first_line(ex).removeprefix("connection is bad: ").removeprefix("connection failed: ")
        raise MeasurementError(f"cannot connect to the server: {why}") from ex


@contextlib.contextmanager
def _waiting_is_said() -> Iterator[None]:
    """Say on standard error what we wait for, if the first answer takes long."""
    late = threading.Timer(_LONG_S, print, (_WAITING,), {"file": sys.stderr, "flush": True})
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def first_line(ex: BaseException) -> str:
    """The first line of an error's text, and libpq's last, if there are several."""
    if isinstance(ex, psycopg.Error) and ex.diag.message_primary:
        hint = ex.diag.message_hint or ex.diag.message_detail
        return ex.diag.message_primary + (f" ({hint})" if hint else "")
    lines = [line.strip() for line in str(ex).splitlines() if line.strip()]
    return lines[0] if lines else type(ex).__name__
