"""What happened between two snapshots: time by event and by statement, average active sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pgtare.errors import UsageError
from pgtare.profile import doubts
from pgtare.profile.model import (
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
    share: float | None
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
    share: float | None
    events: tuple[tuple[Event, float], ...]


@dataclass(frozen=True)
class Profile:
    """Where time went in `seconds`.

    active: sessions neither idle nor waiting for their client, on average; on_cpu is the part of
    them that waited for nothing (None: not known). Shares are of `active`; idle events have none,
    and none is given where too many sessions are not captured. run_queue: sessions that waited for
    a processor, of whatever else they waited for before. notes: what the figures lack;
    hides_much: so much that there are no shares.
    """

    seconds: float
    active: float
    on_cpu: float | None
    events: tuple[EventRate, ...]
    statements: tuple[StatementRate, ...]
    on_cpu_by: Literal["counted", "sampled"] | None = None
    run_queue: float | None = None
    notes: tuple[str, ...] = ()
    hides_much: bool = False


class CountersReset(UsageError):
    """Counters fell between two snapshots: they cannot be compared."""


def profile(
    before: Snapshot,
    after: Snapshot,
    on_cpu: Mapping[int, float] | None = None,
    *,
    on_cpu_by: Literal["counted", "sampled"] = "sampled",
    run_queue: float | None = None,
    idle: bool = False,
    background: bool = False,
) -> Profile:
    """Compare two snapshots of one server.

    on_cpu: sessions on CPU on average, by query identifier (0: none), and on_cpu_by how that is
    known. run_queue: sessions that waited for a processor on average. idle: list waits for
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
    whole = 0.0 if doubts.hides_much(before.clients, after.clients) else active
    rates = [
        EventRate(
            event=event,
            active=c.total_ms / ms,
            share=0.0 if event.idle else _share(c.total_ms / ms, whole),
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
        statements=_statements(before, after, on_cpu or {}, ms, whole),
        on_cpu_by=on_cpu_by if on_cpu is not None else None,
        run_queue=run_queue,
        notes=doubts.between(before, after),
        hides_much=doubts.hides_much(before.clients, after.clients),
    )


def _share(part: float, whole: float) -> float | None:
    """The share of all active time; None where that is not known."""
    return part / whole if whole else None


def counted_on_cpu(before: Snapshot, after: Snapshot) -> float | None:
    """Client sessions that neither waited nor idled, on average: the rest of their time.

    It covers who waited for a processor, too. None where not all of that time is known: sessions
    came or went, or are not captured, or a wait under way began before it was counted.
    """
    if not before.uncounted or not after.uncounted or not before.clients or not after.clients:
        return None
    known = [{(c.pid, c.started) for c in s.clients or ()} for s in (before, after)]
    every = (*before.clients, *after.clients)
    if known[0] != known[1] or not all(c.captured and c.timed for c in every):
        return None
    events = _sum(
        after.events, before.events, lambda row: row.event,
        lambda row: row.backend_type == "client backend",
    )  # fmt: skip
    seconds = _check(before, after)
    waited = sum(c.total_ms for c in events.values()) / 1000 / seconds
    return max(0.0, len(after.clients) - waited)


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
                share=_share(total, active),
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
    seconds = (after.taken - before.taken).total_seconds()
    if seconds <= 0:
        raise UsageError("the second snapshot is not later than the first: swap them")
    if before.stats_reset != after.stats_reset or _were_reset(before, after):
        raise CountersReset(
            "the counters were reset between the snapshots, or those of a process were: take the "
            "first one after the reset"
        )
    return seconds


def _were_reset(before: Snapshot, after: Snapshot) -> bool:
    """Whether any counter was set back: the module counts that, or one fell."""
    if before.losses.resets is not None and after.losses.resets is not None:
        return before.losses.resets != after.losses.resets
    first, last = (totals(s.events, idle=True, background=True) for s in (before, after))
    return any(last.get(event, Counters()).waits < c.waits for event, c in first.items())
