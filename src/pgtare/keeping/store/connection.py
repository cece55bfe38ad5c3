"""One connection to a store, by HTTP; the only module that knows clickhouse-connect."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from pgtare.errors import PgtareError, UsageError
from pgtare.keeping.store.address import StoreAddress

if TYPE_CHECKING:  # it takes a while to load
    from clickhouse_connect.driver.client import Client

#: How long to wait for a connection and for an answer, s.
CONNECT_S, ANSWER_S = 10, 60
#: The same replica must answer throughout, and no insert may wait in the server's memory.
INSERT_SETTINGS = {"async_insert": 0, "insert_deduplicate": 1, "wait_end_of_query": 1}
_LONGEST = 300


class StoreError(PgtareError):
    """The store did not answer, or refused. Of an insert, the outcome is not known then."""


class StoreConnection:
    """A connection; close it, or use it as a context manager. Errors are StoreErrors.

    Of a client of clickhouse-connect: `connect` makes one; tests give one of their own.
    """

    def __init__(self, client: Client, database: str, password: str = "") -> None:
        self.database = database
        self._client, self._password = client, password

    def rows(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """The rows of a SELECT; parameters as `{name:Type}` in its text."""
        return self.answer(sql, parameters, settings)[1]

    def answer(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Names of columns, and rows."""
        try:
            found = self._client.query(
                sql, parameters=dict(parameters or {}), settings=dict(settings or {})
            )
            return list(found.column_names), [tuple(row) for row in found.result_rows]
        except Exception as ex:
            raise self._error(ex) from None

    def command(self, sql: str, settings: Mapping[str, Any] | None = None) -> None:
        """Run a statement that has no rows."""
        try:
            self._client.command(sql, settings=dict(settings or {}))
        except Exception as ex:
            raise self._error(ex) from None

    def insert(self, table: str, rows: pa.Table, token: str | None = None) -> None:
        """Insert rows as one block; a second insert of a token is left out by the server."""
        settings: dict[str, Any] = dict(INSERT_SETTINGS)
        if token is not None:
            settings["insert_deduplication_token"] = token
        try:
            self._client.insert_arrow(table, rows, database=self.database, settings=settings)
        except Exception as ex:
            raise self._error(ex) from None

    def replica(self) -> str:
        """The server that answers: the UUID of its data, which outlives its name."""
        return str(self.rows("SELECT toString(serverUUID())")[0][0])

    def _error(self, ex: Exception) -> StoreError:
        return ex if isinstance(ex, StoreError) else StoreError(_line(ex, self._password))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(address: StoreAddress, answer_s: float = ANSWER_S) -> StoreConnection:
    """Connect to a store. Raises UsageError if the client is missing, and StoreError."""
    require_client()
    import clickhouse_connect

    # it writes warnings of its own, with addresses, if nobody takes them
    logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())
    password = address.password()
    try:
        client = clickhouse_connect.get_client(
            host=address.host,
            port=address.port,
            username=address.user,
            password=password,
            secure=address.tls,
            ca_cert=str(address.ca_file) if address.ca_file else None,
            connect_timeout=CONNECT_S,
            send_receive_timeout=answer_s,
            query_retries=0,
            autogenerate_session_id=False,
            client_name="pgtare",
        )
    except Exception as ex:
        why = _line(ex, password)
        raise StoreError(f"the store {address} cannot be reached: {why}") from None
    return StoreConnection(client, address.database, password)


def _line(ex: Exception, password: str) -> str:
    """What went wrong in one line, without secrets."""
    text = " ".join(str(ex).split()) or type(ex).__name__
    return (text.replace(password, "(hidden)") if password else text)[:_LONGEST]


def require_client() -> None:
    """Raise UsageError if the client of ClickHouse is not installed."""
    if importlib.util.find_spec("clickhouse_connect") is None:
        raise UsageError(
            "a store needs the package clickhouse-connect: install pgtare's wheel with its extra, "
            "pip install 'WHEEL[clickhouse]'"
        )


def listed(values: Sequence[str]) -> str:
    """Texts as a list in SQL."""
    return ", ".join(quoted(value) for value in values)


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
