"""Reads what findings are computed from, by the session that it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pgtare.errors import MeasurementError
from pgtare.observing.findings import queries
from pgtare.observing.findings.observation import (
    AwaitedLock,
    ConnectionCount,
    HorizonHolder,
    LockTable,
    RoleSetting,
    SampledSession,
    ServerCounters,
    ServerNow,
    SessionsSample,
    Slot,
    StatementKey,
    StatementTotals,
    TableTotals,
)
from pgtare.observing.findings.queries import Query
from pgtare.postgres.sql_text import storable
from pgtare.postgres.wait_counters import steady_clock

#: Blockers are looked up for at most this many waiters of a sample.
MOST_WAITERS = 20
#: What notifies of transactions takes: a lock of the class of databases that is of none of them.
_DATABASE_CLASS = 1262
ANY_ROWS = "rows"
NOTIFY = "the queue of notifications (NOTIFY)"


class Unreadable(MeasurementError):
    """A query that the server refused or gave up; the session goes on.

    privilege: one is missing. slow: it was given up because it took too long.
    """

    def __init__(self, reason: str, *, privilege: bool = False, slow: bool = False) -> None:
        super().__init__(reason)
        self.privilege, self.slow = privilege, slow


class Reader(Protocol):
    """What sends a query, and gets its rows."""

    def rows(
        self, query: Query, schema: str | None = None, values: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows of a query, its extension found in `schema`. Raises Unreadable."""


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def session_of(row: Sequence[Any]) -> SampledSession:
    """What a row of `queries.SESSIONS` or `queries.BLOCKERS` says."""
    now_us, pid, started, _, role, _, database, application, kind, state, type_, event = row[:12]
    query_id, query_us, xact_us, state_us, blockers, text = row[12:18]

    def age(began_us: int | None) -> float | None:
        return None if began_us is None else max(0, now_us - began_us) / 1e6

    return SampledSession(
        pid,
        started,
        role,
        database,
        application,
        kind,
        state,
        type_,
        event,
        query_id,
        age(query_us),
        age(xact_us),
        age(state_us),
        tuple(blockers or ()),
        storable(text) or "" if text else "",
        query_us,
        xact_us,
        *row[18:],
    )


def asked(waiting: Sequence[int], turn: int) -> list[int]:
    """Those that are asked for whom they wait for: the oldest, and the others by turns."""
    half = MOST_WAITERS // 2
    first, others = list(waiting[:half]), list(waiting[half:])
    begin = turn * half % len(others) if others else 0
    return [*first, *(others[begin:] + others[:begin])[:half]]


def sample(reader: Reader, at: float, weight_s: float, waited: Sequence[int]) -> SessionsSample:
    """What sessions do now. waited: those that are asked for whom they wait for."""
    rows = reader.rows(queries.SESSIONS, None, (list(waited),))
    found = SessionsSample(at, weight_s, tuple(map(session_of, rows)))
    return with_blockers(found, lambda pids: reader.rows(queries.BLOCKERS, None, (pids,)))


def with_blockers(
    found: SessionsSample, read: Callable[[list[int]], list[tuple[Any, ...]]]
) -> SessionsSample:
    """The sample with those whom others wait for, idle ones too, and their statements' texts."""
    wanted = sorted({pid for one in found.sessions for pid in one.blockers if pid})
    if not wanted:
        return found
    sessions = dict(found.by_process)
    for one in map(session_of, read(wanted)):
        known = sessions.get(one.pid)
        sessions[one.pid] = (
            one if known is None else replace(known, text=known.text or one.text, client=one.client)
        )
    return replace(found, sessions=tuple(sessions.values()))


def plain(relation: str) -> str:
    """A relation's name as people write it: without the schema that all have."""
    return relation.removeprefix("public.")


def locks(rows: Iterable[Sequence[Any]], at: float | None = None) -> dict[int, AwaitedLock]:
    """What rows of `queries.LOCKS` say, by process that waits. at: when they were read."""
    return {row[0]: _lock(row, at) for row in rows}


def _lock(row: Sequence[Any], at: float | None) -> AwaitedLock:
    pid, tag, kind, mode, relation, oid, database, class_, object_, part = row[:10]
    gid, where, owner, prepared_us, waited_us = row[10:]
    name = None if relation is None else plain(relation)
    if name is None and oid is not None:
        name = f"relation {oid} of database {database}"
    words = name or kind
    if kind in ("transactionid", "tuple"):
        words = f"{ANY_ROWS} of {name}" if name else ANY_ROWS
    elif kind == "advisory":
        # one number of 64 bits, or two of 32
        pair = (_signed(class_, 32), _signed(object_, 32))
        whole = _signed((class_ << 32) | object_, 64)
        key = f"{pair[0]}, {pair[1]}" if part == 2 else str(whole)
        words = f"advisory lock {key}"
    elif kind == "object":
        words = NOTIFY if (class_, object_) == (_DATABASE_CLASS, 0) else f"an object ({object_})"
    elif kind == "virtualxid":
        words = ""  # a transaction that has to end, whatever it holds
    elif kind == "extend":
        words = f"the end of {name}"
    prepared_s, waited_s = _seconds(prepared_us), _seconds(waited_us)
    return AwaitedLock(
        pid, kind, mode, words, name, gid, where, owner, prepared_s, tag, waited_s, at
    )


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number


