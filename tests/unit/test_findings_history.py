"""Findings that an agent kept, of a stretch of time, and beside another one."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from pgtare.keeping.findings import history, show
from pgtare.keeping.findings.history import KeptTraces, Stretch
from pgtare.keeping.spool import reader
from pgtare.keeping.spool.writer import Spool
from tests.unit.live_rows import ODD_SERVER, findings_each_minute
from tests.unit.spool_rows import UNLIMITED

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def row(at: float, event: str = "update", since: float = 0.0, **more: Any) -> tuple[Any, ...]:
    """A row as a spool answers: times in UTC without a zone, minutes after noon."""
    naive = NOON.replace(tzinfo=None)
    values: dict[str, Any] = dict.fromkeys(history._COLUMNS) | {
        "server": "shop",
        "ts": naive + minutes(at),
        "key": "lock/1@0",
        "kind": "lock",
        "event": event,
        "class": 1,
        "level": "warning",
        "since": naive + minutes(since),
        "until": naive + minutes(at - 1) if event == "close" else None,
        "episodes": 1,
        "share": 0.5,
        "aas": 2.0,
        "active_s": 120.0 * (at - since),
        "object": "hot",
        "victims": [2, 3],
        "root": json.dumps({"pid": 1}),
        "query_id": 2**60 + 1,
        "title": "cron holds rows of hot",
        "evidence": "one\ntwo",
        "why": "so",
        "remedy": json.dumps([{"command": "SELECT 1;", "does": "", "risk": "", "privilege": ""}]),
        "sure": "certain",
        "because": "seen",
        "figures": json.dumps({"sessions": 2.0}),
    }
    return tuple((values | more)[name] for name in history._COLUMNS)


def test_a_finding_is_told_once_with_its_worst_figures() -> None:
    stretch = Stretch(NOON, NOON + minutes(60))
    rows = [row(0.2, "open"), row(5, share=0.9, **{"class": 0}), row(10, "close", share=0.1)]
    (found,) = history.of_rows(rows, stretch).findings
    assert (found.open, found.class_, found.share) == (False, 0, 0.9)
    assert found.until == NOON + minutes(9)
    assert found.active_s == 1200.0
    assert found.query_id == str(2**60 + 1)
    assert found.evidence == ["one", "two"]
    assert found.traces is None
    document = json.loads(history.of_rows(rows, stretch).to_json())
    assert document["findings"][0]["class"] == 0
    assert document["findings"][0]["root"] == {"pid": 1}


def test_time_before_the_stretch_does_not_count() -> None:
    stretch = Stretch(NOON + minutes(4), NOON + minutes(60))
    rows = [row(3, share=0.9), row(5), row(10)]  # the first was written before
    (found,) = history.of_rows(rows, stretch).findings
    assert (found.open, found.active_s, found.share) == (True, 840.0, 0.5)
    # a stretch between two rows
    (found,) = history.of_rows(rows[:1], stretch).findings
    assert (found.open, found.active_s) == (True, 0.0)
    assert "ts > T'2026-11-24 11:53:00" in stretch.condition("T'{}'", None)
    # ended before it, and begun after it
    later = Stretch(NOON + minutes(9.5), NOON + minutes(60))
    assert history.of_rows([row(10, "close")], later).findings == []
    earlier = Stretch(NOON - minutes(9), NOON - minutes(1))
    assert history.of_rows([row(0.2, "open")], earlier).findings == []


def test_one_key_at_two_times_is_two_findings() -> None:
    stretch = Stretch(NOON, NOON + minutes(60))
    rows = [row(1, "open"), row(3, "close"), row(31, "open", since=30), row(33, "close", since=30)]
    found = history.of_rows(rows, stretch).findings
    assert [one.since for one in found] == [NOON, NOON + minutes(30)]
    assert [one.active_s for one in found] == [360.0, 360.0]


def test_only_what_is_shown_is_read(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for minute in range(3):
            spool.commit({"findings": findings_each_minute(NOON, minute)}, {})
    stretch = Stretch(NOON + minutes(0.5), NOON + minutes(60))
    names = ", ".join(history._COLUMNS)
    for server in (None, "'shop'", reader.quoted(ODD_SERVER)):
        condition = stretch.condition("TIMESTAMP '{}'", server)
        whole = reader.query(
            tmp_path, f"SELECT {names} FROM findings WHERE {condition} ORDER BY ts"
        )
        read = reader.query(tmp_path, history.sql(f"SELECT * FROM findings WHERE {condition}"))
        assert history.of_rows(read.rows, stretch) == history.of_rows(whole.rows, stretch)
        assert len(read.rows) == (12 if server is None else 6)
        title = history._COLUMNS.index("title")
        assert sum(values[title] is not None for values in read.rows) == len(read.rows) / 2


def test_two_times_are_compared_by_what_was_waited_for() -> None:
    """The session that held it last week has another process today."""
    now = Stretch(NOON, NOON + minutes(60))
    week = timedelta(days=7)
    then = now.earlier(week)
    assert (then.begin, then.end) == (NOON - week, NOON + minutes(60) - week)
    today = history.of_rows([row(1, "open"), row(10, "close")], now)
    before = history.of_rows(
        [row(1 - 7 * 24 * 60, "open", since=-7 * 24 * 60, key="lock/77@5")], then
    )
    (both,) = history.compared(today, before)
    assert (both.now_s, both.before_s) == (1200.0, 120.0)


def test_two_statements_of_one_table_are_two_causes() -> None:
    rows = [
        row(
            10,
            "close",
            kind="statement",
            key=f"statement/app/{n}",
            query_id=n,
            title=f"«SELECT {n}»",
        )
        for n in (7, 8)
    ]
    today = history.of_rows(rows, Stretch(NOON, NOON + minutes(60)))
    found = history.compared(today, history.of_rows([], Stretch(NOON, NOON + minutes(60))))
    assert [(one.title, one.now_s) for one in found] == [
        ("«SELECT 7»", 1200.0),
        ("«SELECT 8»", 1200.0),
    ]


def printed(*rows: tuple[Any, ...]) -> list[str]:
    """What the terminal shows of a week's rows."""
    found = history.of_rows(rows, Stretch(NOON - timedelta(days=7), NOON + timedelta(days=7)))
    with io.StringIO() as said:
        Console(file=said, width=120).print(show.view(found))
        return said.getvalue().splitlines()


