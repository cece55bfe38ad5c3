"""What wait_event_timing counts, as values: counters, sessions, and a snapshot of them all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pgtare.kit.document import Document, Model, schema_name

SCHEMA: Literal["pgtare.waits.snapshot/1"] = "pgtare.waits.snapshot/1"
BUCKETS = 32


class _Model(Model):
    model_config = ConfigDict(frozen=True)


class Counters(_Model):
    """Waits that have ended: how many, how long in ms, and by power of two of their length."""

    waits: int = Field(default=0, description="waits that ended")
    calls: int = Field(default=0, description="calls of libc that they are made of")
    total_ms: float = Field(default=0.0, description="their time")
    max_ms: float = Field(default=0.0, description="the longest")
    running_ms: float = Field(default=0.0, description="time of waits under way")
    histogram: tuple[int, ...] = Field(
        default=(0,) * BUCKETS, description="waits by powers of two of their length"
    )

    @property
    def spent_ms(self) -> float:
        """All time waited so far, the waits under way included."""
        return self.total_ms + self.running_ms

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            waits=self.waits + other.waits,
            calls=self.calls + other.calls,
            total_ms=self.total_ms + other.total_ms,
            max_ms=max(self.max_ms, other.max_ms),
            running_ms=self.running_ms + other.running_ms,
            histogram=tuple(a + b for a, b in zip(self.histogram, other.histogram, strict=True)),
        )


@dataclass(frozen=True, order=True)
class Event:
    """A wait event by its class and name, and whether it is a wait for something to do."""

    type: Annotated[str, Field(description="its class, as `IO`")]
    name: Annotated[str, Field(description="its name, as `DataFileRead`")]
    idle: Annotated[bool, Field(description="whether it is a wait for something to do")]

    @property
    def label(self) -> str:
        """As PostgreSQL's users write it: IO/DataFileRead."""
        return f"{self.type}/{self.name}"


class EventRow(_Model):
    """One event in all processes of a type; of a process (pid) if they are listed by process."""

    backend_type: str = Field(description="kind of process")
    event: Event = Field(description="the event")
    counters: Counters = Field(description="its counters")
    pid: int | None = Field(
        default=None, description="one process; `null`: all processes of the kind"
    )


@dataclass(frozen=True, order=True)
class Statement:
    """A statement by role, database and query identifier."""

    userid: Annotated[int, Field(description="OID of the role")]
    dbid: Annotated[int, Field(description="OID of the database")]
    query_id: Annotated[int, Field(description="query identifier; 0: none")]


class StatementRow(_Model):
    """One event in one statement.

    An entry that made way for others and came back counts from zero and has another identity.
    """

    statement: Statement = Field(description="the statement")
    event: Event = Field(description="the event")
    counters: Counters = Field(description="its counters")
    identity: int | None = Field(
        default=None,
        description="number of its entry, another one if it was made again; `null`: not known",
    )


class Session(_Model):
    """A process, what it does, and what is captured in it."""

    pid: int = Field(description="process number")
    backend_type: str = Field(description="kind of process")
    capture: str = Field(description="what is captured in it: `off`, `stats` or `trace`")
    missed: int = Field(description="waits seen but not counted")
    user: str | None = Field(description="role")
    database: str | None = Field(description="database")
    application: str | None = Field(description="application_name")
    state: str | None = Field(description="as in pg_stat_activity")
    wait: Event | None = Field(description="what it waits for now")
    wait_ms: float | None = Field(description="for how long so far")
    blocked_by: tuple[int, ...] = Field(
        description="processes that hold the lock it waits for; 0: a prepared transaction"
    )


class Client(_Model):
    """A client session, and what is captured in it."""

    pid: int = Field(description="process number")
    started: datetime = Field(description="when it began")
    capture: str | None = Field(
        description="what is captured in it; `null`: the module is not loaded there"
    )

    @property
    def captured(self) -> bool:
        """Whether its waits are counted."""
        return self.capture not in (None, "off")


class Losses(_Model):
    """What the counters lack since the last reset, and how often any of them were reset."""

    resets: int = Field(default=0, description="how often counters were reset")
    missed: int = Field(default=0, description="waits seen but not counted")
    statements_missed: int = Field(
        default=0, description="waits that found the table of statements busy"
    )
    statements_evicted: int = Field(
        default=0, description="pairs of statement and event that made way"
    )
    overflows: int = Field(default=0, description="waits that are booked under Other")
    skipped: int = Field(
        default=0, description="processes and parts of a table that readers found busy"
    )


class Timed(_Model):
    """The time of which the waits of some processes are parts, of those that ended as well."""

    processes: int = Field(description="those there whose waits are captured")
    total_ms: float = Field(description="the time of which the waits are parts")


class ReaderClock(_Model):
    """The clock of the machine that read a snapshot, which nobody can set."""

    boot: str = Field(description="identifier of its boot")
    monotonic_ns: int = Field(description="since then, as the answer had come")
    answer_ns: int = Field(description="from the question to the answer")


class Snapshot(Document):
    """All counters of a server at one moment; `events` and `timed` were read by one query."""

    schema_: Literal["pgtare.waits.snapshot/1"] = schema_name(SCHEMA)
    taken: datetime = Field(description="when, by the server's clock")
    reader_clock: ReaderClock | None = Field(
        default=None, description="when, by the clock of pgtare's machine; `null`: not known"
    )
    server: str = Field(description="version of PostgreSQL")
    started: datetime = Field(description="when the server was started")
    stats_reset: datetime = Field(description="when the counters were reset")
    events: tuple[EventRow, ...] = Field(description="counters by kind of process and event")
    statements: tuple[StatementRow, ...] = Field(description="counters by statement and event")
    texts: dict[int, str] = Field(description="statements by query identifier, if known")
    clients: tuple[Client, ...] | None = Field(
        default=None, description="client sessions without pgtare's own; `null`: not visible"
    )
    losses: Losses = Field(
        default=Losses(), description="what the counters lack since the last reset"
    )
    timed: dict[str, Timed] | None = Field(
        default=None,
        description="by kind of process, the time that waits are parts of; `null`: not visible",
    )
    clock_reason: str | None = Field(
        default=None, description="why waits are timed by this clock, and if it is still trusted"
    )
    unread: tuple[str, ...] = Field(
        default=(), description="kinds of process of which one was busy, so their counters lack it"
    )
    busy: int = Field(
        default=0, description="parts of the table of statements that were busy and are lacking"
    )
