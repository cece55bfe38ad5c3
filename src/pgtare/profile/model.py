"""What wait_event_timing counts, as values: counters, sessions, and a snapshot of them all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Literal["pgtare.waits.snapshot/1"] = "pgtare.waits.snapshot/1"
BUCKETS = 32

#: Processes that work for a client; the others are the background.
FOREGROUND = frozenset({"client backend", "parallel worker"})


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Counters(_Model):
    """Waits that have ended: how many, how long in ms, and by power of two of their length.

    running_ms is the time of waits that still go on, up to now.
    """

    waits: int = 0
    calls: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    running_ms: float = 0.0
    histogram: tuple[int, ...] = (0,) * BUCKETS

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

    type: str
    name: str
    idle: bool

    @property
    def label(self) -> str:
        """As PostgreSQL's users write it: IO/DataFileRead."""
        return f"{self.type}/{self.name}"


class EventRow(_Model):
    """One event in all processes of a type; of a process (pid) where they are listed by process."""

    backend_type: str
    event: Event
    counters: Counters
    pid: int | None = None


@dataclass(frozen=True, order=True)
class Statement:
    """A statement by role, database and query identifier."""

    userid: int
    dbid: int
    queryid: int


class StatementRow(_Model):
    """One event in one statement."""

    statement: Statement
    event: Event
    counters: Counters


class Session(_Model):
    """A process, what it does, and what is captured in it."""

    pid: int
    backend_type: str
    capture: str
    missed: int
    user: str | None
    database: str | None
    application: str | None
    state: str | None
    wait: Event | None
    wait_ms: float | None
    blocked_by: tuple[int, ...]


class Client(_Model):
    """A client session, and what is captured in it: None where the module is not loaded there.

    timed: false while it waits in something that began before it was captured.
    """

    pid: int
    started: datetime
    capture: str | None
    timed: bool = True

    @property
    def captured(self) -> bool:
        """Whether its waits are counted."""
        return self.capture not in (None, "off")


class Losses(_Model):
    """What the counters lack since the last reset, and how often any of them were reset.

    resets: None where the module does not count them. missed: waits seen but not counted.
    statements_missed: waits that found the table of statements busy. statements_evicted: pairs of
    statement and event that made way. overflows: waits that stand under Other.
    """

    resets: int | None = None
    missed: int = 0
    statements_missed: int = 0
    statements_evicted: int = 0
    overflows: int = 0


class Timed(_Model):
    """The time of which the waits of some processes are parts, of those that ended as well.

    processes: those there now whose waits are captured.
    """

    processes: int
    total_ms: float


class Snapshot(_Model):
    """All counters of a server at one moment; texts has what statements say, where it is known.

    clients: without pgtare's own; None where others' sessions cannot be seen. uncounted: pgtare's
    own session is not in the counters. timed: by backend type, read with `events` at one moment;
    None where others cannot be seen, and in files of older versions.
    """

    schema_: Literal["pgtare.waits.snapshot/1"] = Field(default=SCHEMA, alias="schema")
    taken: datetime
    server: str
    started: datetime
    stats_reset: datetime
    events: tuple[EventRow, ...]
    statements: tuple[StatementRow, ...]
    texts: dict[int, str]
    clients: tuple[Client, ...] | None = None
    losses: Losses = Losses()
    uncounted: bool = False
    timed: dict[str, Timed] | None = None
