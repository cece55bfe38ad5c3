"""Reads the counters that proof of activity compares before and after a trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgtare.postgres.own_session import first_line
from pgtare.postgres.pooler import CLOSED_PATH
from pgtare.weighing.instruments.model import Chosen, SqlRule

#: A counter that cannot be read in this time counts as unreadable.
STATEMENT_TIMEOUT_MS = 5000
#: The schema of an extension; on a private server one of ours may be there without its extension,
#: and only superusers make functions in C.
_PLACE = """
SELECT quote_ident(nspname) FROM pg_namespace WHERE oid IN (
    SELECT extnamespace FROM pg_extension WHERE extname = %s
    UNION ALL SELECT pronamespace FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
        WHERE proname = %s AND lanname = 'c') LIMIT 1
"""


@dataclass(frozen=True)
class Reading:
    """One counter: its value, or None and why it could not be read."""

    value: float | None
    error: str = ""


@dataclass(frozen=True)
class Snapshot:
    """Counters by the text of their statement, and the server's major version."""

    major: int
    readings: Mapping[str, Reading] = field(default_factory=dict)

    def __getitem__(self, sql: str) -> Reading:
        return self.readings.get(sql, Reading(None, "it was not read"))


def snapshot(conn: psycopg.Connection[Any], chosen: Iterable[Chosen]) -> Snapshot:
    """Read every counter that the proof rules of the chosen arms need on this server.

    Each statement runs by itself, in a read-only transaction that is rolled back, for at most
    STATEMENT_TIMEOUT_MS. It finds the names of pg_catalog and of the extension that the instrument
    needs, and no others: those of the database's owner would run with our rights. Nothing is
    raised: what cannot be read (no privilege, no such view, a lost connection) says why in its
    Reading. Take the second snapshot a second or more after the load's last transaction, as
    sessions report most counters with that delay.
    """
    version = conn.info.server_version // 10000
    wanted: dict[str, str] = {}
    for choice in chosen:
        extension = choice.entry.needs.extension if choice.entry else None
        for rule in choice.rules:
            if isinstance(rule, SqlRule) and rule.applies(version):
                wanted |= dict.fromkeys(rule.statements, extension or "")
    return Snapshot(version, {sql: _read(conn, sql, each) for sql, each in wanted.items()})


def _read(conn: psycopg.Connection[Any], sql: str, extension: str) -> Reading:
    try:
        with conn.transaction(force_rollback=True), conn.cursor(row_factory=tuple_row) as cur:
            cur.execute("SET LOCAL transaction_read_only = on")
            cur.execute(f"SET LOCAL {CLOSED_PATH}".encode())
            if extension:
                function = f"{extension}_library_version"
                for (place,) in cur.execute(_PLACE, (extension, function)).fetchall():
                    cur.execute(f"SET LOCAL search_path = pg_catalog, {place}, pg_temp".encode())
            cur.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
            # A binary result makes psycopg use the extended protocol, which takes one statement
            # only: a catalogue's text cannot end the read-only transaction and go on.
            row = cur.execute(sql.encode(), binary=True).fetchone()
    except psycopg.Error as ex:
        return Reading(None, first_line(ex))
    if row is None or len(row) != 1:
        return Reading(None, "it does not return one number")
    try:
        value = float(row[0])
    except (TypeError, ValueError):
        return Reading(None, "it does not return one number")
    return Reading(value) if math.isfinite(value) else Reading(None, "it is not a finite number")
