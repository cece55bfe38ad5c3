"""The views of `pgtare live`: their numbers are those of the spool, and what is sampled says so."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import http.client
import io
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.keeping.live import (
    live_charts,
    page_parts,
    row_sources,
    time_window,
    view_routes,
)
from pgtare.keeping.live.page_parts import PageColumn, PageRow, PageTable, TreeNode
from pgtare.keeping.live.time_window import US, TimeWindow
from pgtare.keeping.live.views import blockers, breakdown, event
from pgtare.keeping.live.worker_process import LiveRow, WorkerProcess
from pgtare.keeping.spool import manifest, reader
from pgtare.keeping.spool.writer import Spool
from tests.live_pages import ServedPage, served
from tests.sessions import eventually
from tests.unit.live_findings import HOSTILE_TEXT
from tests.unit.live_rows import CLOUD, SHOP, UNLIMITED, few_rows, make_spool
from tests.unit.spool_rows import catch_up, newest

LAST_HOUR = "from=2026-11-02T14:00:00&to=2026-11-02T15:00:00"
NEWEST_US = 1_793_631_600 * US


@pytest.fixture(autouse=True, scope="module")
def _let_in(page: ServedPage) -> None:
    page.log_in()


def table(page: ServedPage, path: str) -> list[dict[str, str]]:
    """A table of a view, as CSV has it."""
    answer = page.get(path)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.text)))


def of_spool(spool: Path, sql: str) -> list[tuple[Any, ...]]:
    return reader.query(spool, sql).rows


# Numbers


AAS = """
SELECT {by}, active_ns / covered_ns, active_ns, calls FROM
  (SELECT server, {by}, sum(active_ns) AS active_ns, sum(calls) AS calls FROM {rows}
   WHERE ts > '2026-11-02 14:00:00' AND ts <= '2026-11-02 15:00:00'
     AND NOT idle {only} GROUP BY ALL)
JOIN (SELECT server, sum(covered_ns) AS covered_ns FROM ticks WHERE source = '{rows}'
   AND ts > '2026-11-02 14:00:00' AND ts <= '2026-11-02 15:00:00' GROUP BY ALL)
USING (server) ORDER BY active_ns DESC
"""


@pytest.mark.parametrize(
    ("path", "rows", "by", "only"),
    [
        ("/activity.csv?table=by_type&", "waits", "type", "AND NOT background"),
        (
            "/breakdown.csv?by=event&table=by_event&type=IO&",
            "waits",
            "event",
            "AND NOT background AND type = 'IO'",
        ),
        ("/breakdown.csv?by=role&table=by_role&", "statements", "role", ""),
        (
            "/breakdown.csv?by=event&table=by_event&role=web&",
            "statements",
            "event",
            "AND role = 'web'",
        ),
    ],
)
def test_numbers_are_those_of_the_spool(
    page: ServedPage, spool: Path, path: str, rows: str, by: str, only: str
) -> None:
    found = table(page, path + LAST_HOUR)
    wanted = of_spool(spool, AAS.format(rows=rows, by=by, only=only))
    assert len(found) == len(wanted) > 0
    for row, (member, aas, active_ns, calls) in zip(found, wanted, strict=True):
        assert row[by] == member
        assert float(row["aas"]) == pytest.approx(float(aas), rel=1e-12)
        assert (int(row["active_ns"]), int(row["calls"])) == (active_ns, calls)


PER_S = """
SELECT sum(commits + rollbacks)
  / (SELECT sum(covered_ns) / 1e9 FROM ticks WHERE source = 'activity' AND server = 'shop'
     AND ts > '2026-11-02 {since}' AND ts <= '2026-11-02 {upto}')
