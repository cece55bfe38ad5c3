"""Text of a server in whatever encoding it is: always str, what cannot be read marked in it."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader

_TYPES = ("text", "name", "varchar", "bpchar")


class _AnyText(Loader):
    """Reads text by the session's encoding; of SQL_ASCII, which says nothing, as UTF-8."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._codec = _codec(self.connection)

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(self._codec, "replace")


class _AnyBinaryText(_AnyText):
    format = pq.Format.BINARY


def read_any(conn: psycopg.Connection[Any]) -> None:
    """Have this session read names and texts of any encoding.

    Names of databases and roles are in the encoding of where they were made, and a database of
    SQL_ASCII holds anything.
    """
    for name in _TYPES:
        conn.adapters.register_loader(name, _AnyText)
        conn.adapters.register_loader(name, _AnyBinaryText)


def _codec(conn: Any) -> str:
    try:
        found: str = conn.info.encoding if conn is not None else "utf-8"
    except psycopg.NotSupportedError:  # an encoding that Python does not know
        found = "ascii"
    return "utf-8" if found == "ascii" else found