def test_a_finding_that_ends_on_another_day_says_which() -> None:
    day = 24 * 60
    lines = printed(row(1, "open"), row(4 * day, "close"))
    until = (NOON + minutes(4 * day - 1)).astimezone()
    assert f"  {until:%m-%d %H:%M:%S}  shop" in lines[1]
    lines = printed(row(1, "open"), row(2, "close"))
    assert f"  {(NOON + minutes(1)).astimezone():%H:%M:%S}  shop" in lines[1]


def test_what_was_open_when_the_agent_stopped_is_not_said_to_be_open() -> None:
    stopped = f"  not known after {(NOON + minutes(1)).astimezone():%H:%M:%S}  "
    cases = ((1, 2, "  open  "), (1, 4, stopped), (3, 10, "  open  "), (3, 12, stopped))
    for class_, later, shown in cases:
        rows = [row(1, "open", **{"class": class_})]
        found = history.of_rows(rows, Stretch(NOON, NOON + minutes(1 + later)))
        with io.StringIO() as said:
            Console(file=said, width=120).print(show.view(found))
            assert shown in said.getvalue().splitlines()[1]
        assert found.findings[0].written == NOON + minutes(1)


def test_commands_begin_below_what_was_seen() -> None:
    lines = printed(row(1, "open"))
    seen, remedy = (next(one for one in lines if label in one) for label in ("seen", "remedy"))
    assert seen.index("one") == remedy.index("SELECT 1;")


def test_its_traces_are_named_in_the_list() -> None:
    missing = "no trace of 3: the session is not traced"
    traces = {"kept": [{"pid": 1, "id": 7, "file": "kept-7-findings.pgtrace"}], "missing": missing}
    stretch = Stretch(NOON, NOON + minutes(60))
    found = history.of_rows([row(1, "open", traces=json.dumps(traces))], stretch)
    assert found.findings[0].traces == KeptTraces.model_validate(traces)
    with io.StringIO() as said:
        Console(file=said, width=120).print(show.view(found))
        lines = [" ".join(line.split()) for line in said.getvalue().splitlines()]
    assert lines[-2:] == [
        "trace pgtare trace kept 7 --dsn … (process 1, kept-7-findings.pgtrace)",
        missing,
    ]
