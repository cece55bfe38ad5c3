"""What happened between two snapshots: time by event and by statement, average active sessions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pydantic import Field

from pgtare.errors import UsageError
from pgtare.kit.document import Document, Model, schema_name
from pgtare.postgres.backend_types import is_background
from pgtare.postgres.wait_counters import caveats
from pgtare.postgres.wait_counters.active_sessions import ActiveSessions
from pgtare.postgres.wait_counters.epoch import Taken, elapsed_ns
from pgtare.postgres.wait_counters.model import (
    Counters,
    Event,
    EventRow,
    Snapshot,
    Statement,
    StatementRow,
)

#: Of fewer samples nothing is said of a statement: one of 20 can as well be one of 100.
FEWEST = 8
_Z = 1.96

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row", EventRow, StatementRow)


@dataclass(frozen=True)
class CpuSamples:
    """How often each statement (by query identifier, 0: none) was on a processor in `looks` looks.

    Each look takes in every captured process that works for a client.
    """

    looks: int
    hits: Mapping[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Processes on a processor, over all looks."""
        return sum(self.hits.values())


class EventRate(Model):
    """One event between two looks."""

    event: Event = Field(description="the event")
    active: float = Field(description="sessions that waited for it, on average")
    share: float | None = Field(
        description="of the profile's `active`, from 0 to 1; `null` for idle events, and if too "
        "many sessions are not captured"
    )
    waits_per_s: float = Field(description="waits that ended, a second")
    mean_ms: float | None = Field(description="their mean length, from their begin")
    waits: int = Field(description="waits that ended")
    total_ms: float = Field(description="time waited, also in waits that have not ended")


class StatementEvent(Model):
    """One event of a statement."""

    event: Event = Field(description="the event")
    active: float = Field(description="sessions that waited for it in this statement, on average")


class StatementRate(Model):
    """One statement between two looks."""

    statement: Statement = Field(description="which one")
    text: str | None = Field(default=None, description="its text, if pg_stat_statements has it")
    active: float = Field(
        description="sessions that ran it, on average; the waiting alone if `on_cpu` is `null`"
    )
    on_cpu: float | None = Field(
        default=None, description="of these, on a processor; `null` with fewer than 8 samples"
    )
    share: float | None = Field(description="of the profile's `active`, from 0 to 1")
    events: tuple[StatementEvent, ...] = Field(default=(), description="its main events")
    cpu_samples: int = Field(default=0, description="samples in which it was on a processor")
    on_cpu_lo: float | None = Field(
        default=None, description="lower end of the 95 % interval of `on_cpu`"
    )
    on_cpu_hi: float | None = Field(default=None, description="upper end of that interval")


class WaitsProfile(Document):
    """Where time went between two looks at the counters.

    `active`, `on_cpu` and `run_queue` are sessions on average.
    """

    schema_: Literal["pgtare.waits.profile/1"] = schema_name("pgtare.waits.profile/1")
    duration_s: float = Field(description="time between the two looks")
    active: float = Field(description="sessions neither idle nor waiting for their client")
    sessions: float | None = Field(
        default=None,
        description="whose waits are captured; exactly `idle`, the waits in `active` and the "
        "counted `on_cpu`; `null`: not known",
    )
    idle: float = Field(default=0.0, description="sessions that waited for something to do")
    on_cpu: float | None = Field(
        description="of `active`, those that waited for nothing; `null`: not known"
    )
    on_cpu_by: Literal["counted", "sampled"] | None = Field(
        default=None, description="how that is known: `counted` or `sampled`"
    )
    run_queue: float | None = Field(
        default=None, description="sessions that waited for a processor; `null`: not known"
    )
    events: tuple[EventRate, ...] = Field(description="events, the longest waited for first")
    statements: tuple[StatementRate, ...] = Field(description="statements, the most active first")
    cpu_elsewhere: float | None = Field(
        default=None,
        description="of `on_cpu`, what is at no statement or at one with too few samples",
    )
    waits_elsewhere: float = Field(
        default=0.0,
        description="of the waits in `active`, what is at no statement; with `cpu_elsewhere` and "
        "all statements it adds up to `active`",
    )
    cpu_samples: int = Field(
        default=0, description="sessions seen on a processor, over all samples"
    )
    notes: tuple[str, ...] = Field(default=(), description="what the figures lack, in sentences")
    hides_much: bool = Field(
        default=False, description="whether over 5 % of the client sessions are not captured"
    )