FROM activity WHERE server = 'shop' AND ts > '2026-11-02 {since}' AND ts <= '2026-11-02 {upto}'
"""


def test_time_for_each_transaction_is_of_the_time_that_was_watched(
    page: ServedPage, spool: Path
) -> None:
    """Transactions are read once a minute, waits every 10 s: ends of windows must not count."""
    since, upto = "14:10:00", "14:11:50"
    window = f"from=2026-11-02T{since}&to=2026-11-02T{upto}"
    ((per_s,),) = of_spool(spool, PER_S.format(since=since, upto=upto))
    found = table(page, f"/breakdown.csv?by=event&table=by_event&{window}")
    assert found
    for row in found:
        each_ns = float(row["active_ns_per_transaction"])
        assert each_ns == pytest.approx(float(row["aas"]) / float(per_s) * 1e9)


def test_a_table_of_the_page_adds_up(page: ServedPage) -> None:
    found = table(page, f"/breakdown.csv?by=event&table=by_event&{LAST_HOUR}")
    assert sum(float(row["share"]) for row in found) == pytest.approx(1)


def test_the_chart_has_the_numbers_of_the_table(page: ServedPage) -> None:
    """Buckets are as long as each other and all watched, so their mean is that of the window."""
    text = page.get(f"/activity?{LAST_HOUR}").text
    (found,) = re.findall(r'id="charts">(.*?)</script>', text)
    (chart,) = json.loads(found)
    bars = {trace["name"]: trace["y"] for trace in chart["data"] if trace["type"] == "bar"}
    rows = table(page, f"/activity.csv?table=by_type&{LAST_HOUR}")
    assert set(bars) == {row["type"] for row in rows}
    for row in rows:
        values = bars[row["type"]]
        assert sum(values) / len(values) == pytest.approx(float(row["aas"]), rel=1e-4)


def test_samples_are_counted_by_the_time_they_stand_for(page: ServedPage, spool: Path) -> None:
    path = f"/breakdown.csv?by=application&table=by_application&server=cloud&{LAST_HOUR}"
    (row,) = table(page, path)
    ((count,),) = of_spool(
        spool, "SELECT count(*) FROM sessions WHERE server = 'cloud' AND state = 'active'"
    )
    assert int(row["active_ns"]) == 2 * count * 10**9  # looks are two seconds apart
    assert float(row["aas"]) == pytest.approx(2 * count / 3600)


def test_percentiles_are_those_of_the_histogram(page: ServedPage, spool: Path) -> None:
    found = table(page, f"/event.csv?event=DataFileRead&table=histogram&{LAST_HOUR}")
    sums = ", ".join(f"sum(h{number:02d})" for number in range(32))
    (counts,) = of_spool(
        spool,
        f"SELECT {sums} FROM waits WHERE event = 'DataFileRead' AND ts > '2026-11-02 14:00:00'",
    )
    assert [int(row["calls"]) for row in found] == [count for count in counts if count]
    rows = table(page, f"/event.csv?event=DataFileRead&table=percentiles&{LAST_HOUR}")
    for row in rows:
        below = sum(
            count
            for number, count in enumerate(counts)
            if event.bounds_ns(number)[0] < int(row["from_ns"])
        )
        upto = below + counts[int(row["below_ns"]).bit_length() - 9]
        assert below < float(row["share"]) * sum(counts) <= upto


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 3), (0.9, 4), (0.99, 31), (0.999, 31)])
def test_percentile_class(share: float, wanted: int) -> None:
    counts = [0] * 32
    counts[3], counts[4], counts[31] = 50, 45, 5
    assert event.percentile_class(counts, share) == wanted
    assert event.bounds_ns(31) == (1 << 38, None)


def test_counts_that_are_negative_are_not_drawn() -> None:
    """Waits outside of statements are a difference, which may be less than nothing."""
    assert event.percentile_class([-1, 3, *[0] * 30], 0.5) == 1
    at_us = NEWEST_US - 60 * 10**6
    window = TimeWindow(at_us, NEWEST_US, "minute")
    row = {"bucket_us": at_us, **{f"in_h{number:02d}": 0 for number in range(32)}}
    rows = [row | {"in_h03": -5, "in_h04": 100}]
    chart = live_charts.heat_chart(rows, window, 60 * 10**6)
    assert chart.data[0]["z"] == [[2.0]]
    assert chart.data[0]["y"] == [live_charts.class_words(4)]


def test_every_class_has_a_colour_of_its_own() -> None:
    classes = ["CPU", "IO", "LWLock", "Lock", "IPC", "Timeout", "Client", "Extension"]
    rows = [{"member": one, "bucket_us": NEWEST_US, "aas": 1.0} for one in classes]

    def chart(days: int) -> list[dict[str, Any]]:
        window = TimeWindow(NEWEST_US - days * 86_400 * US // 2, NEWEST_US, "tick")
        return live_charts.activity_chart("a", rows, window, US, None, by_class=True).data

    assert len({trace["marker"]["color"] for trace in chart(1)}) == len(classes)
    assert {trace["hovertemplate"].split(": ")[0] for trace in chart(1)} == {"%{x|%H:%M:%S}"}
    long = {trace["hovertemplate"].split(": ")[0] for trace in chart(2)}
    assert long == {"%{x|%Y-%m-%d %H:%M}"}


# What a tour asks


def test_which_statement_became_slower(page: ServedPage) -> None:
    path = "from=2026-11-02T14:30:00&to=2026-11-02T15:00:00"
    earlier = "from2=2026-11-02T13:30:00&to2=2026-11-02T14:00:00"
    rows = table(page, f"/compare.csv?by=query_id&table=compare&{path}&{earlier}")
    assert (rows[0]["query_id"], rows[0]["text"]) == ("6002", "SELECT * FROM product WHERE id = $1")
    assert float(rows[0]["aas_after"]) > 1.8 * float(rows[0]["aas_before"])
    same = table(page, f"/compare.csv?by=query_id&table=compare&{path}&{path.replace('=', '2=')}")
    assert {float(row["aas_change"]) for row in same} == {0.0}
    chart = page.get(f"/compare?by=query_id&{path}&{earlier}").text
    assert "(outside) on shop" in chart
    assert "UPDATE stock SET left_over" in chart


@pytest.mark.slow
def test_all_statements_are_compared(tmp_path: Path) -> None:
    """Also those that are far from the largest in one window, with texts of both."""
    after = datetime(2026, 11, 2, 14, 10, tzinfo=UTC)
    before = after - timedelta(days=7)

    def statements(ts: datetime, active_s: dict[int, int]) -> pa.Table:
        count = len(active_s)
        usual = {"kind": ["statement"] * count, "type": ["IO"] * count, "idle": [False] * count}
        ns = [10**9 * one for one in active_s.values()]
        ids = [*active_s]
        return few_rows("statements", ts, query_id=ids, text_hash=ids, active_ns=ns, **usual)

    usual = {number: 1000 + number for number in range(1, 250)}
    old = statements(before, {**usual, 900: 5, 901: 100_000})
    new = statements(after, {**usual, 900: 9000})
    spool = written(tmp_path / "spool", {"statements": old, "ticks": ticks(before)})
    texts = few_rows("texts", before, text_hash=[900, 901], text=["grown", "gone"])
    written(spool, {"statements": new, "ticks": ticks(after), "texts": texts})
    windows = "&from2=2026-10-26T14:00:00&to2=2026-10-26T15:00:00"
    with served(spool) as one:
        one.log_in()
        rows = table(one, f"/compare.csv?by=query_id&table=compare&{LAST_HOUR}{windows}")
        text = one.get(f"/compare?by=query_id&{LAST_HOUR}{windows}").text
        assert "The 200 largest changes." in text
    assert len(rows) == 200
    assert [(row["query_id"], row["text"], row["aas_before"]) for row in rows[:2]] == [
        ("901", "gone", "10000.0"),
        ("900", "grown", "0.5"),
    ]
    assert {row["aas_change"] for row in rows[2:]} == {"0.0"}


@pytest.mark.parametrize("by", ["query_id", "event", "server"])
def test_a_window_in_which_nothing_was_watched_is_blank(page: ServedPage, by: str) -> None:
    path = "from=2026-11-02T14:30:00&to=2026-11-02T15:00:00"
    unwatched = "from2=2026-11-01T13:30:00&to2=2026-11-01T14:00:00"
    rows = table(page, f"/compare.csv?by={by}&table=compare&{path}&{unwatched}")
    assert {(row["aas_before"], row["aas_change"]) for row in rows} == {("", "")}
    assert float(rows[0]["aas_after"]) > 0
    text = page.get(f"/compare?by={by}&{path}&{unwatched}").text
    assert "Nothing was watched in the earlier window: its columns are blank." in text
    assert "chart-change" not in text


def test_who_blocked_the_checkout(page: ServedPage) -> None:
    moments = table(page, f"/blockers.csv?table=moments&{LAST_HOUR}")
    assert {(row["server"], row["waiters"]) for row in moments} == {("shop", "4")}
    text = page.get(f"/blockers?{LAST_HOUR}").text
    tree = text[text.index('<ul class="tree">') :]
    assert re.findall(r"process (\d+)", tree)[:5] == ["100", "101", "103", "104", "102"]
    assert "process 100, admin" in tree
    rows = table(page, f"/blockers.csv?table=sessions&at=2026-11-02T14:03:00&{LAST_HOUR}")
    assert [(row["pid"], row["blockers"]) for row in rows] == [
        ("100", ""),
        ("101", "100"),
        ("102", "100"),
        ("103", "101"),
        ("104", "101"),
    ]
    quiet = page.get(f"/blockers?at=2026-11-02T14:40:00&{LAST_HOUR}").text
    assert "No session waited for another one then." in quiet


def test_other_views(page: ServedPage, spool: Path) -> None:
    bill = page.get(f"/bill?{LAST_HOUR}").text
    assert "The agent took 0.6 % of a core." in bill
    (setting,) = table(page, "/bill.csv?table=settings&last=6h&server=shop")
    assert (setting["name"], setting["value"]) == ("track_io_timing", "on")
    (gap,) = table(page, "/activity.csv?table=gaps&last=6h")
    assert (gap["kind"], gap["from_ts"]) == ("absence", "2026-11-02T12:29:00Z")
    within = "from=2026-11-02T12:29:10&to=2026-11-02T12:29:40"  # its row is of its end
    assert table(page, f"/activity.csv?table=gaps&{within}") == [gap]
    assert page.get("/activity.csv?table=gaps&last=2h").status == 404
    texts = table(page, f"/breakdown.csv?by=query_id&table=by_query_id&{LAST_HOUR}")
    assert HOSTILE_TEXT in {row["text"] for row in texts}


def test_a_statement_shows_its_own_recordings_and_who_held_it_up(page: ServedPage) -> None:
    def kept(view: str, window: str = LAST_HOUR) -> list[tuple[str, str, str]]:
        rows = table(page, f"/{view}table=recordings&{window}")
        return [(row["number"], row["pid"], row["query_id"]) for row in rows]

    mine, holder, other = ("3", "101", "6001"), ("4", "100", ""), ("5", "200", "6002")
    assert kept("statement.csv?server=shop&query_id=6001&") == [mine, holder]
    assert kept("statement.csv?server=shop&query_id=6002&") == [other]
    assert kept("statement.csv?server=shop&query_id=6004&") == []
    assert kept("statement.csv?server=cloud&query_id=6001&") == []
    assert kept("findings.csv?") == [other, mine, holder]
    # the agent read the last one after the window in which its trigger fired
    fired = "from=2026-11-02T14:00:00&to=2026-11-02T14:01:00"
    assert kept("statement.csv?server=shop&query_id=6001&", fired) == [mine, holder]
    text = page.get(f"/statement?server=shop&query_id=6004&{LAST_HOUR}").text
    assert "No trace of this statement was kept in this window." in text


def test_a_damaged_file_is_named_where_its_rows_are_missing(tmp_path: Path) -> None:
    spool = make_spool(tmp_path / "spool")
    content, _ = manifest.read(spool)
    assert content is not None
    (segment,) = content.of_table("findings")
    (spool / segment.name).write_bytes(b"cut")
    with served(spool) as one:
        one.log_in()
        words = f"a file of the spool cannot be read ({segment.name})"
        assert words in one.get(f"/findings?{LAST_HOUR}").text
        assert words in one.get(f"/activity?{LAST_HOUR}").text  # its strip lacks them
        assert "cannot be read" not in one.get(f"/breakdown?{LAST_HOUR}").text
        before = "from=2026-11-02T12:00:00&to=2026-11-02T12:30:00"
        assert "cannot be read" not in one.get(f"/findings?{before}").text


@pytest.mark.slow
def test_all_that_wait_are_counted(tmp_path: Path) -> None:
    """Blockers are looked up for 20 sessions of a sample; a part of the minute was watched."""
    ts = datetime(2026, 11, 2, 14, 0, 30, tzinfo=UTC)
    waiting = {"pid": [*range(31)], "type": [None, *["Lock"] * 30]}
    waiting |= {"blockers": [None, *[[100]] * 20, *[None] * 10], "state": ["active"] * 31}
    waiting |= {"event": [None, *["transactionid"] * 30]}
    rows = {"sessions": few_rows("sessions", ts, **waiting), "ticks": ticks(ts)}
    with served(written(tmp_path / "spool", rows)) as one:
        one.log_in()
        (moment,) = table(one, f"/blockers.csv?table=moments&{LAST_HOUR}")
        assert (moment["waiters"], moment["waited_ns"]) == ("30", str(30 * 10**10))
        text = one.get(f"/blockers?{LAST_HOUR}").text
        (found,) = re.findall(r'id="charts">(.*?)</script>', text)
        assert json.loads(found)[0]["data"][0]["y"] == [30]
        assert "Others that waited for locks: 10." in text


def at(minute: int, day: int = 2) -> datetime:
    """A time of the last hour, or of the same hour of another day."""
    return datetime(2026, 11, day, 14, minute, tzinfo=UTC)


def test_samples_are_divided_by_the_time_for_which_they_are_kept(tmp_path: Path) -> None:
    """Ticks of a week are there, samples of its last two days."""
    spool = tmp_path / "spool"
    seconds = 1000 * 10**9
    for day in range(1, 9):
        looks = {"source": ["sessions"], "ticks": [1], "covered_ns": [seconds]}
        rows = {"ticks": few_rows("ticks", at(0, day), **looks)}
        if day >= 7:
            active = {"state": ["active"], "covered_ns": [seconds // 2]}
            rows["sessions"] = few_rows("sessions", at(0, day), **active)
        written(spool, rows)
    window = "from=2026-11-01T15:00:00&to=2026-11-08T14:00:00"
    before = "from2=2026-11-02T15:00:00&to2=2026-11-04T14:00:00"
    with served(spool) as one:
        one.log_in()
        (row,) = table(one, f"/breakdown.csv?by=role&table=by_role&{window}")
        assert row["aas"] == "0.5"
        assert "Samples are kept for two days" in one.get(f"/breakdown?by=role&{window}").text
        of_today = "from=2026-11-07T15:00:00&to=2026-11-08T14:00:00"
        assert (
            "earlier ones are not in this table"
            not in one.get(f"/breakdown?by=role&{of_today}").text
        )
        (row,) = table(one, f"/compare.csv?by=role&table=compare&{of_today}&{before}")
        assert (row["aas_before"], row["aas_after"]) == ("", "0.5")
        text = one.get(f"/compare?by=role&{of_today}&{before}").text
        assert "Samples are kept for two days" in text
        assert "Nothing was watched in the earlier window" in text


def test_samples_that_were_dropped_early_do_not_count_as_idle(tmp_path: Path) -> None:
    """A spool keeps them for three hours; ticks of seven hours are there."""
    seconds = 1000 * 10**9
    looks = {"source": ["sessions"], "ticks": [1], "covered_ns": [seconds]}
    active = {"state": ["active"], "covered_ns": [seconds // 2]}
    kept_s: dict[Any, float] = {**UNLIMITED.kept_s, "sessions": 3 * 3600}
    with Spool.open(tmp_path / "spool", replace(UNLIMITED, kept_s=kept_s)) as spool:
        for hour in range(8, 15):
            ts = at(0).replace(hour=hour)
            rows = {"ticks": few_rows("ticks", ts, **looks)}
            if hour != 13:  # nobody was active
                rows["sessions"] = few_rows("sessions", ts, **active)
            spool.commit(rows, {})
        catch_up(spool, at(1))
        content = newest(tmp_path / "spool")
        assert content.dropped_us["sessions"] == round(at(0).replace(hour=11).timestamp()) * US
    window = "from=2026-11-02T07:30:00&to=2026-11-02T14:30:00"
    with served(tmp_path / "spool") as one:
        one.log_in()
        (row,) = table(one, f"/breakdown.csv?by=role&table=by_role&{window}")
        assert float(row["aas"]) == pytest.approx(1 / 3)  # 12:00 and 14:00, of three hours
        assert "earlier ones are not in" in one.get(f"/blockers?{window}").text
        for view in ("breakdown?by=role", "activity?"):
            text = one.get(f"/{view}&{window}").text
            assert "earlier ones are not in" in text
            assert shaded(text) == [("2026-11-02T07:30:00", "2026-11-02T11:00:00")]


def test_hours_are_shown_though_their_minutes_were_dropped(tmp_path: Path) -> None:
    """Of a window without whole hours at its ends what is there; its chart has minutes alone."""
    seconds = 3600 * 10**9
    looks: dict[str, list[Any]] = {"source": ["waits", "statements"], "ticks": [1] * 2}
    looks |= {"covered_ns": [seconds] * 2}
    waited: dict[str, list[Any]] = {"kind": ["statement"], "query_id": [6001], "role": ["web"]}
    waited |= {"type": ["IO"], "event": ["DataFileRead"], "idle": [False]}
    waited |= {"active_ns": [seconds // 2]}
    kept_s: dict[Any, float] = {**UNLIMITED.kept_s, "minutes": 3 * 3600}
    with Spool.open(tmp_path / "spool", replace(UNLIMITED, kept_s=kept_s)) as spool:
        for hour in range(4, 15):
            ts = at(0).replace(hour=hour)
            rows = {"ticks": few_rows("ticks", ts, **looks)}
            rows["statements"] = few_rows("statements", ts, **waited)
            spool.commit(rows, {})
        catch_up(spool, at(1))
        assert newest(tmp_path / "spool").dropped_us["statements"]
    window = "from=2026-11-02T05:30:00&to=2026-11-02T09:30:00"
    with served(tmp_path / "spool") as one:
        one.log_in()
        (row,) = table(one, f"/breakdown.csv?by=role&table=by_role&{window}")
        assert float(row["aas"]) == pytest.approx(0.5)
        text = one.get(f"/breakdown?by=role&{window}").text
        assert "The chart is shaded where it lacks rows." in text


def shaded(text: str) -> list[tuple[str, str]]:
    """From when to when the first chart of a page is shaded."""
    (found,) = re.findall(r'id="charts">(.*?)</script>', text)
    return [(one["x0"], one["x1"]) for one in json.loads(found)[0]["layout"]["shapes"]]


def test_statements_that_were_dropped_do_not_count_as_idle(tmp_path: Path) -> None:
    """A spool keeps their minutes for three hours; ticks of seven hours are there."""
    seconds = 1000 * 10**9
    sources = ["waits", "statements", "activity"]
    looks: dict[str, list[Any]] = {"source": sources, "ticks": [1] * 3}
    looks |= {"covered_ns": [seconds] * 3}
    waited: dict[str, list[Any]] = {"kind": ["statement"], "query_id": [6001], "role": ["web"]}
    waited |= {"type": ["IO"], "event": ["DataFileRead"], "idle": [False]}
    waited |= {"active_ns": [seconds // 2]}
    kept_s: dict[Any, float] = {**UNLIMITED.kept_s, "minutes": 3 * 3600}
    with Spool.open(tmp_path / "spool", replace(UNLIMITED, kept_s=kept_s)) as spool:
        for hour in range(8, 15):
            ts = at(0).replace(hour=hour)
            rows = {
                "ticks": few_rows("ticks", ts, **looks),
                "statements": few_rows("statements", ts, **waited),
                "activity": few_rows("activity", ts, commits=[1000]),
            }
            spool.commit(rows, {})
        catch_up(spool, at(1))
        dropped_us = newest(tmp_path / "spool").dropped_us
        eleven_us = round(at(0).replace(hour=11).timestamp()) * US
        assert (dropped_us["statements"], dropped_us["activity"]) == (eleven_us, eleven_us)
    window = "from=2026-11-02T10:30:00&to=2026-11-02T12:30:00"
    with served(tmp_path / "spool") as one:
        one.log_in()
        (row,) = table(one, f"/breakdown.csv?by=role&table=by_role&{window}")
        assert float(row["aas"]) == 0.5  # 12:00 alone
        assert float(row["active_ns_per_transaction"]) == pytest.approx(0.5e9)
        text = one.get(f"/breakdown?by=role&{window}").text
        assert "Earlier rows were dropped" in text
        assert shaded(text) == [("2026-11-02T10:30:00", "2026-11-02T11:00:00")]
        whole = "from=2026-11-02T11:30:00&to=2026-11-02T12:30:00"
        assert "Earlier rows were dropped" not in one.get(f"/breakdown?by=role&{whole}").text


def test_texts_are_there_though_others_are_forgotten(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown, "_MOST_TEXTS", 0)
    path = f"server=shop&{LAST_HOUR}"
    with served(spool) as one:
        one.log_in()
        assert one.get(f"/statement?query_id=6001&{path}").status == 200
        rows = table(one, f"/breakdown.csv?by=query_id&table=by_query_id&{path}")
    assert {row["query_id"]: row["text"] for row in rows}["6001"]


def test_a_total_is_of_all_servers(tmp_path: Path) -> None:
    """There are more of them than a table has rows."""
    names = [f"server{number}" for number in range(210)]
    usual = {"type": ["IO"], "event": ["DataFileRead"], "idle": [False], "background": [False]}
    rows = {
        "waits": [few_rows("waits", at(10), name, **usual, active_ns=[10**9]) for name in names],
        "ticks": [ticks(at(10), name) for name in names],
    }
    spool = written(tmp_path / "spool", {name: pa.concat_tables(of) for name, of in rows.items()})
    with served(spool) as one:
        one.log_in()
        found = table(one, f"/breakdown.csv?by=server&table=by_server&{LAST_HOUR}")
    assert len(found) == 200
    assert {round(210 * float(row["share"]), 6) for row in found} == {1.0}


@pytest.mark.slow
def test_an_events_page_has_the_waits_of_the_table_that_leads_to_it(tmp_path: Path) -> None:
    usual = {"type": ["IO"] * 2, "event": ["DataFileRead"] * 2, "idle": [False] * 2}
    types = {"backend_type": ["client backend", "autovacuum worker"], "background": [False, True]}
    figures = {"calls": [10, 1000], "active_ns": [10**9] * 2, "h09": [10, 1000]}
    rows = {
        "waits": few_rows("waits", at(10), **usual, **types, **figures),
        "ticks": ticks(at(10)),
    }
    with served(written(tmp_path / "spool", rows)) as one:
        one.log_in()
        (event,) = table(one, f"/activity.csv?table=by_event&{LAST_HOUR}")
        assert event["calls"] == "10"
        assert "<caption>10 waits ended" in one.get(f"/event?event=DataFileRead&{LAST_HOUR}").text
        of_all = f"/event?event=DataFileRead&backend_type=autovacuum worker&{LAST_HOUR}"
        assert "1,000 waits ended" in one.get(of_all.replace(" ", "%20")).text


@pytest.mark.slow
def test_the_moment_of_the_longest_queue_is_shown(tmp_path: Path) -> None:
    """Not the last one of its half hour, and not all that waited in it one after the other."""
    spool = tmp_path / "spool"
    for minute, pids in ((3, [1, 2, 3]), (7, [4, 5]), (17, [6])):
        waiting = {"pid": pids, "type": ["Lock"] * len(pids), "state": ["active"] * len(pids)}
        waiting |= {"event": ["transactionid"] * len(pids), "blockers": [[100]] * len(pids)}
        written(
            spool, {"sessions": few_rows("sessions", at(minute), **waiting), "ticks": ticks(at(7))}
        )
    with served(spool) as one:
        one.log_in()
        days = "from=2026-10-31T15:00:00&to=2026-11-02T15:00:00"
        (moment,) = table(one, f"/blockers.csv?table=moments&{days}")
        assert moment["waiters"] == "3"
        tree = one.get(f"/blockers?{days}").text
        assert "process 3" in tree
        assert "process 6" not in tree


@pytest.mark.slow
def test_what_the_module_lost_is_by_the_hour_that_was_read(tmp_path: Path) -> None:
    """It has rows only where it grew."""
    figures = {"kind": ["missed", "statements_evicted"], "value": [10.0, 20.0]}
    rows = {
        "ticks": few_rows("ticks", at(50), source=["waits"], ticks=[1], covered_ns=[1800 * 10**9]),
        "agent": few_rows("agent", at(50), unit=["waits", "entries"], **figures),
    }
    with served(written(tmp_path / "spool", rows)) as one:
        one.log_in()
        found = table(one, f"/bill.csv?table=bill&{LAST_HOUR}")
        each = {row["kind"]: (row["value"], row["per_hour"]) for row in found}
        assert each == {
            "missed": ("10 waits", "20 waits"),
            "statements_evicted": ("20 entries", "40 entries"),
        }


def node(pid: int, *below: TreeNode) -> TreeNode:
    return TreeNode(f"one: process {pid}", "it is not in the samples", list(below))


def blocked(**by: list[int]) -> list[dict[str, Any]]:
    words = {"host": "one", "wait_event": "", "statement": None}
    words |= dict.fromkeys(("user_role", "base", "program"), "")
    more = {"open_us": None, "condition": ""}
    return [
        {**words, **more, "process": int(pid[1:]), "waits_for": blockers}
        for pid, blockers in by.items()
    ]


def pids(nodes: list[TreeNode]) -> list[Any]:
    return [(int(re.findall(r"\d+", one.words)[0]), pids(one.waiters)) for one in nodes]


def test_trees() -> None:
    assert blockers.trees_of("one", [], {}) == []
    assert pids(blockers.trees_of("one", blocked(p2=[1], p3=[2], p4=[1, 2]), {})) == [
        (1, [(2, [(3, []), (4, [])])])
    ]
    deadlock = blockers.trees_of("one", blocked(p1=[2], p2=[1], p3=[1]), {})
    assert pids(deadlock) == [(1, [(2, []), (3, [])])]
    assert blockers.trees_of("two", blocked(p2=[1]), {}) == []
    prepared = blockers.trees_of("one", blocked(p2=[0]), {})
    assert prepared[0].words == "one: a prepared transaction"


# What is exact


@pytest.mark.parametrize(
    ("by", "only", "rows"),
    [
        ("event", [], "waits"),
        ("backend_type", ["type=CPU"], "waits"),
        ("role", [], "statements"),
        ("event", ["role=web"], "statements"),
        ("query_id", ["event=WALSync", "server=shop"], "statements"),
        ("backend_type", ["role=web"], "samples"),
        ("application", [], "samples"),
        ("role", ["type=CPU"], "samples"),
    ],
)
def test_the_rows_that_answer(by: str, only: list[str], rows: str) -> None:
    assert row_sources.row_source([by], only, "", True).rows == rows
    assert row_sources.row_source([by], only, "sampled", True).rows == "samples"
    assert row_sources.row_source([by], only, "", False).rows == "samples"


def test_a_sampled_server_is_in_no_exact_total(page: ServedPage) -> None:
    text = page.get(f"/activity?{LAST_HOUR}").text
    assert "Not in these figures: cloud" in text
    assert 'class="quality exact"' in text
    alone = page.get(f"/activity?{LAST_HOUR}&server=cloud").text
    assert 'class="quality sampled">sampled' in alone
    assert 'class="quality exact">' not in alone
    assert "Not in these figures" not in alone
    both = page.get(f"/breakdown?by=server&source=sampled&{LAST_HOUR}").text
    assert "cloud</a>" in both
    assert "shop</a>" in both


def written(spool: Path, tables: dict[str, pa.Table]) -> Path:
    """A spool with these rows more."""
    with Spool.open(spool, UNLIMITED) as opened:
        opened.commit(tables, {})
    return spool


def ticks(ts: datetime, server: str = SHOP) -> pa.Table:
    sources = ["waits", "statements", "sessions"]
    return few_rows("ticks", ts, server, source=sources, ticks=[1] * 3)


def test_a_server_whose_rows_do_not_come_is_named(tmp_path: Path) -> None:
    def now() -> datetime:  # rows are old after two minutes, and a page may take one
        return datetime.now(UTC)

    before = now() - timedelta(minutes=5)
    spool = written(tmp_path / "spool", {"ticks": ticks(before)})
    with served(spool) as one:
        one.log_in()
        said = f"The newest rows are from {before:%Y-%m-%d %H:%M:%S} UTC. "
        assert f"{said}No agent is writing to this spool." in one.get("/activity").text
        own = few_rows("agent", now(), "", kind=["cpu"], value=[0.1], unit=["s"])
        written(spool, {"agent": own})
        text = one.get("/activity").text
        assert f"{said}The agent runs, but has not reached a server since then" in text
        written(spool, {"ticks": ticks(now(), CLOUD)})
        text = one.get("/activity").text
        assert "The newest rows" not in text
        assert "No new rows of shop. The agent no longer watches them" in text
        assert "No new rows" not in one.get("/activity?server=cloud").text
        assert "No new rows" not in one.get(f"/activity?{LAST_HOUR}").text


# Windows


def test_windows_and_the_rows_they_read() -> None:
    def of(**words: str) -> time_window.TimeWindow:
        return time_window.window_of(words, NEWEST_US + 5 * US, {})

    assert (of().grain, of().seconds, of().last) == ("tick", 900, "15m")
    assert of(last="2h").grain == "tick"
    assert (of(last="6h").grain, of(last="6h").seconds) == ("minute", 21_660)
    assert (of(last="2d").grain, of(last="7d").grain) == ("minute", "hour")
    assert of(last="7d").to_us % (3600 * US) == 0
    fixed = of(**{"from": "2026-11-02T14:00:00", "to": "2026-11-02T14:30"})
    assert (fixed.seconds, fixed.last, fixed.step_us()) == (1800, None, 20 * US)
    assert fixed.before().to_us == fixed.after_us
    assert fixed.shifted(1).after_us == fixed.to_us
    assert fixed.widened().seconds == 3600
    assert fixed.words() == "2026-11-02 14:00:00 to 14:30:00 UTC"


def test_old_windows_read_what_is_kept() -> None:
    day = 86_400 * US
    spans = {
        "ticks": [NEWEST_US - 7 * day, NEWEST_US],
        "ticks_1m": [NEWEST_US - 30 * day, NEWEST_US],
        "ticks_1h": [NEWEST_US - 90 * day, NEWEST_US],
    }
    for age_days, grain in ((1, "tick"), (10, "minute"), (40, "hour")):
        start = NEWEST_US - age_days * day
        words = {"from": time_window.iso(start), "to": time_window.iso(start + 900 * US)}
        assert time_window.window_of(words, NEWEST_US, spans).grain == grain


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/activity?last=1y", "last is one of"),
        ("/activity?from=2026-11-02T14:00:00", "give both ends"),
        ("/activity?from=yesterday&to=now", "not a time"),
        ("/activity?from=2026-11-02T14:00:00&to=2026-11-02T13:00:00", "must end after"),
        ("/activity?from=2026-13-02T14:00:00&to=2026-11-02T13:00:00", "not a time"),
        ("/activity?from=0001-01-01T00:00:00&to=0001-01-02T00:00:00", "not a time"),
        ("/activity?from=9999-12-31T00:00:00&to=9999-12-31T23:59:59", "not a time"),
        ("/blockers?at=0001-01-01T00:00:00", "at is not a time"),
        ("/breakdown?by=1;DROP", "by is one of"),
        ("/breakdown?source=guessed", "source is"),
        ("/event", "an event is missing"),
        ("/statement?query_id=x", "query_id is a whole number"),
        ("/statement?query_id=9999999999999999999&server=shop", "64 bits"),
        ("/statement", "a statement is missing"),
        ("/finding?server=shop", "a finding is missing"),
        ("/finding?server=shop&key=made/up", "no such finding"),
        ("/finding?server=shop&key=x&since=then", "since is not a time"),
        ("/blockers?at=then", "at is not a time"),
    ],
)
def test_a_bad_address_gets_one_sentence(page: ServedPage, path: str, words: str) -> None:
    answer = page.get(path)
    assert answer.status == 400
    (alarm,) = re.findall(r'<p class="alarm">(.*?)</p>', answer.text)
    assert words.lower() in alarm.lower()


def test_an_address_is_never_part_of_a_query(page: ServedPage) -> None:
    answer = page.get("/breakdown?by=event&role=x%27%20OR%201%3D1--&last=2h")
    assert answer.status == 200
    assert "Nothing in this window." in answer.text


def test_an_empty_window_says_so(page: ServedPage) -> None:
    window = "from=2026-10-02T14:00:00&to=2026-10-02T14:30:00"
    for view in ("activity", "breakdown", "compare", "blockers", "bill", "findings"):
        answer = page.get(f"/{view}?{window}")
        assert answer.status == 200
        assert "No server was watched in this window." in answer.text


def test_csv_is_safe_in_a_spreadsheet() -> None:
    columns = [PageColumn("name", "name"), PageColumn("change", "change", "change")]
    rows = [PageRow(["=1+1", -0.5]), PageRow(["-6003", 2.0]), PageRow(["-a,b", None])]
    text = PageTable("t", "", columns, rows).csv()
    assert text == "name,change\n'=1+1,-0.5\n-6003,2.0\n\"'-a,b\",\n"


def test_cells() -> None:
    shown = page_parts.shown_cell
    assert [shown(0.0, "aas"), shown(12.345, "aas"), shown(None, "aas")] == ["0", "12.3", "–"]
    assert shown(-0.25, "aas") == "−0.250"
    assert [shown(-0.25, "change"), shown(1_500, "ns"), shown(0.051, "share")] == [
        "−0.250",
        "1.50 µs",
        "5.1 %",
    ]
    assert shown(NEWEST_US, "time") == "2026-11-02 15:00:00"
    assert [shown("x" * 400, "text"), shown("x" * 401, "text")] == ["x" * 400, "x" * 400 + " …"]


# The worker


@pytest.mark.slow
def test_a_slow_query_is_stopped_and_the_next_one_answered(spool: Path) -> None:
    async def ask() -> None:
        worker = WorkerProcess(spool, limit_s=0.001)
        try:
            with pytest.raises(MeasurementError, match="was stopped: choose a shorter window"):
                await worker.state()
            assert worker._process is None  # its late answer would be taken for the next one's
            worker._limit_s = 60
            assert (await worker.state())["seq"] > 0
            assert worker._process is not None
            worker._process.kill()
            await worker._process.wait()
            assert (await worker.state())["seq"] > 0
            await worker.close()
            worker._command = ["/no/such/program"]
            with pytest.raises(MeasurementError, match="the query worker ended"):
                await worker.state()
        finally:
            await worker.close()

    # a browser's test in this process leaves a loop of its own in the main thread
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(ask())).result()


@pytest.mark.slow
def test_nothing_is_computed_for_a_browser_that_has_gone(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    go_on = threading.Event()
    answer = WorkerProcess.answer

    async def late(
        worker: WorkerProcess, request: Mapping[str, Any]
    ) -> tuple[list[LiveRow], list[str]]:
        asked.append(request["query"])
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return await answer(worker, request)

    monkeypatch.setattr(WorkerProcess, "answer", late)
    with served(spool) as one:
        one.log_in()
        with socket.create_connection(("127.0.0.1", one.address.port)) as browser:
            head = f"GET /activity HTTP/1.1\r\nHost: 127.0.0.1:{one.address.port}\r\n"
            browser.sendall(f"{head}Cookie: {one.cookie}\r\n\r\n".encode())
            eventually(lambda: asked)
        time.sleep(1.5)  # until the server knows
        go_on.set()
        assert one.get("/bill").status == 200
        assert "series" not in asked  # of the activity


def test_a_silent_connection_is_heard(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By scripts, too, so that a page knows that it is not cut off."""
    monkeypatch.setattr(view_routes, "_LOOK_S", 0.05)
    monkeypatch.setattr(view_routes, "_ALIVE_S", 0.1)
    connection = http.client.HTTPConnection("127.0.0.1", page.address.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/updates", headers={"Cookie": page.cookie})
        lines = iter(connection.getresponse().readline, b"")
        assert b"event: alive\n" in lines
        assert next(lines).startswith(b"data: ")


def test_unknown_sources_are_refused() -> None:
    with pytest.raises(UsageError):
        row_sources.row_source(["event"], [], "x", True)
