"""Collects what findings of one server are computed from, sample after sample."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pgtare.observing.findings import limits, queries, read
from pgtare.observing.findings.observation import (
    AwaitedLock,
    LockTable,
    Observation,
    ServerCounters,
    ServerNow,
    ServerState,
    SessionsSample,
    Slot,
    StatementKey,
    StatementTotals,
    TableTotals,
)
from pgtare.observing.findings.read import Reader
from pgtare.observing.findings.statement_texts import FindingTexts
from pgtare.postgres.wait_counters import steady_clock

#: So many statements are looked up, those that were seen most.
_MOST_STATEMENTS = 10

#: Counting the lock table stops whoever takes a lock. At least so many s pass between two counts,
#: and so many times the duration of the last one.
_LOCK_TABLE_S, _LOCK_TABLE_TIMES = 30.0, 100.0
#: So does reading the locks that sessions wait for, which is done again after this many times.
_LOCKS_TIMES = 10.0
#: If more looks at sessions are refused, what slows them cannot be seen.
_MOST_REFUSED = 0.2
#: What cannot be seen then, as `FindingInputs.unseen` names it.
SESSIONS = "sessions"

Value = TypeVar("Value")


@dataclass(frozen=True)
class ServerKind:
    """What decides how a server is read. version: as 18. local: on this machine.

    database: the one that is connected to.
    statements, waits: schemas of pg_stat_statements and wait_event_timing; None: not there.
    may_stat_file: whether the role may ask how large a file is.
    """

    version: int
    standby: bool
    sees_all: bool
    statements: str | None = None
    waits: str | None = None
    local: bool = False
    may_stat_file: bool = False
    database: str = ""


@dataclass(frozen=True)
class CountedTotals:
    """Everything that counts from some moment on, as read at one moment.

    tables_ns: when the tables were read, which may be earlier, by our monotonic clock.
    """

    counters: ServerCounters | None = None
    statements: Mapping[StatementKey, StatementTotals] = field(default_factory=dict)
    tables: Mapping[str, TableTotals] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    #: Whether it has some statements only.
    is_part: bool = False
    tables_ns: int | None = None


class FindingInputs:
    """The inputs of findings. unseen: what could not be read, and why."""

    def __init__(self, reader: Reader, kind: ServerKind) -> None:
        self.reader, self.kind = reader, kind
        self.unseen: dict[str, str] = {}
        self.samples: list[SessionsSample] = []
        self.locks: dict[int, AwaitedLock] = {}
        self.looks = self.refused = 0
        """how often sessions were looked at, and how often the server did not answer"""
        self._waiting: tuple[int, ...] = ()
        self._asked = False
        self._sampled_at: float | None = None
        self._locks_due = 0.0
        self._processors = self._try(
            "processors", lambda: read.processors(reader, kind.waits, local=kind.local), None
        )

    def _try(self, what: str, look: Callable[[], Value], otherwise: Value) -> Value:
        try:
            return look()
        except read.Unreadable as ex:
            self.unseen[what] = str(ex)
            return otherwise

    def totals(
        self, query_ids: Sequence[int] | None = None, *, tables: bool = True
    ) -> CountedTotals:
        """What has been counted so far: of these statements, or of all; of tables if wanted."""
        schema = self.kind.statements
        statements: dict[StatementKey, StatementTotals] = {}
        of_tables: dict[str, TableTotals] = {}
        if schema is not None and query_ids != []:
            statements = self._try(
                "calls of statements", lambda: read.calls(self.reader, schema, query_ids), {}
            )
        if tables:
            of_tables = self._try("tables", lambda: read.tables(self.reader), {})
        counters = self._try(
            "counters", lambda: read.counters(self.reader, self.kind.version), None
        )
        if counters is not None:
            wal_bytes = self._try("WAL", lambda: read.wal_bytes(self.reader), None)
            counters = replace(counters, wal_bytes=wal_bytes)
        return CountedTotals(
            counters,
            statements,
            of_tables,
            self._try("slots", lambda: read.slots(self.reader, self.kind.version), ()),
            is_part=query_ids is not None,
            tables_ns=steady_clock.now_ns() if tables else None,
        )

    def sample(self, default_s: float) -> None:
        """Look at the sessions; default_s: time that a first sample covers."""
        if not self.kind.sees_all:
            return
        now = time.monotonic()
        weight = default_s if self._sampled_at is None else now - self._sampled_at
        self._sampled_at = now
        pids = read.asked(self._waiting, len(self.samples))
        found = read.sample(self.reader, time.time(), weight, pids)
        self._asked |= bool(pids)
        self.samples.append(found)
        waiting = [one for one in found.sessions if one.type == "Lock"]
        waiting.sort(key=lambda one: -(one.query_age_s or 0.0))
        self._waiting = tuple(one.pid for one in waiting)
        if waiting and time.monotonic() >= self._locks_due:
            self._read_locks(found.at)

    def _read_locks(self, at: float) -> None:
        began = time.monotonic()
        none: dict[int, AwaitedLock] = {}
        self.locks |= self._try(
            "locks", lambda: read.locks(self.reader.rows(queries.LOCKS), at), none
        )
        ended = time.monotonic()
        self._locks_due = ended + _LOCKS_TIMES * (ended - began)

    @property
    def is_unasked(self) -> bool:
        """Whether sessions wait for locks, and no sample so far has asked for whom."""
        return bool(self._waiting) and not self._asked

    def lock_table(self) -> LockTable | None:
        """How full the table of locks is."""
        if not self.kind.sees_all:
            return None
        return self._try("lock table", lambda: read.lock_table(self.reader), None)

    def observation(
        self,
        settings: Mapping[str, str],
        first: CountedTotals,
        last: CountedTotals,
        waited_s: Mapping[str, float] | None,
        *,
        sources: Mapping[str, str],
        texts: Mapping[int, str],
        lock_table: LockTable | None = None,
    ) -> Observation:
        """All of it, between two readings of totals.

        sources: of settings that are from no configuration file. waited_s: by event, as counted.
        texts: of statements.
        """
        oldest = limits.has_to_do_with_age(settings, last.counters)
        if self.refused > _MOST_REFUSED * self.looks:
            self.unseen[SESSIONS] = f"{self.refused} of {self.looks} looks were refused"
        grown = read.grown(first.statements, last.statements, only_known=last.is_part)
        state = ServerState(
            settings=settings,
            sources=sources,
            role_settings=self._try(
                "settings of roles", lambda: read.role_settings(self.reader), ()
            ),
            processors=self._processors,
            standby=self.kind.standby,
            before=first.counters,
            after=last.counters,
            now=self._try("server", lambda: read.now(self.reader, oldest=oldest), ServerNow()),
            statements=grown,
            history=first.statements,
            texts=texts,
            tables=last.tables,
            tables_before=first.tables,
            tables_s=_between_s(first.tables_ns, last.tables_ns),
            database=self.kind.database,
            lock_table=lock_table,
            slots=last.slots,
            slots_before={slot.name: slot.position for slot in first.slots},
        )
        return Observation(self.samples, self.locks, state, waited_s)

    def active_statements(self) -> dict[int, float]:
        """Statements that sessions were at work on, those of the most first: how many at a time."""
        seen: Counter[int] = Counter()
        for sample in self.samples:
            for one in sample.sessions:
                if one.is_active and one.query_id is not None:
                    seen[one.query_id] += 1
        return {name: n / len(self.samples) for name, n in seen.most_common(_MOST_STATEMENTS)}

    def texts(self, texts: FindingTexts, reader: Reader | None = None) -> dict[int, str]:
        """What the active statements say, as far as pg_stat_statements or their sessions know.

        reader: with other limits of time than the other inputs have.
        """
        kind, active = self.kind, list(self.active_statements())
        return self._try(
            "texts",
            lambda: texts.read(
                reader or self.reader, kind.statements, active, sized=kind.may_stat_file
            ),
            {},
        )


def _between_s(begun_ns: int | None, ended_ns: int | None) -> float | None:
    return None if begun_ns is None or ended_ns is None else (ended_ns - begun_ns) / 1e9


class LockTableLooks:
    """What the last look at the table of locks showed, by one server's looks."""

    def __init__(self) -> None:
        self._found: LockTable | None = None
        self._due = 0.0

    def look(self, inputs: FindingInputs) -> LockTable | None:
        """How full it is, or was a while ago."""
        began = time.monotonic()
        if began >= self._due:
            self._found = inputs.lock_table()
            took = time.monotonic() - began
            self._due = began + max(_LOCK_TABLE_S, _LOCK_TABLE_TIMES * took)
        return self._found
