"""Moments of a server come in UTC, whatever time zone it or our session has.

Python adds to a moment of a zone, and compares two, by what the clocks there show: an hour is too
much or too little where summer time begins or ends in between.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader


class _InUtc(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        return super().load(data).astimezone(UTC)


class _BinaryInUtc(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        return super().load(data).astimezone(UTC)


def read_in_utc(conn: psycopg.Connection[Any]) -> None:
    """Have this session read moments in UTC."""
    conn.adapters.register_loader("timestamptz", _InUtc)
    conn.adapters.register_loader("timestamptz", _BinaryInUtc)
