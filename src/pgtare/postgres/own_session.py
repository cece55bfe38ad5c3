"""Sessions of pgtare's own: every session on a server that is not ours begins here."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import chosen_host, encodings, moments, pooler

#: Our own sessions; the module never lets them take part.
APPLICATION_NAME = "pgtare"
#: Nothing of libpq's own words, which quote what they cannot read: that may be the password.
UNREADABLE = (
    "cannot read the connection string: percent-encode special characters in a URI, quote values "
    "with spaces, or use a password file"
)
#: A host that has vanished is noticed after this many ms.
VANISHED_MS = 15_000
#: After this many s a connection that is silent is asked whether the server is still there.
KEEPALIVES = {"keepalives_idle": "15", "keepalives_interval": "5", "keepalives_count": "3"}
#: What a session is opened with that notices both.
NOTICES_VANISHED = {"tcp_user_timeout": str(VANISHED_MS), **KEEPALIVES}
_NO_KEY = re.compile(r'(?:connection option|URI query parameter:?) "(\w+)"')
_KEYS = sorted(each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults())
#: What psycopg reads of a connection string to find a server: it knows no service files.
_PLACE = ("host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts")
_QUOTED, _HIDDEN = re.compile(r"""(["'])(.*?)\1"""), '"…"'
#: So long an answer takes at most before we say that we wait, in s.
_LONG_S = 3.0
_WAITING = (
    "pgtare: connected, but nothing answers yet: a pooler keeps sessions waiting while its pool is "
    "full or paused (Ctrl-C stops)"
)


def connect(
    dsn: str,
    kind: type[pooler.Connection] = pooler.Connection,
    **parameters: str,
) -> pooler.Connection:
    """A session of pgtare's own, in autocommit mode.

    Every session on a server that is not ours begins here. Nothing that it sends may last longer
    than a transaction: behind a pooler the server's session is the application's next. Of several
    hosts, all sessions go to the one that the first went to, as long as that one can be reached,
    unless their kind is alone.

    Raises MeasurementError if the server cannot be reached, UsageError if the connection
    string cannot be read, and if a pooler allows no transactions.
    """
    anew = kind.alone
    try:
        conn = chosen_host.connect(lambda target: _open(target, kind, parameters), dsn, anew=anew)
        if not encodings.is_spoken(conn):  # we send ASCII, and read the bytes
            conn.close()
            unconverted = {**parameters, "client_encoding": encodings.UNCONVERTED}
            conn = chosen_host.connect(
                lambda target: _open(target, kind, unconverted), dsn, anew=anew
            )
        encodings.read_any(conn)
        moments.read_in_utc(conn)
        with _waiting_is_said():
            pooler.look(conn)
        return conn
    except psycopg.ProgrammingError as ex:
        raise UsageError(unreadable(ex, dsn)) from ex
    except psycopg.OperationalError as ex:
        # psycopg says once more what libpq says
        why = first_line(ex).removeprefix("connection is bad: ").removeprefix("connection failed: ")
        why = without_secrets(why, dsn)
        raise MeasurementError(f"cannot connect to the server: {why}") from ex


def another(conn: psycopg.Connection[Any]) -> pooler.Connection:
    """Another session as the same role on the same server. Raises as `connect`."""
    options = {one.keyword.decode(): (one.val or b"").decode() for one in conn.pgconn.info}
    given = {name: value for name, value in options.items() if value and name != "service"}
    return connect(make_conninfo("", **{**given, **chosen_host.reached(conn)}))


def find_as_usual(conn: psycopg.Connection[Any]) -> None:
    """Let names be found as the role and the database say: what users give is theirs."""
    conn.execute("RESET search_path")


def _open(
    dsn: str, kind: type[pooler.Connection], parameters: Mapping[str, str]
) -> pooler.Connection:
    return kind.connect(
        _with_place(dsn),
        autocommit=True,
        application_name=APPLICATION_NAME,
        connect_timeout=10,
        prepare_threshold=None,  # a prepared statement would stay
        **parameters,  # type: ignore[arg-type]
    )


def _with_place(dsn: str) -> str:
    """A connection string that also says what its service file says of the server's place.

    psycopg then looks the name up, while other threads go on. Left to libpq, which holds Python's
    lock, a name server that does not answer would stop them all. libpq reads the file, and gives
    up before it connects: there is no such sslmode.
    """
    if not conninfo_to_dict(dsn).get("service") and "PGSERVICE" not in os.environ:
        return dsn
    conn = psycopg.pq.PGconn.connect_start(make_conninfo(dsn, sslmode="?").encode())
    found = {each.keyword.decode(): each.val for each in conn.info}
    conn.finish()
    place = {name: value.decode() for name in _PLACE if (value := found.get(name))}
    return make_conninfo(dsn, **place)


def unreadable(ex: BaseException, dsn: str) -> str:
    """What is wrong with a connection string, by libpq's error.

    A word that libpq takes for a key is named only if it is nearly one: it could be a part of a
    password.
    """
    found = _NO_KEY.search(str(ex))
    least = 0.85 if "password" in dsn or "@" in dsn else 0.7
    near = difflib.get_close_matches(found[1], _KEYS, n=1, cutoff=least) if found else []
    if found and near:
        return f'cannot read the connection string: there is no key "{found[1]}"; {near[0]} is one'
    return UNREADABLE


def without_secrets(why: str, dsn: str) -> str:
    """An error of libpq without the values of the connection string that it quotes.

    Hosts, ports, the database and the role stay: they say which server it was. But a password that
    was written wrongly can be part of what libpq takes for them.
    """
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return _QUOTED.sub(_HIDDEN, why)
    shown: set[str] = set()
    for name in ("host", "hostaddr", "port", "dbname", "user"):
        value = str(parts.get(name) or "")
        shown |= {
            each
            for each in {value, *value.split(",")}
            if "@" not in each and (name != "port" or each.isdigit())
        }

    def hide(found: re.Match[str]) -> str:
        token = found[2]
        quoted = any(token in str(value) for value in parts.values()) or token in dsn
        return _HIDDEN if token and quoted and token not in shown else found[0]

    return _QUOTED.sub(hide, why)


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


def is_lost(conn: psycopg.Connection[Any], error: psycopg.Error) -> bool:
    """Whether the server ended the session or went away.

    Not if psycopg could not read a value, as a date after the year 9999: that has no SQLSTATE
    either, but the session goes on.
    """
    if conn.closed or conn.broken:
        return True
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate[:3] == "57P"


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Psycopg's errors become a MeasurementError: a session was ended, or the server went away."""
    try:
        yield
    except psycopg.Error as ex:
        raise MeasurementError(f"the server did not answer: {first_line(ex)}") from ex


def first_line(ex: BaseException) -> str:
    """The first line of an error's text, and libpq's last, if there are several."""
    if isinstance(ex, psycopg.Error) and ex.diag.message_primary:
        hint = ex.diag.message_hint or ex.diag.message_detail
        return ex.diag.message_primary + (f" ({hint})" if hint else "")
    lines = [line.strip() for line in str(ex).splitlines() if line.strip()]
    return lines[0] if lines else type(ex).__name__
