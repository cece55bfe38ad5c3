"""What findings are computed from: samples of sessions, locks, counters, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from pgtare.postgres.backend_types import is_background
from pgtare.postgres.wait_counters.epoch import Taken, elapsed_ns

#: Waits that are nobody's fault: a session paces itself.
PACING = frozenset({"Timeout/PgSleep", "Timeout/VacuumDelay", "Timeout/VacuumTruncate"})

#: Drivers that send Parse, Bind and Execute have the statement begin later than the transaction,
#: by less than this; BEGIN and its answer take longer, mostly, µs.
_AT_ONCE_US = 1000

#: A statement: its database, and its identifier or, if the server gives none, its text.
StatementKey = tuple[str, int | str]


#: By so much the times of a sample and of its statements differ, at most: it takes a while.
_CLOCKS_S = 0.1


@dataclass(frozen=True)
class SampledSession:
    """What a session did in one sample.

    started_us, query_us, xact_us: when it, its statement and its transaction began, µs since 1970.
    type, event: None on a processor. blockers: whom it waits for, 0 for a prepared transaction.
    text: without literals; empty if not read. client: its address; empty over a local socket, and
    read of those only whom others wait for.
    """

    pid: int
    started_us: int
    role: str
    database: str
    application: str
    backend_type: str
    state: str
    type: str | None
    event: str | None
    query_id: int | None
    query_age_s: float | None
    xact_age_s: float | None
    state_age_s: float | None
    blockers: tuple[int, ...] = ()
    text: str = ""
    query_us: int | None = None
    xact_us: int | None = None
    client: str = ""

    @cached_property
    def label(self) -> str:
        """Class and name of the event; CPU if it does not wait."""
        return f"{self.type}/{self.event}" if self.type else "CPU"

    @cached_property
    def is_active(self) -> bool:
        """Whether its time counts: that of a client, at work, and not pacing itself."""
        # with track_activities = off it does not say what it does
        hidden = self.state == "disabled" and self.type == "Lock"
        return (
            (hidden or self.state in ("active", "fastpath function call"))
            and not is_background(self.backend_type)
            and self.type != "Activity"
            and self.label not in PACING
        )

    @property
    def is_whole_transaction(self) -> bool:
        """Whether its statement began its transaction: the messages of one come at once."""
        if self.query_us is None or self.xact_us is None:
            return False
        return self.query_us - self.xact_us <= _AT_ONCE_US

    @cached_property
    def statement(self) -> StatementKey:
        """Its statement."""
        return self.database, self.query_id if self.query_id is not None else self.text


@dataclass(frozen=True)
class SessionsSample:
    """All sessions at work at one moment. at: s since 1970. weight_s: time that it covers."""

    at: float
    weight_s: float
    sessions: tuple[SampledSession, ...]

    @cached_property
    def by_process(self) -> Mapping[int, SampledSession]:
        """The same by process."""
        return {one.pid: one for one in self.sessions}


@dataclass(frozen=True)
class AwaitedLock:
    """A lock that a session waits for.

    tag: the same for two that wait for the same. object: what is locked, in words. relation: its
    table, if it is one. gid: of the prepared transaction that holds it; with its database, owner
    and age. waited_s: how long it has waited, by the server; None if the server has not noted it.
    read_at: when the server said that, s since 1970; None: as the last sample was taken.
    """

    pid: int
    kind: str
    mode: str
    object: str
    relation: str | None = None
    gid: str | None = None
    database: str | None = None
    owner: str | None = None
    prepared_age_s: float | None = None
    tag: str = ""
    waited_s: float | None = None
    read_at: float | None = None

    def is_of(self, waiter: SampledSession, at: float) -> bool:
        """Whether it was read during the statement in which a session waits at a time."""
        if self.read_at is None or waiter.query_age_s is None:
            return True
        return self.read_at >= at - waiter.query_age_s - _CLOCKS_S


@dataclass(frozen=True)
class StatementTotals:
    """pg_stat_statements of one statement: totals, or what they grew by. Times in s."""

    calls: float = 0.0
    exec_s: float = 0.0
    rows: float = 0.0
    temp_blocks: float = 0.0

    def minus(self, before: StatementTotals) -> StatementTotals | None:
        """What it grew by; None if it was reset or evicted in between."""
        grown = StatementTotals(
            self.calls - before.calls,
            self.exec_s - before.exec_s,
            self.rows - before.rows,
            self.temp_blocks - before.temp_blocks,
        )
        return grown if grown.calls >= 0 and grown.exec_s >= 0 else None


@dataclass(frozen=True)
class TableTotals:
    """Counters of a table. vacuumed_age_s: since its last vacuum; None: never.

    analyzed: whether an ANALYZE is known, since the counters were reset.
    """

    name: str
    scans: int
    rows_scanned: int
    live: int
    dead: int
    vacuumed_age_s: float | None
    analyzed: bool = True


#: A slot that keeps only rows of the catalogues, as a logical one does (`catalog_xmin`).
CATALOGUES = "catalogues"
#: The snapshot of a session of another database: no rows of this one have to be kept for it, but
#: all databases share some catalogues, and no database counts as frozen past it.
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class HorizonHolder:
    """What keeps vacuum from removing rows: a session, a slot, a prepared transaction or a standby.

    kind: session, slot, prepared, standby, CATALOGUES or ELSEWHERE. name: of a slot, a transaction
    or a standby. age_xids: transactions since its snapshot.
    """

    kind: str
    name: str
    pid: int | None
    age_xids: int
    age_s: float | None
    database: str | None = None

    @property
    def is_slot(self) -> bool:
        """Whether a replication slot does, of whichever rows."""
        return self.kind in ("slot", CATALOGUES)

    @property
    def keeps_rows_here(self) -> bool:
        """Whether it keeps dead rows of users' tables in the connected database."""
        return self.kind not in (CATALOGUES, ELSEWHERE)


