"""The JSON documents of `pgtare waits`, but for those that are kept as files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, renamed, schema_name
from pgtare.postgres.wait_counters import rates
from pgtare.postgres.wait_counters.model import Counters, Event, Session
from pgtare.postgres.wait_counters.reader import Bucket


class WaitEvent(Model):
    """A wait event."""

    type: str = Field(description="its class, as `IO`")
    name: str = Field(description="its name, as `DataFileRead`")
    idle: bool = Field(description="whether it is a wait for something to do")


class EventRate(Model):
    """One event between two looks."""

    event: WaitEvent = Field(description="the event")
    active: float = Field(description="sessions that waited for it, on average")
    share: float | None = Field(
        description="of the profile's `active`, from 0 to 1; `null` for idle events, and if too "
        "many sessions are not captured"
    )
    waits_per_s: float = Field(description="waits that ended, a second")
    mean_ms: float | None = Field(description="their mean length")
    waits: int = Field(description="waits that ended")
    total_ms: float = Field(description="time waited")


class StatementKey(Model):
    """A statement by role, database and query identifier."""

    userid: int = Field(description="OID of the role")
    dbid: int = Field(description="OID of the database")
    query_id: int = Field(description="query identifier; 0: none")


class StatementEvent(Model):
    """One event of a statement."""

    event: WaitEvent = Field(description="the event")
    active: float = Field(description="sessions that waited for it in this statement, on average")


class StatementRate(Model):
    """One statement between two looks."""

    statement: StatementKey = Field(description="which one")
    text: str | None = Field(description="its text, if pg_stat_statements has it")
    active: float = Field(
        description="sessions that ran it, on average; the waiting alone if `on_cpu` is `null`"
    )
    on_cpu: float | None = Field(
        description="of these, on a processor; `null` with fewer than 8 samples"
    )
    share: float | None = Field(description="of the profile's `active`, from 0 to 1")
    events: list[StatementEvent] = Field(description="its main events")
    cpu_samples: int = Field(description="samples in which it was on a processor")
    on_cpu_lo: float | None = Field(description="lower end of the 95 % interval of `on_cpu`")
    on_cpu_hi: float | None = Field(description="upper end of that interval")


class WaitsProfile(Document):
    """Where time went between two looks at the counters.

    `active`, `on_cpu` and `run_queue` are sessions on average.
    """

    schema_: Literal["pgtare.waits.profile/1"] = schema_name("pgtare.waits.profile/1")
    duration_s: float = Field(description="time between the two looks")
    active: float = Field(description="sessions neither idle nor waiting for their client")
    sessions: float | None = Field(
        description="whose waits are captured; exactly `idle`, the waits in `active` and the "
        "counted `on_cpu`; `null`: not known"
    )
    idle: float = Field(description="sessions that waited for something to do")
    on_cpu: float | None = Field(
        description="of `active`, those that waited for nothing; `null`: not known"
    )
    on_cpu_by: Literal["counted", "sampled"] | None = Field(
        description="how that is known: `counted` or `sampled`"
    )
    run_queue: float | None = Field(
        description="sessions that waited for a processor; `null`: not known"
    )
    events: list[EventRate] = Field(description="events, the longest waited for first")
    statements: list[StatementRate] = Field(description="statements, the most active first")
    cpu_elsewhere: float | None = Field(
        description="of `on_cpu`, what is at no statement or at one with too few samples"
    )
    waits_elsewhere: float = Field(
        description="of the waits in `active`, what is at no statement; with `cpu_elsewhere` and "
        "all statements it adds up to `active`"
    )
    cpu_samples: int = Field(description="sessions seen on a processor, over all samples")
    notes: list[str] = Field(description="what the figures lack, in sentences")
    hides_much: bool = Field(description="whether over 5 % of the client sessions are not captured")


def profile(found: rates.Profile) -> WaitsProfile:
    """The document of a profile."""
    statements = [
        {**vars(one), "events": [{"event": e, "active": active} for e, active in one.events]}
        for one in found.statements
    ]
    return WaitsProfile.model_validate(
        {**renamed(vars(found), seconds="duration_s"), "statements": statements}
    )


class EventCounters(WaitEvent):
    """An event and what was counted of it."""

    waits: int = Field(description="waits that ended")
    calls: int = Field(description="reports of the server that they are made of")
    total_ms: float = Field(description="time of the waits that ended")
    max_ms: float = Field(description="the longest of them")
    running_ms: float = Field(description="time of waits under way")


class LengthBucket(Model):
    """Waits of about one length."""

    from_ms: float = Field(description="shortest length")
    to_ms: float | None = Field(description="from here on not; `null`: no bound")
    waits: int = Field(description="how many")


class WaitsHistogram(Document):
    """How long the waits for an event took."""

    schema_: Literal["pgtare.waits.histogram/1"] = schema_name("pgtare.waits.histogram/1")
    event: EventCounters = Field(description="the event with its counters")
    buckets: list[LengthBucket] = Field(description="by powers of two of their length")


def histogram(event: Event, counters: Counters, buckets: Iterable[Bucket]) -> WaitsHistogram:
    """The document of one event's waits."""
    return WaitsHistogram(
        event=_counted(event, counters),
        buckets=[
            LengthBucket(from_ms=bucket.from_ms, to_ms=bucket.to_ms, waits=waits)
            for bucket, waits in zip(buckets, counters.histogram, strict=True)
        ],
    )


