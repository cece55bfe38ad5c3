"""The JSON documents of `pgtare waits`, but for those that are kept as files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name
from pgtare.postgres.wait_counters.model import Counters, Event, Session
from pgtare.postgres.wait_counters.reader import Bucket


class EventCounters(Model):
    """An event and what was counted of it."""

    type: str = Field(description="its class, as `IO`")
    name: str = Field(description="its name, as `DataFileRead`")
    idle: bool = Field(description="whether it is a wait for something to do")
    waits: int = Field(description="waits that ended")
    calls: int = Field(description="calls of libc that they are made of")
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


class WaitsSession(Session):
    """A process of the server."""

    events: list[EventCounters] = Field(description="what it waited for, the longest first")


class WaitsSessions(Document):
    """Processes by the time they waited."""

    schema_: Literal["pgtare.waits.sessions/1"] = schema_name("pgtare.waits.sessions/1")
    sessions: list[WaitsSession] = Field(description="the processes, the longest waiting first")


def sessions(
    found: Iterable[Session], events: Mapping[int, Mapping[Event, Counters]]
) -> WaitsSessions:
    """The document of processes and of what each waited for, by process number."""
    return WaitsSessions(
        sessions=[
            WaitsSession(**vars(session), events=_all_counted(events.get(session.pid, {})))
            for session in found
        ]
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