class CountersReset(UsageError):
    """Counters fell between two snapshots: they cannot be compared."""


class ProcessUnread(UsageError):
    """A snapshot lacks a process: the time of its whole life would seem that of an interval."""


def profile(
    before: Snapshot,
    after: Snapshot,
    samples: CpuSamples | None = None,
    *,
    run_queue: float | None = None,
    idle: bool = False,
    background: bool = False,
) -> WaitsProfile:
    """Compare two snapshots of one server.

    samples: of processes on CPU in between. They split that time by statement, and give its length
    if the snapshots do not. run_queue: sessions that waited for a processor on average.
    idle: list waits for something to do as well. background: the server's own processes as well.
    Raises UsageError if the two cannot be compared.
    """
    seconds = _check(before, after)
    for kind in (*before.unread, *after.unread):
        if background or not is_background(kind):
            raise ProcessUnread(
                f"a process ({kind}) was stopped in the midst of a change, so its waits are not in "
                "the snapshot: let it go on (kill -CONT), and take both again"
            )
    events = _sum(
        after.events,
        before.events,
        lambda row: row.event,
        lambda row: background or not is_background(row.backend_type),
    )
    found = ActiveSessions(
        seconds,
        {event: c.spent_ms for event, c in events.items()},
        _captured_ms(before, after, background=background),
        samples.total / samples.looks if samples is not None and samples.looks else None,
    )
    by: Literal["counted", "sampled"] | None = None
    if found.on_cpu is not None:
        by = "sampled" if found.sessions is None else "counted"
    whole = 0.0 if caveats.hides_much(before.clients, after.clients) else found.active
    rates = [
        EventRate(
            event=event,
            active=found.average(c.spent_ms),
            share=0.0 if event.idle else _share(found.average(c.spent_ms), whole),
            waits_per_s=c.waits / seconds,
            mean_ms=c.total_ms / c.waits if c.waits else None,
            waits=c.waits,
            total_ms=c.spent_ms,
        )
        for event, c in events.items()
        if (idle or not event.idle) and (c.waits or c.spent_ms)
    ]
    statements, elsewhere = _statements(before, after, events, found, samples, whole)
    at_statements = sum(part.active for one in statements for part in one.events)
    return WaitsProfile(
        duration_s=seconds,
        active=found.active,
        on_cpu=found.on_cpu,
        events=tuple(sorted(rates, key=lambda rate: -rate.total_ms)),
        statements=statements,
        on_cpu_by=by,
        run_queue=run_queue,
        notes=caveats.between(before, after),
        hides_much=caveats.hides_much(before.clients, after.clients),
        sessions=found.sessions,
        idle=found.idle,
        cpu_elsewhere=elsewhere,
        waits_elsewhere=found.waiting - at_statements,
        cpu_samples=samples.total if samples else 0,
    )


