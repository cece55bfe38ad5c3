"""What active time goes to: a lock's holder, the log, a client, a statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from pgtare.observing.findings.observation import AwaitedLock, SampledSession, StatementKey
from pgtare.observing.findings.roots import RootPath

#: Sessions that have waited for so long show that nothing goes on, s.
_OUTAGE_WAIT_S = 5.0

Name = TypeVar("Name")

LOCK, HOT_LOCK, LOG, SYNC = "lock", "hotlock", "log", "syncrep"
CLIENT, STATEMENT, RESOURCE, CPU, OBSERVER = "client", "statement", "resource", "cpu", "observer"


class Tally(dict[Name, float]):
    """Seconds by name."""

    def add(self, name: Name, seconds: float) -> None:
        """Add to one of them."""
        self[name] = self.get(name, 0.0) + seconds

    def join(self, other: Tally[Name]) -> None:
        """Add all of another one."""
        for name, seconds in other.items():
            self.add(name, seconds)

    def most(self, count: int = 1) -> list[Name]:
        """The names with the most seconds, the largest first."""
        return sorted(self, key=lambda name: -self[name])[:count]


@dataclass
class Cause:
    """What active time goes to. seconds: of all its sessions; seconds_at: by sample.

    name: of an observer, client or resource. root, gate: as they were seen last. first_at, last_at:
    s since 1970. since: when the longest wait or statement began. waits: how long each victim has
    waited, by process. waiting: who waited for a lock, by sample. paths: from each waiter to the
    root. beside: those who hold it together with the root, by sample. changes_hands: of a lock,
    whether it was seen with one holder after another. went_on: whether the sample after it shows
    that these waits have ended. writing_s: of the log, the time of statements that write to it and
    do not commit. commits_s: that of the others, by statement. commit_waits: how long these had
    waited, s; ended_waits: those that ended a transaction of several statements. handed_s: of those
    who wait for a lock of one that commits.
    """

    kind: str
    key: str
    name: str = ""
    seconds: float = 0.0
    seconds_at: Tally[float] = field(default_factory=Tally)
    events: Tally[str] = field(default_factory=Tally)
    statements: Tally[StatementKey] = field(default_factory=Tally)
    applications: Tally[tuple[str, str]] = field(default_factory=Tally)
    objects: Tally[str] = field(default_factory=Tally)
    objects_behind: Tally[str] = field(default_factory=Tally)
    direct: Tally[StatementKey] = field(default_factory=Tally)
    waits: dict[int, float] = field(default_factory=dict)
    waiting: dict[float, set[int]] = field(default_factory=dict)
    first_at: float = 0.0
    last_at: float = 0.0
    since: float = 0.0
    root: SampledSession | None = None
    prepared: AwaitedLock | None = None
    gate: SampledSession | None = None
    ring: bool = False
    waiters: dict[int, SampledSession] = field(default_factory=dict)
    paths: dict[int, RootPath] = field(default_factory=dict)
    beside: dict[float, dict[int, SampledSession]] = field(default_factory=dict)
    xact_ages: list[float] = field(default_factory=list)
    xacts: set[int | None] = field(default_factory=set)
    changes_hands: bool = False
    went_on: bool = False
    writing_s: float = 0.0
    commits_s: Tally[StatementKey] = field(default_factory=Tally)
    commit_waits: list[float] = field(default_factory=list)
    ended_waits: list[float] = field(default_factory=list)
    handed_s: float = 0.0

    def add(
        self, at: float, seconds: float, one: SampledSession, waited_s: float, object_: str = ""
    ) -> None:
        """Add a part of a sample's time of one session. waited_s: how long it has waited."""
        self.seconds += seconds
        self.seconds_at.add(at, seconds)
        self.events.add(one.label, seconds)
        self.statements.add(one.statement, seconds)
        self.applications.add((one.role, one.application), seconds)
        if object_:
            self.objects.add(object_, seconds)
        self.waits[one.pid] = max(self.waits.get(one.pid, 0.0), waited_s)
        self.waiters[one.pid] = one
        if one.type == "Lock":
            self.waiting.setdefault(at, set()).add(one.pid)
        began = at - waited_s
        self.first_at = min(self.first_at or at, at)
        self.since = min(self.since or began, began)
        self.last_at = max(self.last_at, at)

    def add_commit(self, seconds: float, one: SampledSession, waited_s: float, may: bool) -> None:
        """Note what waits for the log or a standby. may: whether it may be a commit.

        A statement that is its own transaction has worked before, nobody knows for how long.
        """
        if not may:
            self.writing_s += seconds
            return
        self.commits_s.add(one.statement, seconds)
        self.commit_waits.append(waited_s)
        if one.xact_us is not None and not one.is_whole_transaction:
            self.ended_waits.append(waited_s)

    def take(self, other: Cause) -> None:
        """Take over all of another cause's time."""
        self.seconds += other.seconds
        self.seconds_at.join(other.seconds_at)
        self.events.join(other.events)
        self.statements.join(other.statements)
        self.applications.join(other.applications)
        self.objects.join(other.objects)
        self.objects_behind.join(other.objects_behind)
        self.waits |= other.waits
        self.waiters |= other.waiters
        for at, pids in other.waiting.items():
            self.waiting.setdefault(at, set()).update(pids)
        self.first_at = min(self.first_at or other.first_at, other.first_at)
        self.since = min(self.since or other.since, other.since)
        self.last_at = max(self.last_at, other.last_at)

    @property
    def object(self) -> str:
        """What is locked, for the most time; empty: not known.

        What waits behind others may wait for what these hold.
        """
        return next(iter(self.objects.most() or self.objects_behind.most()), "")

    @property
    def event(self) -> str:
        """The event that took the most of the time."""
        return next(iter(self.events.most()), "CPU")

    @property
    def most_waiters(self) -> int:
        """The most sessions that waited for a lock at one time."""
        return max(map(len, self.waiting.values()), default=0)

    @property
    def others(self) -> list[SampledSession]:
        """Who held it next to the root when the cause was seen last, the oldest first."""
        found = self.beside.get(self.last_at, {}).values()
        return sorted(found, key=lambda one: (-(one.xact_age_s or 0.0), one.pid))

    @property
    def longest_wait_s(self) -> float:
        """The longest of all waits."""
        return max(self.waits.values(), default=0.0)

    @property
    def is_outage(self) -> bool:
        """Whether three sessions at least have waited for five seconds."""
        return sum(1 for waited in self.waits.values() if waited >= _OUTAGE_WAIT_S) >= 3
