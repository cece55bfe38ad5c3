"""Sessions on test servers, and how tests ask them."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pgtare.postgres.cluster import Cluster

Connection = psycopg.Connection[tuple[Any, ...]]


@contextlib.contextmanager
def session(cluster: Cluster, **parameters: str) -> Iterator[Connection]:
    """A session that finds the functions of all modules."""
    with psycopg.connect(cluster.dsn(**parameters), autocommit=True) as connection:
        yield set_search_path(connection)


@contextlib.contextmanager
def bare_session(
    cluster: Cluster, dbname: str = "postgres", **parameters: str
) -> Iterator[Connection]:
    """A session that has sent nothing yet, whose statements are one request each."""
    with psycopg.connect(
        make_conninfo(cluster.dsn(dbname), **parameters), autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection


def set_search_path(connection: Connection) -> Connection:
    """Let the modules' functions be found, wherever they were made."""
    connection.execute("SET search_path = public, sql_trace, wait_event_timing")
    return connection


def rows(connection: Connection, query: str, *values: object) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return connection.execute(query.encode(), values or None).fetchall()


def one(connection: Connection, query: str, *values: object) -> Any:
    """The only row's only value."""
    ((value,),) = rows(connection, query, *values)
    return value


@contextlib.contextmanager
def role(observer: Connection, name: str) -> Iterator[str]:
    """A user without rights who can name what is in the module's schema; yields that schema."""
    ((schema,),) = rows(
        observer,
        "SELECT pronamespace::regnamespace::text FROM pg_proc "
        "WHERE proname = 'wait_event_timing_set'",
    )
    observer.execute(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {name}".encode())
    try:
        yield schema
    finally:
        observer.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def executed_s(connection: Connection, query: str) -> float:
    """Execute a statement; how long its client waited for it, s."""
    began = time.monotonic()
    connection.execute(query.encode())
    return time.monotonic() - began


def setting(connection: Connection, name: str = "work_mem") -> tuple[str, str]:
    """Value and source of a setting."""
    (found,) = rows(
        connection,
        "SELECT current_setting(name), source FROM pg_settings WHERE name = %s",
        name,
    )
    return found[0], found[1]


def until_it_waits(onlooker: Connection, client: Connection, kind: str) -> None:
    """Return when that session waits for something of the kind, as pg_stat_activity shows it."""
    query = "SELECT wait_event_type = %s AND state = 'active' FROM pg_stat_activity WHERE pid = %s"
    eventually(lambda: one(onlooker, query, kind, client.info.backend_pid))


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> Any:
    """What the condition returned as soon as that was true; TimeoutError if it never was.

    Asking takes at most a fifth of a processor, which others may need to make it true.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(min(max(0.02, 4 * (now - began)), 1.0))
