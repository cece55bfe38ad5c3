"""The report of a look at a server, schema `pgtare.doctor/1`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name
from pgtare.observing.findings.collector import SESSIONS
from pgtare.observing.findings.model import Finding
from pgtare.observing.findings.model import Level as FindingLevel

Level = Literal["ok", "warning", "critical"]

#: What monitoring sees. Errors of pgtare itself end with 1 and 2, as everywhere.
EXIT_STATUS: dict[Level, int] = {"ok": 0, "warning": 10, "critical": 11}
#: Sessions seen at work from which on a sampled share is reported.
FEWEST_HITS = 20
#: What a finding makes of the report's level.
_LEVELS: dict[FindingLevel, Level] = {"critical": "critical", "warning": "warning", "info": "ok"}


def worst(findings: Iterable[Finding]) -> Level:
    """The level of all of them together."""
    levels = (_LEVELS[finding.level] for finding in findings)
    return max(levels, key=EXIT_STATUS.__getitem__, default="ok")


class Unseen(Model):
    """What could not be looked at, and what would let it be."""

    what: str = Field(description="what was not looked at")
    why: str = Field(description="why not")
    remedy: str = Field(description="what would let it be")


class Observer(Model):
    """Something that observes the server."""

    name: str = Field(description="as `pgtare weigh` names it")
    value: str = Field(description="its setting")


class WaitShare(Model):
    """One event: sessions that waited for it on average, and its share of all active time."""

    event: str = Field(description="class and name, as `IO/DataFileRead`")
    active: float = Field(
        description="sessions that waited for it, on average; a lower bound if sampled"
    )
    share: float | None = Field(
        description="of all active time, from 0 to 1; `null`: too few samples"
    )
    share_lo: float | None = Field(
        default=None, description="of a sampled share, the lower end of its 95 % interval"
    )


class Waits(Model):
    """Where the sessions' time went."""

    exact: bool = Field(description="whether waits were counted; else they were sampled")
    on_cpu_exact: bool = Field(
        default=False, description="whether `on_cpu` was counted; else it was sampled"
    )
    samples: int = Field(description="looks at all sessions")
    hits: int = Field(description="sessions at work that were seen in them")
    active: float = Field(description="sessions at work, on average; a lower bound if sampled")
    on_cpu: float = Field(description="of these, on a processor")
    events: list[WaitShare] = Field(description="event by event")

    def share(self, event: str) -> float | None:
        """The share of one event of all active time; None if too little was seen of it."""
        if not self.active or (not self.exact and self.hits < FEWEST_HITS):
            return None
        return next((w.share for w in self.events if w.event == event), 0.0)

    def least(self, event: str) -> float | None:
        """The share if it was counted, else the least that the samples show."""
        share = self.share(event)
        if self.exact or share is None:
            return share
        return next((w.share_lo for w in self.events if w.event == event), 0.0)


class Statements(Model):
    """pg_stat_statements in figures; None for what is not known."""

    schema_name: str = Field(description="schema of the extension")
    version: str = Field(description="version of the extension")
    max: int = Field(description="`pg_stat_statements.max`")
    entries: int = Field(description="entries in the table")
    deallocations_per_s: float | None = Field(description="sweeps of the table")
    evicted_per_s: float | None = Field(description="entries that vanished")
    deallocations_since_reset: int | None = Field(
        default=None, description="sweeps since the counters were reset"
    )
    stats_reset: datetime | None = Field(default=None, description="when that was")
    since_reset_per_s: float | None = Field(default=None, description="sweeps since then, a second")
    sweep_ms: float = Field(description="how long a sweep takes")
    occupancy: float | None = Field(
        default=None, description="share of the time in which sweeps lock the table, from 0 to 1"
    )
    turnover_s: float | None = Field(
        default=None, description="how long an entry lives at the present rate"
    )
    lost_share: float | None = Field(
        default=None,
        description="share of throughput that such a rate took where that was measured",
    )
    distinct: float | None = Field(default=None, description="statements in circulation, estimated")
    live_text_bytes: int | None = Field(default=None, description="texts in use")
    text_file_bytes: int | None = Field(default=None, description="size of the file of texts")
    null_texts: int | None = Field(default=None, description="entries whose text is lost")
    lock_share: float | None = Field(
        default=None,
        description="share of the active time spent waiting for the table's lock, from 0 to 1",
    )
    lock_share_lo: float | None = Field(
        default=None, description="lower end of that, if it was sampled"
    )


class Clock(Model):
    """What a reading of the clock costs the server, in ns."""

    read_ns: float = Field(description="what a reading of the clock costs the server")
    source: str | None = Field(default=None, description="the clock's source")


class Server(Model):
    """What was looked at."""

    version: str = Field(description="version of PostgreSQL")
    standby: bool = Field(description="whether it is a standby")
    started: datetime = Field(description="when it was started")
    database: str = Field(description="database that was connected to")
    role: str = Field(description="role that was connected as")
    sees_all: bool = Field(description="whether this role sees all sessions")


class Report(Document):
    """One look."""

    schema_: Literal["pgtare.doctor/1"] = schema_name("pgtare.doctor/1")
    taken: datetime = Field(description="when, UTC")
    duration_s: float = Field(description="time between the two looks")
    pgtare_version: str = Field(description="version of pgtare that wrote it")
    server: Server = Field(description="what was looked at")
    level: Level = Field(description="the worst of the findings: `ok`, `warning` or `critical`")
    findings: list[Finding] = Field(description="what is wrong, the most urgent first")
    statements: Statements | None = Field(
        description="pg_stat_statements; `null`: not there, or not visible"
    )
    waits: Waits | None = Field(description="where the sessions' time went; `null`: not known")
    clock: Clock | None = Field(description="the server's clock; `null`: not known")
    transactions_per_s: float | None = Field(
        description="transactions of the whole server; `null`: not known"
    )
    observers: list[Observer] = Field(description="what observes the server")
    unseen: list[Unseen] = Field(description="what could not be looked at")
    notes: list[str] = Field(description="what makes figures incomplete")

    @property
    def is_blind(self) -> bool:
        """Whether what slows sessions could not be seen."""
        return not self.server.sees_all or any(one.what == SESSIONS for one in self.unseen)

    @property
    def exit_status(self) -> int:
        """For monitoring; 1 if nothing was found, and what slows sessions could not be seen."""
        return EXIT_STATUS[self.level] or int(self.is_blind)
