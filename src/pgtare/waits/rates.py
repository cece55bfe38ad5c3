"""What happened between two snapshots: time by event and by statement, average active sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pgtare.errors import UsageError
from pgtare.waits.model import (
    FOREGROUND,
    Counters,
    Event,
    EventRow,
    Snapshot,
    Statement,
    StatementRow,
)

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row", EventRow, StatementRow)


@dataclass(frozen=True)
class EventRate:
    """One event: sessions waiting for it on average, and its waits."""

    event: Event
    active: float
    share: float
    waits_per_s: float
    mean_ms: float | None
    waits: int
    total_ms: float


@dataclass(frozen=True)
class StatementRate:
    """One statement: sessions that ran it on average, waiting and on CPU, and its main events."""

    statement: Statement
    text: str | None
    active: float
    on_cpu: float
    share: float
    events: tuple[tuple[Event, float], ...]


@dataclass(frozen=True)
class Profile:
    """Where time went in `seconds`.

    active: sessions neither idle nor waiting for their client, on average; on_cpu is the part of
    them that waited for nothing (None: not sampled). Shares are of `active`; idle events have none.
    """

    seconds: float
    active: float
    on_cpu: float | None
    events: tuple[EventRate, ...]
    statements: tuple[StatementRate, ...]


def profile(
    before: Snapshot,
    after: Snapshot,
    on_cpu: Mapping[int, float] | None = None,
    *,
    idle: bool = False,
    background: bool = False,
) -> Profile:
    """Compare two snapshots of one server.

    on_cpu: sessions on CPU on average, by query identifier (0: none). idle: list waits for
    something to do as well. background: not only processes that work for clients.
    Raises UsageError where the two cannot be compared.
    """
    seconds = _check(before, after)
    events = _sum(
        after.events, before.events, lambda row: row.event,
        lambda row: background or row.backend_type in FOREGROUND,
    )  # fmt: skip
    cpu = sum(on_cpu.values()) if on_cpu is not None else None
    ms = seconds * 1000
    waiting = sum(c.total_ms for event, c in events.items() if not event.idle) / ms
    active = waiting + (cpu or 0.0)
    rates = [
        EventRate(
            event=event,
            active=c.total_ms / ms,
            share=c.total_ms / ms / active if active and not event.idle else 0.0,
            waits_per_s=c.waits / seconds,
            mean_ms=c.total_ms / c.waits if c.waits else None,
            waits=c.waits,
            total_ms=c.total_ms,
        )
        for event, c in events.items()
        if (idle or not event.idle) and (c.waits or c.total_ms)
    ]
    return Profile(
        seconds=seconds,
        active=active,
        on_cpu=cpu,
        events=tuple(sorted(rates, key=lambda rate: -rate.total_ms)),
        statements=_statements(before, after, on_cpu or {}, ms, active),
    )


def _statements(
    before: Snapshot, after: Snapshot, on_cpu: Mapping[int, float], ms: float, active: float
) -> tuple[StatementRate, ...]:
    by_pair = _sum(
        after.statements, before.statements,
        lambda row: (row.statement, row.event), lambda row: not row.event.idle,
    )  # fmt: skip
    events: dict[Statement, list[tuple[Event, float]]] = defaultdict(list)
    for (statement, event), c in by_pair.items():
        if c.total_ms:
            events[statement].append((event, c.total_ms / ms))
    known = {statement.queryid for statement in events}
    for queryid in on_cpu:
        if queryid not in known and queryid:
            events[Statement(0, 0, queryid)] = []
    rates = []
    counted: set[int] = set()
    for statement, waits in events.items():
        # A query identifier that several roles run has its CPU time at the first of them.
        cpu = 0.0 if statement.queryid in counted else on_cpu.get(statement.queryid, 0.0)
        counted.add(statement.queryid)
        total = cpu + sum(n for _, n in waits)
        rates.append(
            StatementRate(
                statement=statement,
                text=after.texts.get(statement.queryid),
                active=total,
                on_cpu=cpu,
                share=total / active if active else 0.0,
                events=tuple(sorted(waits, key=lambda pair: -pair[1])),
            )
        )
    return tuple(sorted(rates, key=lambda rate: -rate.active))


def by_statement(rows: Iterable[StatementRow]) -> dict[int, dict[Event, Counters]]:
    """Counters by query identifier and event over roles and databases, the longest first."""
    sums: dict[int, dict[Event, Counters]] = defaultdict(lambda: defaultdict(Counters))
    for row in rows:
        if not row.event.idle:
            sums[row.statement.queryid][row.event] += row.counters
    return dict(sorted(sums.items(), key=lambda item: -sum(c.spent_ms for c in item[1].values())))


def by_process(rows: Iterable[EventRow], *, idle: bool = False) -> dict[int, dict[Event, Counters]]:
    """Counters by process and event, the longest first."""
    sums: dict[int, dict[Event, Counters]] = defaultdict(dict)
    for row in rows:
        if row.pid is not None and (idle or not row.event.idle):
            sums[row.pid][row.event] = row.counters
    return dict(sorted(sums.items(), key=lambda item: -sum(c.spent_ms for c in item[1].values())))


def totals(
    rows: Sequence[EventRow], *, idle: bool = False, background: bool = False
) -> dict[Event, Counters]:
    """Counters by event over the types of process, since the last reset."""
    sums: dict[Event, Counters] = defaultdict(Counters)
    for row in rows:
        if (idle or not row.event.idle) and (background or row.backend_type in FOREGROUND):
            sums[row.event] += row.counters
    return sums


def _sum(
    after: Iterable[Row],
    before: Iterable[Row],
    key: Callable[[Row], Key],
    wanted: Callable[[Row], bool],
) -> dict[Key, Counters]:
    """How much the counters of each key grew; total_ms has the waits under way in it.

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
    """The difference of two readings of one counter, never below 0."""
    return Counters(
        waits=max(0, after.waits - before.waits),
        calls=max(0, after.calls - before.calls),
        total_ms=max(0.0, after.spent_ms - before.spent_ms),
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
    if before.stats_reset != after.stats_reset:
        raise UsageError(
            "the counters were reset between the snapshots: take the first one after the reset"
        )
    seconds = (after.taken - before.taken).total_seconds()
    if seconds <= 0:
        raise UsageError("the second snapshot is not later than the first: swap them")
    return seconds
