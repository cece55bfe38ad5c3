"""Findings of a stretch of time, from the rows of a spool or a store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import Field

from pgtare.keeping.spool.tables import TABLES
from pgtare.kit.document import Document, Model, schema_name

#: Columns that hold JSON.
_JSON = ("root", "gate", "remedy", "figures", "traces")
_COLUMNS = tuple(
    column.name
    for column in TABLES["findings"].columns
    if column.name not in ("agent", "segment", "epoch", "covered_ns", "quality")
)
#: Those that are read of every row; the others, with long texts, of a finding's last one only.
_EACH = ("server", "ts", "key", "since", "class", "share", "aas", "active_s")
#: An open finding is written at least so often: what was open when a stretch began has a row.
_WRITTEN = timedelta(minutes=11)
#: One that is no setting (class 3) or information is written each minute.
_WRITTEN_OFTEN = timedelta(minutes=3)


class KeptTrace(Model):
    """A trace that the flight recorder kept of a session in a finding."""

    pid: int = Field(description="process of the session")
    id: int = Field(description="its number, until the server is restarted")
    file: str = Field(description="its file in the server's `sql_trace.keep_directory`")


class KeptTraces(Model):
    """What the flight recorder was asked to keep as a finding opened."""

    kept: list[KeptTrace] = Field(description="the traces, that of the root first")
    missing: str = Field(description="what is not kept, and why; empty: nothing is missing")

    def lines(self) -> list[str]:
        """How each trace is seen, and what is missing."""
        lines = [
            f"pgtare trace kept {trace.id} --dsn …  (process {trace.pid}, {trace.file})"
            for trace in self.kept
        ]
        return [*lines, *filter(None, [self.missing])]


class KeptFinding(Model):
    """A finding as it was written last within the stretch of time."""

    server: str = Field(description="name of the server in the agent's configuration")
    key: str = Field(description="the same as long as it is the same thing")
    kind: str = Field(description="`lock`, `statement`, `limit`, `evictions` …")
    open: bool = Field(description="whether it was open at the end")
    class_: int = Field(
        serialization_alias="class",
        description="0 outage, 1 active, 2 limit, 3 setting, 4 information; the most urgent",
    )
    level: str = Field(description="`critical`, `warning` or `info`")
    since: datetime = Field(description="when it began, UTC")
    until: datetime | None = Field(description="when it was seen last; `null`: it is open")
    written: datetime = Field(description="when the agent wrote it last, UTC")
    episodes: int = Field(description="how often it was open")
    share: float | None = Field(description="its largest share of all active time, from 0 to 1")
    aas: float | None = Field(description="the most sessions that it held up")
    active_s: float = Field(description="active time that it took within the stretch, s")
    limit_left_s: float | None = Field(description="until a limit is reached, s")
    root: dict[str, Any] | None = Field(description="whom the others wait for")
    gate: dict[str, Any] | None = Field(description="who has the others behind it")
    query_id: str | None = Field(description="identifier of its statement")
    object: str | None = Field(description="the table or other object")
    victims: list[int] = Field(description="processes that wait")
    title: str = Field(description="one line")
    evidence: list[str] = Field(description="what was seen")
    why: str = Field(description="why it matters")
    remedy: list[dict[str, str]] = Field(
        description="what to do: command, does, risk, privilege of each"
    )
    sure: str = Field(description="`certain`, `likely` or `possible`")
    because: str = Field(description="why so sure")
    figures: dict[str, float | None] = Field(description="figures with the unit in the name")
    follows: str | None = Field(description="key of the one that came before it")
    traces: KeptTraces | None = Field(
        description="traces of its sessions; `null`: the server keeps none of findings"
    )


class FindingsHistory(Document):
    """What slowed servers within a stretch of time."""

    schema_: Literal["pgtare.findings/1"] = schema_name("pgtare.findings/1")
    from_: datetime = Field(serialization_alias="from", description="begin of the stretch, UTC")
    to: datetime = Field(description="its end, UTC")
    findings: list[KeptFinding] = Field(description="the most urgent first")

    def is_stale(self, one: KeptFinding) -> bool:
        """Whether nobody has watched since: what was open then may have ended."""
        expected = _WRITTEN if one.class_ >= 3 else _WRITTEN_OFTEN
        return one.open and self.to - one.written > expected


@dataclass(frozen=True)
class Stretch:
    """A stretch of time, UTC."""

    begin: datetime
    end: datetime

    def earlier(self, by: timedelta) -> Stretch:
        """The same stretch some time before."""
        return Stretch(self.begin - by, self.end - by)

    def condition(self, time: str, server: str | None) -> str:
        """Which rows may tell of it. time: makes a time of a text, `{}`. server: quoted."""
        begin, end = (
            time.format(f"{at:%Y-%m-%d %H:%M:%S.%f}") for at in (self.begin - _WRITTEN, self.end)
        )
        of_server = "" if server is None else f" AND server = {server}"
        return f"ts > {begin} AND ts <= {end}{of_server}"


def sql(source: str) -> str:
    """The rows of a SELECT of findings, for `of_rows`: of each finding, only the last is whole."""
    columns = ", ".join(
        name if name in _EACH else f"CASE WHEN back = 1 THEN {name} ELSE {_none(name)} END"
        for name in _COLUMNS
    )
    back = "row_number() OVER (PARTITION BY server, key, since ORDER BY ts DESC) AS back"
    numbered = f"SELECT *, {back} FROM ({source}) AS a"
    return f"SELECT {columns} FROM ({numbered}) AS b ORDER BY ts, back DESC"


def _none(name: str) -> str:
    return "[]" if name == "victims" else "NULL"  # a list is never NULL in ClickHouse


def of_rows(rows: Iterable[Sequence[Any]], stretch: Stretch) -> FindingsHistory:
    """The findings of a stretch, from its rows in the order of time."""
    by_key: dict[tuple[str, str, datetime], list[Mapping[str, Any]]] = {}
    for values in rows:
        row = dict(zip(_COLUMNS, values, strict=True))
        # one that comes back after ten minutes is another of the same key
        by_key.setdefault((row["server"], row["key"], row["since"]), []).append(row)
    found = [one for group in by_key.values() if (one := _finding(group, stretch)) is not None]
    found.sort(key=lambda one: (one.class_, -one.active_s, one.since, one.server, one.key))
    return FindingsHistory(from_=stretch.begin, to=stretch.end, findings=found)


def _at(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _finding(rows: Sequence[Mapping[str, Any]], stretch: Stretch) -> KeptFinding | None:
    """One finding, from its rows; None if it began after the stretch or ended before."""
    last = rows[-1]
    since, until = _at(last["since"]), last["until"] and _at(last["until"])
    if since > stretch.end or (until is not None and until < stretch.begin):
        return None
    ended = last["event"] == "close"
    within = [row for row in rows if _at(row["ts"]) > stretch.begin] or rows[-1:]
    fields = {name: last[name] for name in _COLUMNS if name not in ("ts", "event", "class")}
    fields |= {name: None if last[name] is None else json.loads(last[name]) for name in _JSON}
    query_id = last["query_id"]
    fields |= {
        "open": not ended,
        "class_": min(row["class"] for row in within),
        "since": since,
        "until": until if ended else None,
        "written": _at(last["ts"]),
        "share": _most(within, "share"),
        "aas": _most(within, "aas"),
        "active_s": _within(rows, since, stretch),
        "query_id": None if query_id is None else str(query_id),
        "victims": list(last["victims"] or ()),
        "evidence": last["evidence"].splitlines(),
    }
    return KeptFinding(**fields)


def _most(rows: Iterable[Mapping[str, Any]], name: str) -> float | None:
    return max((row[name] for row in rows if row[name] is not None), default=None)


def _within(rows: Sequence[Mapping[str, Any]], since: datetime, stretch: Stretch) -> float:
    """Active time within the stretch: what it took more than when the stretch began."""
    earlier = [row for row in rows if _at(row["ts"]) <= stretch.begin] or rows[:1]
    before = 0.0 if since >= stretch.begin else float(earlier[-1]["active_s"] or 0.0)
    return max(0.0, float(rows[-1]["active_s"] or 0.0) - before)


@dataclass(frozen=True)
class ComparedFinding:
    """Active time of one cause in two stretches, s."""

    server: str
    title: str
    now_s: float
    before_s: float


def compared(now: FindingsHistory, before: FindingsHistory) -> list[ComparedFinding]:
    """Both stretches side by side, the largest change first: a blocker of then has no pid now."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    titles: dict[tuple[str, str, str], str] = {}
    for place, history in enumerate((now, before)):
        for one in history.findings:
            what = one.query_id or one.object or one.key
            key = one.server, one.kind, what
            sums.setdefault(key, [0.0, 0.0])[place] += one.active_s
            titles.setdefault(key, one.title)
    found = [ComparedFinding(key[0], titles[key], *both) for key, both in sums.items()]
    return sorted(found, key=lambda one: (-abs(one.now_s - one.before_s), one.server, one.title))