@dataclass(frozen=True)
class Slot:
    """A replication slot. kept_bytes: of WAL. safe_bytes: until it is lost; None: no limit.

    pid, application: of who reads it. position: up to which that was confirmed, in bytes of WAL.
    reason: why nothing can be read from it any more, as the server names it; None: not known.
    """

    name: str
    kind: str
    active: bool
    kept_bytes: int
    status: str
    safe_bytes: int | None
    pid: int | None = None
    application: str = ""
    position: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class ConnectionCount:
    """Sessions of one role and application in one state.

    limit: of the role's connections, -1 without; None if it is a superuser, whom none holds for.
    """

    role: str
    application: str
    state: str
    sessions: int
    limit: int | None = -1


@dataclass(frozen=True)
class ServerCounters:
    """Counters of the whole server at one moment. at: s since 1970, by the server's clock.

    read_ns: by our monotonic clock; None: not known.
    new_sessions: connections so far. xid_age, multixact_age: of the oldest database, with its name.
    notify_usage: how full the queue of notifications is, 0 to 1. wal_bytes: None if not known.
    """

    at: float
    commits: int = 0
    new_sessions: int = 0
    deadlocks: int = 0
    checkpoints_timed: int = 0
    checkpoints_requested: int = 0
    archive_failed: int = 0
    archive_failed_wal: str | None = None
    archive_failing: bool = False
    xid_age: int = 0
    xid_database: str = ""
    multixact_age: int = 0
    multixact_database: str = ""
    notify_usage: float = 0.0
    wal_bytes: int | None = 0
    read_ns: int | None = None


@dataclass(frozen=True)
class LockTable:
    """How full the table of locks is: locks, and what they lock; those of one application.

    theirs, sessions: of the role and application that has the most. holder: one of these sessions,
    the one with the most; None: a prepared transaction, or it is gone.
    """

    locks: int
    objects: int
    theirs: int
    sessions: int
    holder: SampledSession | None


