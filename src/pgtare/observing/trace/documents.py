"""The JSON documents of `pgtare trace`. Times and lengths are nanoseconds (`_ns`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name


class Losses(Model):
    """What was lost of one process."""

    pid: int = Field(description="process number")
    lost_bytes: int = Field(description="of calls")
    lost_waits: int = Field(description="waits")


class TraceRecorded(Document):
    """A recording that has ended."""

    schema_: Literal["pgtare.trace.recorded/1"] = schema_name("pgtare.trace.recorded/1")
    path: str = Field(description="the trace")
    duration_s: float = Field(description="how long it was recorded")
    stopped_by: str = Field(description="`time`, `interrupt`, `size`, `space` or `error`")
    why: str = Field(description="the same in words; empty if there is no more to say")
    calls: bool = Field(description="whether calls were recorded, not waits alone")
    sessions: int = Field(description="sessions traced")
    call_bytes: int = Field(description="of calls, in the file")
    waits: int = Field(description="waits in the file")
    bytes: int = Field(description="size of the file")
    lost_bytes: int = Field(description="of calls, overwritten before they were read")
    lost_waits: int = Field(description="waits overwritten before they were read")
    losses: list[Losses] = Field(description="the same by process")
    unwritten_bytes: int = Field(description="of calls, read but without room in the file")
    unwritten_waits: int = Field(description="waits read but without room in the file")
    unread_sessions: int = Field(
        description="sessions that ended, and whose traces made way for others unread"
    )
    unread_records: int = Field(description="records of calls of these")
    unread_bytes: int = Field(description="size of those records")
    still_traced: list[int] = Field(
        description="processes that may still be traced: the right to stop that was revoked"
    )
    notes: list[str] = Field(description="what a reader must know, in sentences")


class TimeOf(Model):
    """What some time went to."""

    name: str = Field(description="a wait event, or another line of a profile")
    total_ns: float = Field(description="its time")


class KeptTrace(Model):
    """A trace that the server kept because a trigger fired."""

    id: int = Field(description="its number, since the server started")
    pid: int = Field(description="process number of the session")
    user: str | None = Field(description="its role; `null`: there is no such role any more")
    database: str | None = Field(description="its database; `null`: as with the role")
    application: str = Field(description="its application_name when the trigger fired")
    cause: str = Field(
        description="what fired: `sqlstate`, `lock_wait`, `request`, `slower_than_usual`, "
        "or `transaction`; or `blocker`, which held up a session that waited for a lock, "
        "or `deadlock`, which was in one with its victim, or `finding`, for which it was asked for"
    )
    detail: str = Field(
        description="the SQLSTATE, the time in ms (of `slower_than_usual` also what was usual), "
        "or the process that waited or was the victim, or which finding"
    )
    query_id: int | None = Field(description="query identifier of the statement, if it is known")
    at: datetime = Field(description="when the trigger fired")
    bytes: int = Field(description="of the server's memory, or of the file; 0: in a file alone")
    file: str | None = Field(description="its file; `null`: it is in memory alone")
    incident: int | None = Field(
        description="a number that a session that waited for a lock and those that held it up, or "
        "those in a deadlock or a finding, have in common; `null`: no such session is known"
    )


class TraceKept(Document):
    """Traces that the server kept because triggers fired."""

    schema_: Literal["pgtare.trace.kept/1"] = schema_name("pgtare.trace.kept/1")
    traces: list[KeptTrace] = Field(description="one by one, the latest last")
    started: datetime | None = Field(default=None, description="since when; `null` of a directory")
    ever: int | None = Field(
        default=None, description="traces kept since then; `null` of a directory"
    )
    skipped: int | None = Field(
        default=None,
        description="triggers that kept nothing because of the limits; `null` of a directory",
    )
    refused: int | None = Field(
        default=None,
        description="triggers that kept nothing for lack of memory; `null` of a directory",
    )
    directory: str | None = Field(description="where the files are; `null`: there are none")
    notes: list[str] = Field(
        default=[], description="files of a directory that were left out, as they cannot be read"
    )


class InSameWait(Model):
    """Processes that were in the same LWLock wait when that of the session ended."""

    event: str = Field(description="class and name of the wait event")
    sessions: int = Field(description="how many others")
    pids: list[int] = Field(description="of the first 16 of them")
    at: datetime = Field(description="when the wait of the session ended")
    waited_ns: int = Field(
        description="what the session had waited for LWLocks in that request until then"
    )


class SessionState(Model):
    """What a session did that went on when its trace was kept, as the server said it."""

    state: str = Field(description="as `pg_stat_activity` names it")
    running: bool = Field(description="whether it ran a statement")
    started: datetime = Field(description="when the request arrived, or it was left idle")
    for_ns: int = Field(description="how long that was before the trace was kept")
    event: str | None = Field(
        description="class and name of the wait event that it was in; `null`: none"
    )


class IncidentSession(KeptTrace):
    """A kept trace, and what its session did when the trigger fired."""

    statement: str | None = Field(
        description="of its last request until then, without literals; `null`: not known"
    )
    time: list[TimeOf] = Field(
        description="of that request (or, of cause `transaction`, the transaction), longest first"
    )
    goes_on: bool | None = Field(
        description="whether the request had not been answered then; `null`: not known"
    )
    idle_ns: int | None = Field(description="since its answer; `null`: not known")
    transaction_ns: int | None = Field(
        description="for how long its transaction was open then; `null`: none was, or not known"
    )
    state: SessionState | None = Field(
        description="of a session that went on; `null`: its request had been answered"
    )
    same_wait: InSameWait | None = Field(
        description="who else was in its wait for an LWLock; `null`: no such wait was long"
    )


class TraceIncident(Document):
    """A kept trace, and those that were kept in the same incident."""

    schema_: Literal["pgtare.trace.incident/1"] = schema_name("pgtare.trace.incident/1")
    session: IncidentSession = Field(description="of the trace that was named")
    others: list[IncidentSession] = Field(
        description="those that held it up, or that it held up, or that were in a deadlock with it"
    )


class ProfileLine(Model):
    """A line of a profile."""

    name: str = Field(description="event, statement, call, node, relation or session")
    total_ns: float = Field(description="its time")
    share_pct: float = Field(default=0.0, description="of the profile's `total_ns`")
    times: int = Field(
        default=0,
        description="by event the waits, or how often CPU time was booked; by statement and "
        "session the executions; by call the calls; by node and relation the executions that "
        "were measured; 0: nothing is counted",
    )
    mean_ns: float = Field(default=0.0, description="mean of what `times` counts")
    min_ns: float = Field(default=0.0, description="the shortest")
    max_ns: float = Field(default=0.0, description="the longest")
    histogram: list[int] = Field(
        default=[0] * 64,
        description="64 counts: number *i* of lengths from 2^*i* to below 2^(*i* + 1) ns, number "
        "0 of 0 ns, too",
    )
    kernel_ns: float = Field(
        default=0.0, description="of a wait: what the kernel worked in it, estimated"
    )


class TraceProfile(Document):
    """Lines that add up to all of the time."""

    schema_: Literal["pgtare.trace.profile/1"] = schema_name("pgtare.trace.profile/1")
    scope: str = Field(description="what part of the trace, in words")
    by: str = Field(description="what the lines are")
    total_ns: float = Field(description="all of the time")
    sessions: int = Field(description="of how many sessions, or parallel workers")
    workers: bool = Field(description="whether it is of parallel workers")
    measured: bool = Field(description="whether row sources are in the trace")
    lines: list[ProfileLine] = Field(description="the longest first")
    notes: list[str] = Field(description="what a reader must know, in sentences")


# The sums of statements are added to call by call, so they are no models, which take their time.


@dataclass
class CallSum:
    """Calls of one kind."""

    count: Annotated[int, Field(description="how many")] = 0
    failed: Annotated[int, Field(description="of these, ended in an error")] = 0
    elapsed_ns: Annotated[
        float,
        Field(description="wall time: the sum of `inner_ns`, `cpu_ns`, `waited_ns` and `other_ns`"),
    ] = 0.0
    max_ns: Annotated[float, Field(description="the longest call")] = 0.0
    inner_ns: Annotated[float, Field(description="time of calls within these")] = 0.0
    cpu_ns: Annotated[float, Field(description="CPU time outside inner calls")] = 0.0
    waited_ns: Annotated[float, Field(description="time waited outside inner calls")] = 0.0
    other_ns: Annotated[
        float, Field(description="the rest: waiting for a processor, unaccounted")
    ] = 0.0
    rows: Annotated[int, Field(description="rows")] = 0
    buffers: Annotated[
        dict[str, int],
        Field(description="pages, named as EXPLAIN names them; `wal_records`, `wal_bytes`"),
    ] = field(default_factory=dict)


@dataclass
class WaitSum:
    """Waits of one event in a statement."""

    event: Annotated[str, Field(description="class and name, as `IO/DataFileRead`")]
    waits: Annotated[int, Field(description="how many")] = 0
    total_ns: Annotated[float, Field(description="their time")] = 0.0
    max_ns: Annotated[float, Field(description="the longest")] = 0.0


class NodeSum(Model):
    """A node of a plan over the executions that were measured."""

    node: int = Field(description="number within the plan")
    depth: int = Field(description="depth in the plan's tree")
    kind: str = Field(description="as EXPLAIN names it")
    relation: str | None = Field(description="the relation that it reads")
    index: str | None = Field(description="the index that it uses")
    calls: int = Field(description="how often a row was requested of it")
    rows: int = Field(description="rows")
    loops: int = Field(description="loops")
    time_ns: int = Field(description="time with the nodes below")
    lo_ns: int = Field(description="lower end of its 95 % interval")
    hi_ns: int = Field(description="upper end of that interval")
    own_ns: float = Field(description="time without the nodes below")
    exact: bool = Field(description="whether each call was timed")


class PlanSum(Model):
    """A plan with its row sources."""

    plan: int = Field(description="number of the plan")
    executions: int = Field(description="executions that were measured")
    nodes: list[NodeSum] = Field(description="its nodes")


@dataclass
class TracedStatement:
    """All calls of one statement."""

    text: Annotated[str, Field(description="a text of it, without literals")]
    query_id: Annotated[int, Field(description="query identifier; 0: none")]
    recursive: Annotated[bool, Field(description="whether it ran within other statements")]
    calls: Annotated[
        dict[str, CallSum],
        Field(
            description="by kind: `parse`, `bind`, `plan`, `execute`, `fetch`, `utility`, "
            "`commit`, `rollback`"
        ),
    ] = field(default_factory=dict)
    waits: Annotated[list[WaitSum], Field(description="what it waited for")] = field(
        default_factory=list
    )
    plans: Annotated[list[PlanSum], Field(description="its plans with row sources")] = field(
        default_factory=list
    )
    errors: Annotated[dict[str, int], Field(description="how many errors, by SQLSTATE")] = field(
        default_factory=dict
    )

    def sum(self, name: str) -> float:
        """A figure over all kinds of calls."""
        return float(sum(getattr(call, name) for call in self.calls.values()))

    def buffers(self, name: str) -> int:
        """Buffers of one sort over all kinds of calls."""
        return sum(call.buffers.get(name, 0) for call in self.calls.values())


class TraceStatements(Document):
    """The statements of a trace."""

    schema_: Literal["pgtare.trace.statements/1"] = schema_name("pgtare.trace.statements/1")
    statements: list[TracedStatement] = Field(description="as sorted, those within others last")


class TraceClient(Model):
    """A client behind pooled connections."""

    name: str = Field(description="application, address, user or trace")
    sessions: int = Field(description="sessions that served it")
    calls: int = Field(description="its calls")
    busy_ns: float = Field(description="time that the server worked for it")
    cpu_ns: float = Field(description="CPU time, parallel workers included")
    waited_ns: float = Field(description="time waited, parallel workers included")


class TraceClients(Document):
    """Time by client."""

    schema_: Literal["pgtare.trace.clients/1"] = schema_name("pgtare.trace.clients/1")
    clients: list[TraceClient] = Field(description="the busiest first")
