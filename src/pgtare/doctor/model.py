"""The report of a look at a server, schema `pgtare.doctor/1`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Literal["pgtare.doctor/1"] = "pgtare.doctor/1"
Level = Literal["ok", "warning", "critical"]
Sure = Literal["certain", "likely", "possible"]

#: What monitoring sees. Errors of pgtare itself end with 1 and 2, as everywhere.
EXIT_STATUS: dict[Level, int] = {"ok": 0, "warning": 10, "critical": 11}
#: Sessions seen at work from which on a sampled share is told.
FEWEST_HITS = 20
ORDER: tuple[Level, ...] = ("critical", "warning", "ok")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="null")


class Finding(_Model):
    """Something that is wrong: what was seen, why it matters, what to do, and how sure that is.

    remedy: commands and, where words are needed, SQL comments. figures: what was seen, as numbers
    with the unit in the name.
    """

    check: str
    level: Literal["warning", "critical"]
    title: str
    seen: list[str]
    why: str
    remedy: list[str]
    sure: Sure
    because: str
    figures: dict[str, float] = {}


class Unseen(_Model):
    """What could not be looked at, and what would let it be."""

    what: str
    why: str
    remedy: str


class Observer(_Model):
    """Something that observes the server, and what it costs a transaction, where that is known.

    source: where the cost comes from, or how to get it.
    """

    name: str
    value: str
    cost_us: float | None = None
    cost_pct: float | None = None
    source: str


class WaitShare(_Model):
    """One event: sessions that waited for it on average, and its share of all active time.

    least: where it is sampled, the lower end of the share's 95 % interval; None where the samples
    bear none.
    """

    event: str
    active: float
    share: float | None
    least: float | None = None


class Waits(_Model):
    """Where the sessions' time went. exact: counted by wait_event_timing, else sampled.

    samples: looks at all sessions; hits: sessions at work that were seen in them.
    """

    exact: bool
    samples: int
    hits: int
    active: float
    on_cpu: float
    events: list[WaitShare]

    def share(self, event: str) -> float | None:
        """The share of one event of all active time; None where too little was seen of it."""
        if not self.active or (not self.exact and self.hits < FEWEST_HITS):
            return None
        return next((w.share for w in self.events if w.event == event), 0.0)

    def least(self, event: str) -> float | None:
        """The share if it was counted, else the least that the samples bear."""
        share = self.share(event)
        if self.exact or share is None:
            return share
        return next((w.least for w in self.events if w.event == event), 0.0)


class Statements(_Model):
    """pg_stat_statements in figures; None for what is not known.

    counted: the deallocations are the server's own count, else inferred from entries that
    vanished. turnover_s: how long an entry lives at the present rate. occupancy: share of the time
    in which the table is locked for sweeps. distinct: statements estimated to be in circulation.
    """

    schema_name: str
    version: str
    max: int
    entries: int
    counted: bool
    deallocations_s: float | None
    evicted_s: float | None
    deallocations_since_reset: int | None = None
    stats_reset: datetime | None = None
    since_reset_s: float | None = None
    sweep_ms: float
    occupancy: float | None = None
    turnover_s: float | None = None
    lost: float | None = None
    distinct: float | None = None
    statements_s: float | None = None
    live_text_bytes: int | None = None
    text_file_bytes: int | None = None
    null_texts: int | None = None
    median_age_s: float | None = None
    lock_share: float | None = None
    lock_share_least: float | None = None


class Clock(_Model):
    """What a reading of the clock costs the server, in ns."""

    read_ns: float
    source: str | None = None


class Server(_Model):
    """What was looked at."""

    version: str
    standby: bool
    started: datetime
    database: str
    role: str
    sees_all: bool


class Report(_Model):
    """One look. findings: the worst first. notes: what makes figures incomplete."""

    schema_: Literal["pgtare.doctor/1"] = Field(default=SCHEMA, alias="schema")
    taken: datetime
    seconds: float
    pgtare_version: str
    server: Server
    level: Level
    findings: list[Finding]
    statements: Statements | None
    waits: Waits | None
    clock: Clock | None
    transactions_s: float | None
    observers: list[Observer]
    unseen: list[Unseen]
    notes: list[str]

    @property
    def exit_status(self) -> int:
        """For monitoring."""
        return EXIT_STATUS[self.level]

    def to_json(self, indent: int | None = 2) -> str:
        """The document."""
        return self.model_dump_json(by_alias=True, indent=indent)


def json_schema() -> dict[str, Any]:
    """The JSON schema of the document."""
    return Report.model_json_schema(by_alias=True)
