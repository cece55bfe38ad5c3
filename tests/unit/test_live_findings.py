"""Findings on the page: the strip, the list, the spans on the chart, and a finding's own page."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pgtare.keeping.spool.writer import Spool
from tests.live_pages import ServedPage, served
from tests.unit.live_findings import HOSTILE_TEXT, HOSTILE_TITLE, finding_row
from tests.unit.live_rows import (
    CLOUD,
    END,
    SHOP,
    UNLIMITED,
    finding_table,
    make_spool,
)
from tests.unit.test_live_views import LAST_HOUR, table

LOCK_TITLE = "nightly-job (pid 100) is idle in transaction and holds up others"
SLOWER_TITLE = "SELECT * FROM product takes twice as long as before"
AN_HOUR_BEFORE = "from=2026-11-02T12:00:00&to=2026-11-02T13:00:00"
WHILE_LOCKED = "from=2026-11-02T14:01:00&to=2026-11-02T14:03:00"


@pytest.fixture(autouse=True, scope="module")
def _let_in(page: ServedPage) -> None:
    page.log_in()


def items(text: str) -> list[tuple[str, str, str]]:
    """The strip: level, title and figures of each."""
    found = re.findall(
        r'<span class="level">(\w+)</span> <a href="[^"]*">(.*?)</a> '
        r'<span class="note">(.*?)</span>',
        text,
    )
    return [(level, html.unescape(title), about) for level, title, about in found]


def links(text: str) -> dict[str, str]:
    """Where each link of a page leads, by its words."""
    found = re.findall(r'<a href="([^"]*)"[^>]*>(.*?)</a>', text)
    return {html.unescape(words): html.unescape(address) for address, words in found}


def chart(text: str, id_: str) -> dict[str, Any]:
    (found,) = re.findall(r'id="charts">(.*?)</script>', text)
    (one,) = [one for one in json.loads(found) if one["id"] == id_]
    return dict(one)


def test_the_list_has_the_most_urgent_first(page: ServedPage) -> None:
    rows = table(page, f"/findings.csv?table=findings&{LAST_HOUR}")
    assert [(row["title"], row["class"], row["state"]) for row in rows] == [
        (LOCK_TITLE, "outage", "closed"),
        (SLOWER_TITLE, "active time", "open"),
        (HOSTILE_TITLE, "setting", "open"),
    ]
    lock = rows[0]
    assert (lock["share"], lock["aas"], lock["episodes"]) == ("0.65", "4.0", "1")
    assert (lock["since"], lock["until"]) == ("2026-11-02T14:00:00Z", "2026-11-02T14:05:00Z")
    assert (rows[1]["until"], rows[1]["server"]) == ("", SHOP)
    assert [
        row["server"]
        for row in table(page, f"/findings.csv?table=findings&server=cloud&{LAST_HOUR}")
    ] == [CLOUD]


@pytest.mark.parametrize(
    ("window", "titles"),
    [
        (AN_HOUR_BEFORE, []),
        (WHILE_LOCKED, [LOCK_TITLE]),
        # neither has a row in here: it was closed later, and begins in between
        ("from=2026-11-02T14:04:40&to=2026-11-02T14:04:50", [LOCK_TITLE]),
        ("from=2026-11-02T14:05:10&to=2026-11-02T14:06:30", []),
        ("from=2026-11-02T14:30:10&to=2026-11-02T14:30:40", [SLOWER_TITLE]),
    ],
)
def test_what_was_open_in_a_window(page: ServedPage, window: str, titles: list[str]) -> None:
    rows = table(page, f"/findings.csv?table=findings&server=shop&{window}")
    assert [row["title"] for row in rows] == titles
    found = [title for _, title, _ in items(page.get(f"/activity?server=shop&{window}").text)]
    assert found == titles


def test_the_strip_comes_first_and_has_what_is_open_now(page: ServedPage) -> None:
    text = page.get("/activity?last=2h").text
    first = re.findall(r"<h2>(.*?)</h2>", text)[0]
    assert first == "Open findings"
    ((level, title, about),) = items(text)
    assert (level, title) == ("warning", SLOWER_TITLE)
    assert about == "30 % of active time, 1.2 sessions, since 2026-11-02 14:30:00, shop"
    assert "last=2h" in links(text)["1 more"]  # of a setting
    assert page.get("/").status == 303
    assert page.get("/").headers["location"] == "/activity"
    then = items(page.get(f"/activity?{WHILE_LOCKED}").text)
    about = "55 % of active time, 4.0 sessions, 2026-11-02 14:00:00 to 2026-11-02 14:05:00, shop"
    assert then == [("critical", LOCK_TITLE, about)]
    before = page.get(f"/activity?{AN_HOUR_BEFORE}").text
    assert "None that takes active time" in before


def test_the_chart_is_shaded_while_findings_were_open(page: ServedPage) -> None:
    text = page.get(f"/activity?{LAST_HOUR}").text
    spans = [(one["x0"], one["x1"]) for one in chart(text, "activity")["layout"]["shapes"]]
    assert spans == [
        ("2026-11-02T14:00:00", "2026-11-02T14:05:00"),
        ("2026-11-02T14:30:00", "2026-11-02T15:00:00"),  # it is open; a setting is no span
    ]
    assert f"Shaded: {LOCK_TITLE}, 2026-11-02 14:00:00 to 2026-11-02 14:05:00;" in text
    within = chart(page.get(f"/activity?{WHILE_LOCKED}").text, "activity")["layout"]["shapes"]
    assert [(one["x0"][11:], one["x1"][11:]) for one in within] == [("14:01:00", "14:03:00")]
    assert chart(page.get(f"/activity?{AN_HOUR_BEFORE}").text, "activity")["layout"]["shapes"] == []


def lock_page(page: ServedPage) -> str:
    return page.get(links(page.get(f"/findings?{LAST_HOUR}").text)[LOCK_TITLE]).text


def test_a_findings_own_page(page: ServedPage) -> None:
    text = html.unescape(lock_page(page))
    headings = re.findall(r"<h2>(.*?)(?: <span.*)?</h2>", text)
    assert headings == [
        "Critical, closed, 2026-11-02 14:00:00 to 2026-11-02 14:05:00",
        "What was seen",
        "What to do",
        "Its sessions at the worst second, 2026-11-02 14:04:20 UTC",
        "Its share over time",
        "Recordings",
        "More",
    ]
    assert "<li>4 sessions wait at once (Lock/transactionid)</li>" in text
    assert "Why it matters: what waits for a lock goes on" in text
    assert "30 % of active time when written last, 65 % at most (2026-11-02 14:04:20)" in text
    tree = text[text.index('<ul class="tree">') :]
    assert re.findall(r"process (\d+)", tree)[:5] == ["100", "101", "103", "104", "102"]
    (command,) = re.findall(r'<pre tabindex="0" id="command-1">(.*?)</pre>', text)
    assert command == "SELECT pg_terminate_backend(100) FROM pg_stat_activity WHERE pid = 100;"
    assert re.findall(r"<dt>(\w+)</dt>", text) == ["does", "risk", "privilege", "do"]
    assert 'data-copies="command-1"' in text
    assert 'id="command-2"' not in text, "there is nothing to copy"
    assert "This finding is closed." in text
    (line,) = chart(text, "share")["data"]
    assert line["y"] == [45, 45, 50, 55, 60, 65, 0]
    assert (line["x"][0][11:], line["x"][-1][11:]) == ("14:00:00", "14:05:00")


def test_the_kept_traces_are_those_of_its_sessions(page: ServedPage) -> None:
    address = links(page.get(f"/findings?{LAST_HOUR}").text)[LOCK_TITLE]
    rows = table(page, address.replace("/finding?", "/finding.csv?table=recordings&"))
    # 5 is of another process; 3 and 4 are a victim's and the root's
    assert [(row["number"], row["pid"]) for row in rows] == [("3", "101"), ("4", "100")]
    shown = page.get(address).text
    assert "pgtare trace kept 4 --dsn …  (process 100, kept-4-findings.pgtrace)" in shown
    assert "no trace of 103: &lt;b&gt;the session is not traced" in shown
    other = links(page.get(f"/findings?{LAST_HOUR}").text)[SLOWER_TITLE]
    assert "No trace of its sessions was kept." in page.get(other).text


def test_an_open_finding_moves_on_with_new_rows(page: ServedPage) -> None:
    address = links(page.get("/findings?last=15m").text)[SLOWER_TITLE]
    assert "last=1h" in address
    text = page.get(address).text
    assert 'data-live="yes"' in text
    assert "Warning, open, since 2026-11-02 14:30:00" in text
    assert "This finding is closed." not in text
    assert "query_id=6002" in links(text)["Its statement"]


def test_names_do_not_break_out(page: ServedPage) -> None:
    for path in (f"/findings?{LAST_HOUR}", "/findings?last=2h", f"/activity?{LAST_HOUR}"):
        text = page.get(path).text
        assert "<img" not in text
        assert "<script>window" not in text
    text = page.get(links(page.get(f"/findings?{LAST_HOUR}").text)[HOSTILE_TITLE]).text
    assert "<img" not in text
    assert "<script>window" not in text
    (command,) = re.findall(r'id="command-1">(.*?)</pre>', text, re.S)
    assert html.unescape(command) == HOSTILE_TEXT
    assert re.search(r"<dt>does</dt><dd>(.*?)</dd>", text)


def test_its_largest_share_is_that_of_the_window(tmp_path: Path) -> None:
    """Rows around the window tell only whether it was open."""
    begin = END - timedelta(minutes=50)
    warned = {"key": "lock", "since": begin, "class": 1, "level": "warning", "aas": 1.0}
    rows = [
        finding_row(begin, "open", **warned, share=0.2),
        finding_row(begin + timedelta(minutes=40), "update", **{**warned, "class": 0}, share=0.98),
    ]
    spool = tmp_path / "spool"
    with Spool.open(spool, UNLIMITED) as opened:
        opened.commit({"findings": finding_table(SHOP, rows)}, {})
    path = "/findings.csv?table=findings&from=2026-11-02T14:{}:00&to=2026-11-02T14:{}:00"
    with served(spool) as one:
        one.log_in()
        (early,) = table(one, path.format("05", "20"))
        assert (early["share"], early["class"]) == ("0.2", "active time")
        (between,) = table(one, path.format("20", "30"))  # as it was written last
        assert (between["share"], between["class"]) == ("0.98", "outage")


@pytest.mark.slow
def test_one_of_a_server_that_is_gone_is_not_open_for_ever(tmp_path: Path) -> None:
    spool = make_spool(tmp_path / "spool")
    begin = END - timedelta(minutes=100)
    gone = {"key": "gone", "since": begin, "class": 1, "level": "warning", "title": "of the gone"}
    rows = [finding_row(begin, "open", **gone, share=0.9)]
    with Spool.open(spool, UNLIMITED) as opened:
        opened.commit({"findings": finding_table(CLOUD, rows)}, {})
    with served(spool) as one:
        one.log_in()
        text = one.get("/activity?last=6h&server=cloud").text
        assert "of the gone" not in [title for _, title, _ in items(text)]
        (shade,) = [
            one for one in chart(text, "activity")["layout"]["shapes"] if one.get("type") == "rect"
        ]
        assert shade["x0"] == shade["x1"]
        listed = table(one, "/findings.csv?table=findings&server=cloud&last=6h")
        assert {row["title"]: row["state"] for row in listed}["of the gone"] == "open then"


@pytest.mark.slow
def test_one_that_came_back_and_one_of_the_same_name(tmp_path: Path) -> None:
    """The same within ten minutes: times open. Later it is another one, with the same key."""
    spool = make_spool(tmp_path / "spool")
    first, second = END - timedelta(minutes=50), END - timedelta(minutes=10)
    later = {"key": "log", "class": 1, "level": "warning", "share": 0.4, "aas": 1.0}
    rows = [
        finding_row(first, "open", since=first, **later),
        finding_row(
            first + timedelta(minutes=2),
            "close",
            since=first,
            until=first + timedelta(minutes=1),
            **later,
        ),
        finding_row(first + timedelta(minutes=5), "open", since=first, episodes=2, **later),
        finding_row(
            first + timedelta(minutes=9),
            "close",
            since=first,
            episodes=2,
            until=first + timedelta(minutes=8),
            **later,
        ),
        finding_row(second, "open", since=second, **later),
    ]
    with Spool.open(spool, UNLIMITED) as opened:
        opened.commit({"findings": finding_table(CLOUD, rows)}, {})
    with served(spool) as one:
        one.log_in()
        found = [
            row
            for row in table(one, f"/findings.csv?table=findings&server=cloud&{LAST_HOUR}")
            if row["class"] == "active time"
        ]
        assert [(row["state"], row["episodes"], row["since"][11:16]) for row in found] == [
            ("open", "1", "14:50"),
            ("closed", "2", "14:10"),
        ]
        assert found[1]["until"][11:16] == "14:18"
        ((_, _, about),) = items(one.get("/activity?last=15m&server=cloud").text)
        assert "not seen after 2026-11-02 14:50:00" in about
        address = f"/finding?server=cloud&key=log&{LAST_HOUR}"
        assert "open, since 2026-11-02 14:50:00" in one.get(address).text
        assert "open 2 times" in one.get(f"{address}&since=2026-11-02T14:10:00").text


@pytest.mark.slow
def test_one_that_is_open_for_days_is_shown_from_its_beginning(tmp_path: Path) -> None:
    begin = END - timedelta(minutes=2500)
    usual = {"key": "long", "since": begin, "class": 1, "level": "warning", "aas": 1.0}
    rows = [
        finding_row(
            begin + timedelta(minutes=minute),
            "update" if minute else "open",
            **{**usual, "share": 0.2 if minute else 0.9},
        )
        for minute in range(2500)
    ]
    spool = tmp_path / "spool"
    with Spool.open(spool, UNLIMITED) as opened:
        opened.commit({"findings": finding_table(SHOP, rows)}, {})
    with served(spool) as one:
        one.log_in()
        text = one.get(f"/finding?server=shop&key=long&{LAST_HOUR}").text
    assert "20 % of active time when written last, 90 % at most" in text
    (line,) = chart(text, "share")["data"]
    assert set(line["y"][:2]) == {90}
    assert set(line["y"][2:]) == {20}
    assert 1000 < len(line["y"]) < 2100