def counters(reader: Reader, version: int) -> ServerCounters:
    """Counters of the server without `wal_bytes`; version: of PostgreSQL, as 18."""
    query = queries.COUNTERS if version >= 17 else queries.COUNTERS_BEFORE_17
    (row,) = reader.rows(query)
    return replace(ServerCounters(*row), read_ns=steady_clock.now_ns())


def wal_bytes(reader: Reader) -> int:
    """How much WAL there has been so far, by its position."""
    return int(reader.rows(queries.WAL)[0][0])


def lock_table(reader: Reader) -> LockTable | None:
    """How full the table of locks is, and by whom; None if there is no lock."""
    rows = reader.rows(queries.LOCK_TABLE)
    if not rows:
        return None
    ((locks, objects, theirs, sessions, pid),) = rows
    holders = [] if pid is None else reader.rows(queries.BLOCKERS, None, ([pid],))
    holder = session_of(holders[0]) if holders else None
    return LockTable(locks, objects, theirs, sessions, holder)


def slots(reader: Reader, version: int) -> tuple[Slot, ...]:
    """All replication slots; version: of PostgreSQL, as 18."""
    query = queries.SLOTS if version >= 17 else queries.SLOTS_BEFORE_16
    if version == 16:
        query = queries.SLOTS_16
    return tuple(Slot(*row) for row in reader.rows(query))


def now(reader: Reader, *, oldest: bool = False) -> ServerNow:
    """What the server has just now. oldest: look up the oldest transaction, too."""
    found = reader.rows(queries.OLDEST) if oldest else []
    return ServerNow(
        horizon=tuple(
            HorizonHolder(kind, name, pid, age or 0, _seconds(us), database)
            for kind, name, pid, age, us, database in reader.rows(queries.HORIZON)
        ),
        connections=tuple(ConnectionCount(*row) for row in reader.rows(queries.CONNECTIONS)),
        standbys=tuple(name for (name,) in reader.rows(queries.STANDBYS)),
        oldest=session_of(found[0]) if found else None,
    )


def role_settings(reader: Reader) -> tuple[RoleSetting, ...]:
    """What roles and databases have of their own."""
    return tuple(RoleSetting(*row) for row in reader.rows(queries.ROLE_SETTINGS))


def calls(
    reader: Reader, schema: str, query_ids: Sequence[int] | None = None
) -> dict[StatementKey, StatementTotals]:
    """CountedTotals by statement: of these, or of all."""
    ids = None if query_ids is None else list(query_ids)
    rows = reader.rows(queries.CALLS, schema, (ids, ids))
    return {
        (str(database), int(query_id)): StatementTotals(*figures)
        for database, query_id, *figures in rows
    }


def texts(reader: Reader, schema: str, query_ids: Sequence[int]) -> dict[int, str]:
    """Texts of statements, without literals. The server reads the texts of all statements."""
    return _texts(reader.rows(queries.SOME_TEXTS, schema, (list(query_ids),)))


def texts_under_way(reader: Reader, query_ids: Sequence[int]) -> dict[int, str]:
    """Texts of statements as their sessions sent them."""
    return _texts(reader.rows(queries.TEXTS_UNDER_WAY, None, (list(query_ids),)))


def size_of_texts(reader: Reader) -> int | None:
    """How large the file of all texts is, in bytes; None if there is none."""
    rows = reader.rows(queries.TEXT_FILE)
    return int(rows[0][0]) if rows and rows[0][0] is not None else None


def _texts(rows: Iterable[Sequence[Any]]) -> dict[int, str]:
    return {int(query_id): storable(text) or "" for query_id, text in rows if text}


def tables(reader: Reader) -> dict[str, TableTotals]:
    """Counters of tables of this database, by name; none if there are very many."""
    return {
        plain(name): TableTotals(plain(name), scans, read, live, dead, _seconds(age), analyzed)
        for name, scans, read, live, dead, age, analyzed in reader.rows(queries.TABLES)
    }


def processors(reader: Reader, waits_schema: str | None, *, local: bool) -> float | None:
    """Processors that the server may use: as its module says, or those of this machine."""
    if waits_schema is not None:
        try:
            ((found,),) = reader.rows(queries.PROCESSORS, waits_schema)
            return None if found is None else float(found)
        except Unreadable:  # another version
            pass
    return float(len(os.sched_getaffinity(0))) if local else None


def grown(
    before: Mapping[StatementKey, StatementTotals],
    after: Mapping[StatementKey, StatementTotals],
    *,
    only_known: bool = False,
) -> dict[StatementKey, StatementTotals]:
    """What statements did between two readings; those that began in between count from zero.

    only_known: leave them out, as the first reading did not have all.
    """
    found = {}
    for statement, total in after.items():
        if only_known and statement not in before:
            continue
        change = total.minus(before.get(statement, StatementTotals()))
        if change is not None and change.calls:
            found[statement] = change
    return found