class WaitsSession(Model):
    """A process of the server."""

    pid: int = Field(description="process number")
    backend_type: str = Field(description="kind of process")
    capture: str = Field(description="what is captured in it: `off`, `stats` or `trace`")
    missed: int = Field(description="waits seen but not counted")
    user: str | None = Field(description="role")
    database: str | None = Field(description="database")
    application: str | None = Field(description="application_name")
    state: str | None = Field(description="as in pg_stat_activity")
    wait: WaitEvent | None = Field(description="what it waits for now")
    wait_ms: float | None = Field(description="for how long so far")
    blocked_by: list[int] = Field(
        description="processes that hold the lock it waits for; 0: a prepared transaction"
    )
    events: list[EventCounters] = Field(description="what it waited for, the longest first")


class WaitsSessions(Document):
    """Processes by the time they waited."""

    schema_: Literal["pgtare.waits.sessions/1"] = schema_name("pgtare.waits.sessions/1")
    sessions: list[WaitsSession] = Field(description="the processes, the longest waiting first")


def sessions(
    found: Iterable[Session], events: Mapping[int, Mapping[Event, Counters]]
) -> WaitsSessions:
    """The document of processes and of what each waited for, by process number."""
    return WaitsSessions.model_validate(
        {
            "sessions": [
                {**session.model_dump(), "events": _all_counted(events.get(session.pid, {}))}
                for session in found
            ]
        }
    )


class WaitsStatement(Model):
    """A statement and what it waited for."""

    query_id: int = Field(description="query identifier; 0: none")
    text: str | None = Field(description="its text, if pg_stat_statements has it")
    events: list[EventCounters] = Field(description="what it waited for, the longest first")


class WaitsStatements(Document):
    """Statements by the time they waited since the counters were reset."""

    schema_: Literal["pgtare.waits.statements/1"] = schema_name("pgtare.waits.statements/1")
    statements: list[WaitsStatement] = Field(description="the statements, the longest first")


def statements(
    found: Mapping[int, Mapping[Event, Counters]], texts: Mapping[int, str]
) -> WaitsStatements:
    """The document of statements by query identifier."""
    return WaitsStatements(
        statements=[
            WaitsStatement(query_id=query_id, text=texts.get(query_id), events=_all_counted(events))
            for query_id, events in found.items()
        ]
    )


def _all_counted(events: Mapping[Event, Counters]) -> list[EventCounters]:
    ordered = sorted(events.items(), key=lambda item: -item[1].spent_ms)
    return [_counted(event, counters) for event, counters in ordered]


def _counted(event: Event, counters: Counters) -> EventCounters:
    return EventCounters(
        type=event.type,
        name=event.name,
        idle=event.idle,
        **counters.model_dump(exclude={"histogram"}),
    )