@dataclass(frozen=True)
class ServerNow:
    """What the server has just now, which is no counter. oldest: transaction, if looked up."""

    horizon: tuple[HorizonHolder, ...] = ()
    connections: tuple[ConnectionCount, ...] = ()
    standbys: tuple[str, ...] = ()
    oldest: SampledSession | None = None


@dataclass(frozen=True)
class RoleSetting:
    """A setting that a role or database has for itself. Empty: of all."""

    role: str
    database: str
    name: str
    value: str


@dataclass(frozen=True)
class ServerState:
    """Everything about the server that samples of sessions do not show.

    sources: of settings that are from no configuration file, as pg_settings names them.
    processors: None if not known. texts: of statements, by identifier. history: of statements
    before this window. standby: whether it is one. slots_before: positions of slots. database: that
    of the tables; empty: not known. tables_s: between their two readings; None: as of counters.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    role_settings: Sequence[RoleSetting] = ()
    processors: float | None = None
    standby: bool = False
    before: ServerCounters | None = None
    after: ServerCounters | None = None
    now: ServerNow = field(default_factory=ServerNow)
    statements: Mapping[StatementKey, StatementTotals] = field(default_factory=dict)
    history: Mapping[StatementKey, StatementTotals] = field(default_factory=dict)
    texts: Mapping[int, str] = field(default_factory=dict)
    tables: Mapping[str, TableTotals] = field(default_factory=dict)
    tables_before: Mapping[str, TableTotals] = field(default_factory=dict)
    tables_s: float | None = None
    database: str = ""
    lock_table: LockTable | None = None
    slots: tuple[Slot, ...] = ()
    slots_before: Mapping[str, int | None] = field(default_factory=dict)

    def per_s(self, name: str) -> float | None:
        """What a counter grew by a second; None if it is not known, or was reset."""
        seconds = self.counted_s
        before, after = (getattr(one, name, None) for one in (self.before, self.after))
        if seconds is None or before is None or after is None:
            return None
        return (after - before) / seconds if after >= before else None

    @property
    def counted_s(self) -> float | None:
        """The time between the two readings of counters, s."""
        if self.before is None or self.after is None:
            return None
        then, now = (Taken.at(one.at, one.read_ns) for one in (self.before, self.after))
        return elapsed_ns(then, now) / 1e9 or None

    def number(self, setting: str) -> float | None:
        """A setting as a number in its unit; None if it is none, or cannot be seen."""
        try:
            return float(self.settings[setting])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class Observation:
    """One window of time of one server.

    samples: the earliest first. locks: of those that waited at its end, by process. waited_s: by
    event, as counted; None if nobody counts.
    """

    samples: Sequence[SessionsSample]
    locks: Mapping[int, AwaitedLock] = field(default_factory=dict)
    state: ServerState = field(default_factory=ServerState)
    waited_s: Mapping[str, float] | None = None

    @property
    def seconds(self) -> float:
        """Length of the window that the samples cover, s."""
        return sum(sample.weight_s for sample in self.samples)

    @property
    def counted_s(self) -> float:
        """The time in which counters grew, s; that of the samples if it is not known."""
        return self.state.counted_s or self.seconds or 1.0

    @property
    def tables_s(self) -> float:
        """The time in which counters of tables grew, s."""
        return self.state.tables_s or self.counted_s

    @property
    def until(self) -> float:
        """When the last sample was taken, s since 1970."""
        return self.samples[-1].at if self.samples else 0.0

    def text(self, statement: StatementKey) -> str:
        """A statement's text without literals; empty if it is not known."""
        _, name = statement
        return name if isinstance(name, str) else self.state.texts.get(name, "")


def moment(seconds: float) -> datetime:
    """A time in s since 1970 as UTC."""
    return datetime.fromtimestamp(seconds, UTC)
