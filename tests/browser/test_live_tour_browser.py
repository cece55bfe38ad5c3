"""The tour of docs/live.md in a real browser: its clicks find what was planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from bench.live_tour import story

from tests.browser.pages import Reader
from tests.live_pages import ServedPage, served
from tests.unit.live_rows import make_spool

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

#: Not all of it: rows after yesterday's stories change no answer.
TOLD = replace(story(datetime.now(UTC)), hours=4, sampled=((5400, 10_800, 5),))


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    directory = make_spool(tmp_path_factory.mktemp("tour") / "spool", TOLD)
    with served(directory) as found:
        yield found


@dataclass
class Visitor:
    """Somebody new who follows the tour; counts what their hands do."""

    reader: Reader
    clicks: int = 0
    drags: int = 0
    typed: int = 0

    def click(self, words: str, inside: str = "main") -> None:
        self.reader.click(words, inside)
        self.clicks += 1

    def press(self, words: str) -> None:
        self.reader.page.get_by_role("button", name=words, exact=True).first.click()
        self.clicks += 1

    def type_time(self, name: str, time: datetime) -> None:
        self.reader.page.locator(f"input[name={name}]").fill(f"{time:%Y-%m-%dT%H:%M:%S}")
        self.typed += 1

    def drag(self, after: datetime, to: datetime) -> None:
        """Along the chart of the last two days, from one time to another."""
        page = self.reader.page
        axis = "document.querySelector('#chart-activity')._fullLayout.xaxis"
        ends = [page.evaluate(f"{axis}.d2p('{time:%Y-%m-%dT%H:%M:%S}')") for time in (after, to)]
        box = page.locator("#chart-activity .nsewdrag").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + ends[0], middle)
        page.mouse.down()
        page.mouse.move(box["x"] + sum(ends) / 2, middle, steps=4)
        page.mouse.move(box["x"] + ends[1], middle, steps=4)
        page.mouse.up()
        page.wait_for_url("**from=*")
        self.drags += 1

    def first_row(self, table: str) -> str:
        return str(self.reader.page.locator(f"#table-{table} tbody tr").first.inner_text())


@pytest.fixture
def visitor(reader: Callable[..., Reader]) -> Visitor:
    found = Visitor(reader())
    found.reader.drawn("Activity", 0)
    return found


def at(hour: int, minute: int = 0) -> datetime:
    """A time of yesterday, UTC."""
    return TOLD.noon.replace(hour=hour, minute=minute)


def test_what_happened_yesterday_at_14_00(visitor: Visitor) -> None:
    opened = visitor.reader
    visitor.click("last 2d", "header")
    opened.drawn("Activity")
    visitor.drag(at(13), at(15))
    opened.drawn("Activity")
    assert f"{TOLD.noon:%Y-%m-%d}" in opened.page.locator("#window-words").inner_text()
    visitor.click("Lock")
    opened.drawn("What sessions waited for")
    visitor.click("transactionid")
    opened.drawn("Event transactionid")
    assert "6001" in visitor.first_row("by_query_id")
    assert "UPDATE stock" in visitor.first_row("by_query_id")
    assert "checkout" in visitor.first_row("sessions")
    assert (visitor.clicks, visitor.drags, visitor.typed) == (3, 1, 0)
    assert opened.complaints == []


def test_which_statement_became_slower_after_the_deployment(visitor: Visitor) -> None:
    opened = visitor.reader
    visitor.click("Compare two times", "header")
    opened.drawn("Compare two times", 0)
    visitor.type_time("from", at(14, 30))
    visitor.type_time("to", at(15))
    visitor.press("Show")
    opened.drawn("Compare two times")
    visitor.click("a day before")
    visitor.click("statement exact")
    opened.drawn("Compare two times")
    row = visitor.first_row("compare")
    assert row.startswith("6002")
    assert "SELECT * FROM product WHERE id = $1" in row
    before = at(14, 30) - timedelta(days=1)
    assert f"Before: {before:%Y-%m-%d %H:%M:%S}" in opened.page.locator("main").inner_text()
    assert (visitor.clicks, visitor.drags, visitor.typed) == (4, 0, 2)
    assert opened.complaints == []


def test_who_blocked_the_checkout(visitor: Visitor) -> None:
    opened = visitor.reader
    visitor.click("last 2d", "header")
    visitor.click("Who blocks whom", "header")
    opened.drawn("Who blocks whom")
    root = opened.page.locator("ul.tree > li").first
    assert "process 100, admin in shop, nightly-job" in root.locator("strong").first.inner_text()
    about = root.locator(".note").first.inner_text()
    assert about.startswith("idle in transaction, transaction open for")
    assert "UPDATE stock" in root.locator("ul li .note").first.inner_text()
    assert (visitor.clicks, visitor.drags, visitor.typed) == (2, 0, 0)
    assert opened.complaints == []
