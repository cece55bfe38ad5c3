"""What was seen of a server: its facts, counters at one moment, samples of sessions, waits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from pgtare.estimate.distributions import student_quantile
from pgtare.observing.doctor.model import FEWEST_HITS, Clock, Server, Unseen, Waits, WaitShare
from pgtare.postgres.wait_counters.active_sessions import ActiveSessions
from pgtare.postgres.wait_counters.epoch import Taken, elapsed_ns
from pgtare.postgres.wait_counters.model import Event

#: role, database, query identifier
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Extension:
    """Where an extension is, and its version."""

    schema: str
    version: str

    @property
    def number(self) -> tuple[int, ...]:
        """1.10 as (1, 10)."""
        return tuple(int(part) for part in self.version.split(".") if part.isdigit())

    @property
    def counts_deallocations(self) -> bool:
        """Whether this version of pg_stat_statements does: all do that a server comes with."""
        return self.number >= (1, 9)


@dataclass(frozen=True)
class DoctorFacts:
    """What does not change while one looks.

    settings: name → value in the setting's unit, as text, without what the doctor's own session
    sets for itself. sources: of those that are from no configuration file, as pg_settings names
    them. unseen: what could not be read. waits_clock: why waits are timed by their clock.
    """

    server: Server
    settings: dict[str, str]
    statements: Extension | None
    waits: Extension | None
    may_stat_file: bool
    clock: Clock | None
    unseen: tuple[Unseen, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    waits_clock: str | None = None

    @property
    def major(self) -> int:
        """PostgreSQL's major version."""
        return int(re.split(r"\D", self.server.version, maxsplit=1)[0])

    @property
    def table_size(self) -> int:
        """pg_stat_statements.max; PostgreSQL's default if it cannot be seen."""
        return int(self.settings.get("pg_stat_statements.max", "5000"))


class DatedCounters(Protocol):
    """Counters at one moment, by the server's clock, and in ns of ours; None: not known."""

    @property
    def taken(self) -> datetime: ...
    @property
    def read_ns(self) -> int | None: ...


def elapsed_s(before: DatedCounters, after: DatedCounters) -> float:
    """The time between two looks, also if the server's clock was set in between."""
    then, now = (Taken.at(look.taken.timestamp(), look.read_ns) for look in (before, after))
    return elapsed_ns(then, now) / 1e9


@dataclass(frozen=True)
class StatementEntries:
    """The table of statements at one moment: calls by statement. hidden: entries of other roles."""

    taken: datetime
    calls: dict[Key, int]
    hidden: int
    read_ns: int | None = None

    @property
    def count(self) -> int:
        """Entries that were ever executed."""
        return len(self.calls) + self.hidden


@dataclass(frozen=True)
class Deallocations:
    """The server's own count at one moment, and since when it counts."""

    taken: datetime
    count: int
    reset: datetime
    read_ns: int | None = None


@dataclass(frozen=True)
class CountedWaits:
    """ms waited by event at one moment, and how often they were reset.

    captured_ms: all of the time of the processes that waited; None if sessions are not captured.
    """

    taken: datetime
    ms: dict[Event, float]
    resets: int = 0
    captured_ms: float | None = None
    read_ns: int | None = None

    def since(self, before: CountedWaits) -> ActiveSessions | None:
        """What sessions did since another look; None if the counters were reset in between."""
        if before.resets != self.resets:
            return None
        captured = None
        if before.captured_ms is not None and self.captured_ms is not None:
            captured = self.captured_ms - before.captured_ms
        grown = {event: max(0.0, ms - before.ms.get(event, 0.0)) for event, ms in self.ms.items()}
        return ActiveSessions(elapsed_s(before, self), grown, captured)


@dataclass(frozen=True)
class Look:
    """Counters at one moment; None what there is not, or may not be read."""

    taken: datetime
    transactions: int
    dealloc: Deallocations | None = None
    entries: StatementEntries | None = None
    waits: CountedWaits | None = None
    unseen: tuple[Unseen, ...] = ()
    read_ns: int | None = None


@dataclass
class ActivitySamples:
    """Looks at what sessions do: how often each event was seen ("" for a processor), and looks.

    statements: those that were in the table at some look. squares, crossed: sums over looks from
    which the spread of a share follows, as sessions seen in one look are no independent samples: a
    sweep stalls them all.
    """

    looks: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    statements: set[Key] = field(default_factory=set)
    squares: Counter[str | None] = field(default_factory=Counter)
    crossed: Counter[str] = field(default_factory=Counter)

    def add(self, look: Mapping[str, int]) -> None:
        """Take what one look saw: sessions at work by event."""
        together = sum(look.values())
        self.looks += 1
        self.squares[None] += together**2
        for event, n in look.items():
            self.seen[event] += n
            self.squares[event] += n**2
            self.crossed[event] += n * together

    def least_share(self, event: str) -> float | None:
        """At least this share of all sessions seen at work was in the event (97.5 % sure).

        Looks are the units, the share a ratio of two of their sums (Cochran 1977, 6.3); None if
        there are too few.
        """
        together, n = self.seen.total(), self.looks
        if n < 2 or not together:
            return None
        share = self.seen[event] / together
        spread = (
            self.squares[event] - 2 * share * self.crossed[event] + share**2 * self.squares[None]
        )
        error = math.sqrt(max(0.0, spread) * n / (n - 1)) / together
        return max(0.0, share - student_quantile(n - 1, 0.975) * error)


@dataclass(frozen=True)
class StatementText:
    """A statement's text and how long all of it is; user, database: the entry's OIDs."""

    user: int
    database: int
    text: str | None
    length: int
    calls: int


@dataclass(frozen=True)
class Texts:
    """The texts, and the size of their file; None if it may not be read. unseen: why not."""

    rows: tuple[StatementText, ...] | None
    file_bytes: int | None
    unseen: tuple[Unseen, ...] = ()


def wait_profile(first: Look, last: Look, samples: ActivitySamples) -> Waits | None:
    """The waits of sessions at work; None if other sessions cannot be seen."""
    if not samples.looks:
        return None
    hits = samples.seen.total()
    sampled_on_cpu = samples.seen[""] / samples.looks
    counted = last.waits.since(first.waits) if first.waits and last.waits else None
    if counted is None:
        events = {e: n / samples.looks for e, n in samples.seen.items() if e}
        active, on_cpu = sampled_on_cpu + sum(events.values()), sampled_on_cpu
    else:
        # Sampled, it is too low: while our session looks, it keeps others from a processor.
        counted = replace(counted, sampled_on_cpu=sampled_on_cpu)
        waited = {e: ms for e, ms in counted.waited_ms.items() if ms and not e.idle}
        events = {e.label: counted.average(ms) for e, ms in waited.items()}
        active, on_cpu = counted.active, counted.on_cpu or 0.0
    on_cpu_exact = counted is not None and counted.sessions is not None
    known = on_cpu_exact or hits >= FEWEST_HITS  # else counted waits would seem to be all
    return Waits(
        exact=counted is not None,
        on_cpu_exact=on_cpu_exact,
        samples=samples.looks,
        hits=hits,
        active=active,
        on_cpu=on_cpu,
        events=[
            WaitShare(
                event=event,
                active=n,
                share=n / active if active and known else None,
                share_lo=samples.least_share(event) if counted is None and known else None,
            )
            for event, n in sorted(events.items(), key=lambda item: -item[1])
        ],
    )