def _wilson(samples: int, of: int) -> tuple[float, float, float]:
    """The share of `samples` of `of`, and its 95 % interval by Wilson.

    As if samples were independent: those of one long run of a statement are not, and tell less.
    """
    p, z2 = samples / of, _Z * _Z / of
    middle = (p + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(p * (1 - p) / of + z2 / (4 * of)) / (1 + z2)
    return p, max(0.0, middle - half), min(1.0, middle + half)


def _share(part: float, whole: float) -> float | None:
    """The share of all active time; None if that is not known."""
    return part / whole if whole else None


def _captured_ms(before: Snapshot, after: Snapshot, *, background: bool) -> float | None:
    """The time of processes whose waits are captured, which the waits are parts of."""
    if before.timed is None or after.timed is None:
        return None
    return sum(
        timed.total_ms - (before.timed[kind].total_ms if kind in before.timed else 0.0)
        for kind, timed in after.timed.items()
        if background or not is_background(kind)
    )


def _statements(
    before: Snapshot,
    after: Snapshot,
    all_events: Mapping[Event, Counters],
    found: ActiveSessions,
    samples: CpuSamples | None,
    active: float,
) -> tuple[tuple[StatementRate, ...], float | None]:
    """Statements, the busiest first, and the CPU time that is at none of them."""
    by_pair = _sum(
        after.statements,
        _entries_before(before, after),
        _key,
        lambda row: not row.event.idle,
    )
    events: dict[Statement, list[StatementEvent]] = defaultdict(list)
    for (statement, event), c in by_pair.items():
        # a wait that ended as the statements were read can seem longer there than it was
        spent = min(c.spent_ms, all_events[event].spent_ms if event in all_events else 0.0)
        if spent:
            part = StatementEvent(event=event, active=found.average(spent))
            events[statement].append(part)
    cpu = found.on_cpu
    hits = dict(samples.hits) if samples else {}
    known = {statement.query_id for statement in events}
    for query_id in hits:
        if query_id not in known and query_id:
            events[Statement(0, 0, query_id)] = []
    rates = []
    at_statements = 0.0
    for statement, waits in events.items():
        # A query identifier that several roles run has its CPU time at the first of them.
        seen = hits.pop(statement.query_id, 0) if statement.query_id else 0
        on_cpu = low = high = None
        if cpu is not None and samples is not None and seen >= FEWEST:
            on_cpu, low, high = (cpu * x for x in _wilson(seen, samples.total))
            at_statements += on_cpu
        total = (on_cpu or 0.0) + sum(part.active for part in waits)
        rates.append(
            StatementRate(
                statement=statement,
                text=after.texts.get(statement.query_id),
                active=total,
                on_cpu=on_cpu,
                share=_share(total, active),
                events=tuple(sorted(waits, key=lambda part: -part.active)),
                cpu_samples=seen,
                on_cpu_lo=low,
                on_cpu_hi=high,
            )
        )
    ordered = sorted(rates, key=lambda rate: (-rate.active, -rate.cpu_samples))
    return tuple(ordered), None if cpu is None else max(0.0, cpu - at_statements)


def _entries_before(before: Snapshot, after: Snapshot) -> Iterator[StatementRow]:
    """Rows as they were; of an entry that was made again since, only its waits under way.

    One that may have been in a busy part of the table is as it is now: it could be older than that.
    """
    now = {_key(row): row.identity for row in after.statements}
    for row in before.statements:
        identity = now.get(_key(row))
        if identity is None or row.identity is None or identity == row.identity:
            yield row
        else:
            under_way = Counters(running_ms=row.counters.running_ms)
            yield row.model_copy(update={"counters": under_way})
    if before.busy:
        yield from _entries_lacking(before, after)


def carried_over(before: Snapshot, after: Snapshot) -> Snapshot:
    """The later snapshot, with the entries that it lacks as parts of their table were busy."""
    if not after.busy:
        return after
    lacking = _entries_lacking(after, before)
    return after.model_copy(update={"statements": (*after.statements, *lacking)})


def _entries_lacking(lacks: Snapshot, has: Snapshot) -> Iterator[StatementRow]:
    """Entries of which one snapshot has no waits that ended, without their waits under way."""
    there = {_key(row) for row in lacks.statements if row.counters.waits}
    for row in has.statements:
        if _key(row) not in there:
            ended = row.counters.model_copy(update={"running_ms": 0.0})
            yield row.model_copy(update={"counters": ended})


def _key(row: StatementRow) -> tuple[Statement, Event]:
    return row.statement, row.event


def by_statement(rows: Iterable[StatementRow]) -> dict[int, dict[Event, Counters]]:
    """Counters by query identifier and event over roles and databases, the longest first."""
    sums: dict[int, dict[Event, Counters]] = defaultdict(lambda: defaultdict(Counters))
    for row in rows:
        if not row.event.idle:
            sums[row.statement.query_id][row.event] += row.counters
    return dict(sorted(sums.items(), key=lambda item: -sum(c.spent_ms for c in item[1].values())))


def by_process(rows: Iterable[EventRow], *, idle: bool = False) -> dict[int, dict[Event, Counters]]:
    """Counters by process and event, the longest first."""
    sums: dict[int, dict[Event, Counters]] = defaultdict(dict)
    for row in rows:
        if row.pid is not None and (idle or not row.event.idle):
            sums[row.pid][row.event] = row.counters
    return dict(sorted(sums.items(), key=lambda item: -sum(c.spent_ms for c in item[1].values())))


def totals(rows: Iterable[EventRow]) -> dict[Event, Counters]:
    """Counters by event over all processes, since the last reset."""
    sums: dict[Event, Counters] = defaultdict(Counters)
    for row in rows:
        sums[row.event] += row.counters
    return sums


def _sum(
    after: Iterable[Row],
    before: Iterable[Row],
    key: Callable[[Row], Key],
    wanted: Callable[[Row], bool],
) -> dict[Key, Counters]:
    """How much the counters of each key grew.

    A wait that has ended but has not been counted yet can make a time fall a little: that is 0.
    """
    sums: tuple[dict[Key, Counters], dict[Key, Counters]] = ({}, {})
    for rows, into in zip((before, after), sums, strict=True):
        for row in rows:
            if wanted(row):
                into[key(row)] = into.get(key(row), Counters()) + row.counters
    first, last = sums
    return {k: grown(first.get(k, Counters()), counters) for k, counters in last.items()}


def grown(before: Counters, after: Counters) -> Counters:
    """The difference of two readings of one counter.

    total_ms: of waits that ended, from their begin. spent_ms: the time waited in between. Neither
    is below 0, but running_ms, the difference of the two, can be.
    """
    total_ms = max(0.0, after.total_ms - before.total_ms)
    return Counters(
        waits=max(0, after.waits - before.waits),
        calls=max(0, after.calls - before.calls),
        total_ms=total_ms,
        running_ms=max(0.0, after.spent_ms - before.spent_ms) - total_ms,
        histogram=tuple(
            max(0, b - a) for a, b in zip(before.histogram, after.histogram, strict=True)
        ),
    )


def _check(before: Snapshot, after: Snapshot) -> float:
    """The seconds between two snapshots that can be compared."""
    if before.started != after.started:
        raise UsageError(
            "the snapshots are of two servers, or of one that was restarted in between: take both "
            "from the same run of a server"
        )
    seconds = elapsed_s(before, after)
    if seconds <= 0:
        raise UsageError(
            "the second snapshot is not later than the first: swap them (or the server's clock was "
            "set back, and the snapshots are not of one run of pgtare's machine)"
        )
    first, last = ((s.stats_reset, s.losses.resets) for s in (before, after))
    if first != last:
        raise CountersReset(
            "the counters were reset between the snapshots, or those of a process were: take the "
            "first one after the reset"
        )
    return seconds


def elapsed_s(before: Snapshot, after: Snapshot) -> float:
    """The time between two snapshots, also if the server's clock was set in between."""
    first, last = before.reader_clock, after.reader_clock
    comparable = first is not None and last is not None and first.boot == last.boot

    def taken(snapshot: Snapshot) -> Taken:
        clock = snapshot.reader_clock
        if clock is None or not comparable:
            return Taken.at(snapshot.taken.timestamp(), None)
        return Taken.at(snapshot.taken.timestamp(), clock.monotonic_ns, clock.answer_ns)

    return elapsed_ns(taken(before), taken(after)) / 1e9
