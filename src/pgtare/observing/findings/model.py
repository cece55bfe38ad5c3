"""A finding: its figures, its root, the words for it and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import AliasChoices, Field, PrivateAttr

from pgtare.kit.document import Model

Level = Literal["critical", "warning", "info"]
Sure = Literal["certain", "likely", "possible"]
Quality = Literal["exact", "sampled"]

#: Classes, the most urgent first: what an outage is, what takes active time, a limit that comes
#: near, a setting that explains nothing yet, and what is told for information only.
OUTAGE, ACTIVE, LIMIT, SETTING, INFORMATION = range(5)
#: What ALTER SYSTEM needs; reading the settings anew is a function's call, which can be granted.
ALTER_SYSTEM = "ALTER SYSTEM, and EXECUTE on pg_reload_conf()"
LEVELS: tuple[Level, ...] = ("critical", "warning", "info")


class Remedy(Model):
    """One thing to do."""

    command: str = Field(default="", description="what to paste; empty: there is no command for it")
    does: str = Field(default="", description="what it does, or when it is to be used")
    risk: str = Field(default="", description="what it may break; empty: nothing known")
    privilege: str = Field(default="", description="what the role needs for it")

    @property
    def line(self) -> str:
        """As SQL, with everything but the command in a comment."""
        words = "; ".join(filter(None, (self.does, self.risk and f"risk: {self.risk}")))
        if not self.command:
            return f"-- {words}"
        return f"{self.command}  -- {words}" if words else self.command


class Who(Model):
    """The session, or the prepared transaction, that others wait for."""

    pid: int | None = Field(default=None, description="its process; `null`: it has none")
    started: datetime | None = Field(default=None, description="when the session began, UTC")
    role: str = Field(default="", description="its role")
    application: str = Field(default="", description="its `application_name`")
    database: str = Field(default="", description="its database")
    client: str = Field(
        default="", description="address of its client; empty: a local socket, or not known"
    )
    state: str = Field(default="", description="what it does, as `pg_stat_activity` names it")
    transaction_age_s: float | None = Field(
        default=None, description="how long its transaction is open"
    )
    gid: str | None = Field(default=None, description="name of a prepared transaction")


class FindingTrace(Model):
    """A trace of one of its sessions, in a file of the server."""

    pid: int = Field(description="process of the session")
    id: int = Field(description="number of the kept trace, until the server is restarted")
    file: str = Field(description="its file in `sql_trace.keep_directory`")


class FindingTraces(Model):
    """What the flight recorder was asked to keep of a finding, once, as it opened."""

    kept: list[FindingTrace] = Field(default=[], description="the root first")
    missing: str = Field(default="", description="what is not kept, and why; empty: nothing")


class Finding(Model):
    """Something that slows the server, or will: who, how much, since when, what to do."""

    key: str = Field(description="the same as long as it is the same thing")
    kind: str = Field(description="`lock`, `statement`, `limit`, `evictions` …")
    class_: int = Field(
        default=SETTING,
        validation_alias=AliasChoices("class_", "class"),
        serialization_alias="class",
        ge=0,
        le=4,
        description="0 outage, 1 active sessions, 2 limit, 3 setting, 4 information",
    )
    level: Level = Field(description="`critical`, `warning` or `info`")
    since: datetime | None = Field(default=None, description="when it began; `null`: not known")
    share: float | None = Field(
        default=None, description="of all active time, from 0 to 1; `null`: none of its own"
    )
    aas: float | None = Field(default=None, description="sessions that it holds up, on average")
    active_s: float | None = Field(default=None, description="active time that it took, s")
    quality: Quality = Field(default="sampled", description="`exact` or `sampled`")
    limit_left_s: float | None = Field(
        default=None, description="of a limit: when it is reached at the present rate, s"
    )
    root: Who | None = Field(default=None, description="whom the others wait for")
    gate: Who | None = Field(
        default=None, description="who waits for a table, with half or more of the others behind it"
    )
    query_id: str | None = Field(default=None, description="identifier of its statement")
    object: str | None = Field(default=None, description="the table or other object")
    victims: list[int] = Field(default=[], description="processes that wait")
    title: str = Field(description="one line, without figures that change")
    evidence: list[str] = Field(description="what was seen, with figures")
    why: str = Field(description="why it matters")
    remedy: list[Remedy] = Field(description="what to do, the gentlest first")
    sure: Sure = Field(description="`certain`, `likely` or `possible`")
    because: str = Field(description="why so sure")
    figures: dict[str, float] = Field(
        default={}, description="what was seen, as numbers with the unit in the name"
    )

    _active_at: dict[float, float] = PrivateAttr(default_factory=dict)

    def with_time(self, seconds_at: Mapping[float, float]) -> Finding:
        """The same, with more of its active time, s, by sample, s since 1970."""
        found = self.model_copy()
        found._active_at = dict(self._active_at)
        for at, seconds in seconds_at.items():
            found._active_at[at] = found._active_at.get(at, 0.0) + seconds
        return found

    def active_after(self, at: float) -> float | None:
        """Active time in samples after this one, s; `None`: not known by sample."""
        if not self._active_at:
            return None
        return sum(seconds for when, seconds in self._active_at.items() if when > at)

    @property
    def commands(self) -> list[str]:
        """The remedies as lines of SQL."""
        return [remedy.line for remedy in self.remedy]


def lines(texts: Iterable[str]) -> list[Remedy]:
    """Remedies from lines of SQL, in which a comment says what the command does."""
    found = []
    for text in texts:
        command, _, does = ("", "", text[3:]) if text.startswith("-- ") else text.partition("  -- ")
        needs = ALTER_SYSTEM if command.startswith("ALTER SYSTEM ") else ""
        found.append(Remedy(command=command, does=does, privilege=needs))
    return found


def place(one: Finding) -> tuple[float, ...]:
    """Where it ranks, the smallest first: by class, then by share, by time left, by level."""
    weight = (one.share or 0.0) * min(1.0, one.aas or 0.0)
    left = one.limit_left_s if one.limit_left_s is not None else float("inf")
    return one.class_, -weight, left, LEVELS.index(one.level)


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The most urgent first."""
    return sorted(findings, key=place)


def of_setting(
    kind: str, *, level: Level, remedy: Iterable[str], name: str = "", **more: Any
) -> Finding:
    """A finding of a setting or an observer. name: tells it from others of its kind."""
    return Finding(
        key=f"setting/{kind}/{name}" if name else f"setting/{kind}",
        kind=kind,
        class_=INFORMATION if level == "info" else SETTING,
        level=level,
        quality="exact",
        remedy=lines(remedy),
        **more,
    )
