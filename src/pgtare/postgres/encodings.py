"""Text of a server in whatever encoding it is: always str, what cannot be read marked in it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader

from pgtare.postgres import encoded_text

#: Those without a loader of their own (0) are read as text, too.
_TYPES = ("text", "name", "varchar", "bpchar", 0)
#: The encoding of a client that takes the bytes as the server has them.
UNCONVERTED = "SQL_ASCII"
#: Names come again in each row of each look: those of so many bytes are remembered.
_SHORT = 64
_decoded_before = lru_cache(maxsize=4096)(encoded_text.decoded)


class _AnyText(Loader):
    """Reads text by the session's encoding; of SQL_ASCII, which says nothing, as UTF-8."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._encoding = _encoding(self.connection)

    def load(self, data: Buffer) -> str:
        raw = bytes(data)
        decode = _decoded_before if len(raw) <= _SHORT else encoded_text.decoded
        return decode(raw, self._encoding)


class _AnyBinaryText(_AnyText):
    format = pq.Format.BINARY


def read_any(conn: psycopg.Connection[Any]) -> None:
    """Have this session read names and texts of any encoding.

    Names of databases and roles are in the encoding of where they were made, and a database of
    SQL_ASCII holds anything.
    """
    for name in _TYPES:
        conn.adapters.register_loader(name, _AnyText)
        if name:
            conn.adapters.register_loader(name, _AnyBinaryText)


def is_spoken(conn: psycopg.Connection[Any]) -> bool:
    """Whether Psycopg can send anything in the session's encoding."""
    try:
        return bool(conn.info.encoding)
    except psycopg.NotSupportedError:
        return False


def _encoding(conn: Any) -> str:
    """PostgreSQL's name for what text is in."""
    if conn is None:
        return "UTF8"
    client = conn.info.parameter_status("client_encoding") or UNCONVERTED
    if client == UNCONVERTED:  # nothing is converted
        return conn.info.parameter_status("server_encoding") or client
    return client
