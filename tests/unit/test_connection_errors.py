"""What is said of a connection string that does not work never holds its password."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres import own_session
from pgtare.postgres.load.connection import client_connection
from pgtare.postgres.own_session import without_secrets


@pytest.mark.parametrize(
    "connect",
    [own_session.connect, ServerSession, lambda dsn: client_connection(dsn, "pgtare")],
    ids=["own", "agent", "load"],
)
@pytest.mark.parametrize(
    "dsn",
    ["postgresql://w:p%ss@db/app", "host=db password=my p%ss", "postgresql://w:p?p%ss@db/app"],
)
def test_a_connection_string_that_cannot_be_read_is_not_quoted(
    connect: Callable[[str], object], dsn: str
) -> None:
    with pytest.raises(UsageError, match="cannot read the connection string: percent-encode") as ex:
        connect(dsn)
    assert "p%ss" not in str(ex.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://w:hush/x@127.0.0.1/app",  # the port
        "host=127.0.0.1 port=1 sslmode=hush",
        "postgresql://w:p@hush@127.0.0.1/app",  # the host
    ],
)
def test_a_failed_connection_does_not_quote_values(dsn: str) -> None:
    with pytest.raises(PgtareError, match="cannot connect to the server") as ex:
        own_session.connect(dsn)
    assert "hush" not in str(ex.value)


def test_a_failed_connection_says_which_server_it_was() -> None:
    dsn = "host=db,db2 port=5433 dbname=app user=w password=dba"
    why = 'connection to server at "db2", port 5433 failed: FATAL: role "w", database "app", "db"'
    assert without_secrets(why, dsn) == why
    assert without_secrets('socket "/run/.s.PGSQL.1", "dba"', dsn) == (
        'socket "/run/.s.PGSQL.1", "…"'
    )
