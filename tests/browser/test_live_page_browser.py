"""The page of `pgtare live` in a real browser: every view, by clicks, wide and narrow."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgtare.keeping.spool.writer import Spool
from tests.browser.pages import Reader
from tests.live_pages import ServedPage, served
from tests.unit import live_findings, live_rows
from tests.unit.test_live_findings import LOCK_TITLE

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

WINDOW = "from=2026-11-02T13:00:00&to=2026-11-02T15:00:00"
#: A link and a field above the view, in the page's script.
EARLIER = "document.querySelector('.controls nav li:nth-last-child(3) a')"
FROM = "document.querySelector('input[name=from]')"
LIVE = "#live-state:text-matches('^(live|renewed)')"
FAILED = '<p class="alarm">it took too long</p>'


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return live_rows.make_spool(tmp_path_factory.mktemp("live") / "spool")


@pytest.fixture(scope="module")
def page_server(spool: Path) -> Iterator[ServedPage]:
    with served(spool) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_every_view_is_reached_by_clicks(
    reader: Callable[..., Reader], width: int, scheme: str
) -> None:
    opened = reader(width, scheme)
    page = opened.page
    page.goto(f"{opened.url}/activity?{WINDOW}")
    opened.drawn("Activity")
    assert page.locator("#chart-activity .barlayer .trace").count() == 4
    assert page.evaluate("document.documentElement.dataset.drawn") == scheme
    opened.click("IO")
    opened.drawn("What sessions waited for: by event")
    assert page.locator("#table-by_event tbody tr").count() == 2  # what clients waited for, and all
    opened.click("role exact")
    opened.drawn("What sessions waited for: by role")
    page.go_back()
    opened.click("DataFileRead")
    opened.drawn("Event DataFileRead")
    assert page.locator("#chart-latency .heatmaplayer image").count() == 1
    opened.click("-6003")
    opened.drawn("Statement -6003 on shop", 2)
    assert page.locator("pre").first.inner_text() == live_findings.HOSTILE_TEXT
    opened.click("Compare two times", "header")
    opened.drawn("Compare two times")
    page.locator("#table-compare caption a").focus()
    opened.click("Who blocks whom", "header")
    opened.drawn("Who blocks whom")
    assert "process 100, admin" in page.locator("ul.tree > li").first.inner_text()
    opened.click("The bill", "header")
    opened.drawn("The bill")
    opened.click("Findings", "header")
    opened.drawn("Findings", 0)
    opened.click(LOCK_TITLE)
    opened.drawn("nightly-job")
    assert page.locator("#command-1").is_visible()
    assert "process 100, admin" in page.locator("ul.tree > li").first.inner_text()
    opened.click("Activity at that time")
    opened.drawn("Activity")
    assert page.locator("#chart-activity .shapelayer path").count() == 1
    page.goto(f"{opened.url}/findings?{WINDOW}")
    opened.click(live_findings.HOSTILE_TITLE)
    opened.drawn("is set", 0)
    assert page.locator("#command-1").inner_text() == live_findings.HOSTILE_TEXT
    assert page.evaluate("window.pwned") is None
    assert (opened.complaints, opened.elsewhere) == ([], [])


@pytest.mark.slow
def test_a_drag_along_the_chart_selects_a_window(reader: Callable[..., Reader]) -> None:
    opened = reader()
    page = opened.page
    page.goto(f"{opened.url}/activity?{WINDOW}&server=shop")
    opened.drawn("Activity")
    box = page.locator("#chart-activity .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.55, middle, steps=4)
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.mouse.up()
    page.wait_for_url("**/activity?*from=2026-11-02T14*")
    opened.drawn("Activity")
    assert "server=shop" in page.url
    assert "2026-11-02 14:0" in page.locator("#window-words").inner_text()
    assert opened.complaints == []


def test_the_table_is_the_csv_and_reads_well(reader: Callable[..., Reader]) -> None:
    opened = reader()
    page = opened.page
    page.goto(f"{opened.url}/breakdown?by=query_id&{WINDOW}")
    opened.drawn("What sessions waited for")
    link = page.locator("#table-by_query_id caption a").get_attribute("href")
    answer = page.request.get(f"{opened.url}{link}")
    rows = list(csv.DictReader(io.StringIO(answer.text())))
    names = page.locator("#table-by_query_id tbody tr:not(.total) th").all_inner_texts()
    assert [row["query_id"] for row in rows] == names
    # what a screen reader needs
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("thead th:not([scope=col]), tbody th:not([scope=row])").count() == 0
    assert page.locator(".chart:not([role=img][aria-label])").count() == 0
    assert page.locator("input:not([type=hidden]):not(label input)").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.parametrize("clipboard", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_remedy_is_copied_by_keyboard(reader: Callable[..., Reader], clipboard: bool) -> None:
    """Over TLS or on this machine; and without a secure connection, where there is no clipboard."""
    opened = reader()
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=opened.url)
    page.goto(f"{opened.url}/findings?{WINDOW}")
    opened.click(LOCK_TITLE)
    opened.drawn("nightly-job")
    page.evaluate("navigator.clipboard.writeText('what was there before')")
    if not clipboard:
        page.evaluate("navigator.clipboard.writeText = undefined")
    button = page.locator("#copy-1")
    while page.evaluate("document.activeElement.id") != "copy-1":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#copy-1:text-is('Copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#command-1").inner_text()
    assert copied.startswith("SELECT pg_terminate_backend(100)")
    assert button.evaluate("(one) => one === document.activeElement")
    assert opened.complaints == []


@pytest.mark.slow
def test_new_rows_show_up_by_themselves(reader: Callable[..., Reader], spool: Path) -> None:
    opened = reader()
    page = opened.page
    page.goto(f"{opened.url}/activity?last=1h")
    opened.drawn("Activity")
    page.wait_for_selector(LIVE)
    page.locator("main caption a").first.focus()
    page.evaluate(f"{EARLIER}.href = '#'; {FROM}.value = ''")
    _find(spool, "open", "A new finding")
    page.wait_for_selector("li a:has-text('A new finding')", timeout=15_000)
    assert page.evaluate("document.activeElement.textContent") == "CSV"
    assert "from=" in page.evaluate(f"{EARLIER}.href")
    assert page.evaluate(f"{FROM}.value") != ""
    opened.click("A new finding")
    opened.drawn("A new finding")
    page.wait_for_selector(LIVE)
    page.evaluate("getSelection().selectAllChildren(document.getElementById('command-1'))")
    _find(spool, "update", "A new finding", evidence="seen again")
    page.wait_for_selector("#live-state:text-is('not renewed: text is selected')", timeout=15_000)
    page.evaluate("getSelection().removeAllRanges()")
    _find(spool, "close", "A new finding", until=live_rows.END)
    page.wait_for_selector("p:has-text('This finding is closed.')", timeout=15_000)
    assert page.locator("#copy-1").is_visible()
    page.locator("#pause").press("Enter")
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    _find(spool, "open", "A new finding", evidence="never shown")
    page.wait_for_timeout(1500)
    assert page.locator("li:has-text('never shown')").count() == 0
    page.locator("#pause").press("Enter")
    assert opened.complaints == []


@pytest.mark.slow
def test_a_renewal_takes_nothing_out_of_hand(reader: Callable[..., Reader], spool: Path) -> None:
    opened = reader()
    page = opened.page
    page.goto(f"{opened.url}/activity?last=1h")
    opened.drawn("Activity")
    page.wait_for_selector(LIVE)
    page.locator("details.window summary").click()
    page.locator("input[name=from]").fill("2026-11-01T10:01:02")
    page.mouse.move(5, 5)
    page.mouse.down()
    page.locator("#scroll-by_type").focus()
    _find(spool, "open", "A held finding", key="held")
    page.wait_for_timeout(2500)
    assert page.locator("li a:has-text('A held finding')").count() == 0
    page.mouse.up()
    page.wait_for_selector("li a:has-text('A held finding')", timeout=15_000)
    assert page.evaluate("document.activeElement.id") == "scroll-by_type"
    assert page.locator("input[name=from]").input_value() == "2026-11-01T10:01:02"
    page.select_option("#server", "cloud")
    assert "server=" not in page.url
    page.get_by_role("button", name="Choose").click()
    page.wait_for_url("**server=cloud**")
    assert opened.complaints == []


def test_an_open_page_says_that_rows_have_stopped(reader: Callable[..., Reader]) -> None:
    """No commit comes, so nothing but time tells it; the connection is silent as well."""
    opened = reader()
    page = opened.page
    page.clock.install()
    page.goto(f"{opened.url}/activity?last=1h")
    opened.drawn("Activity")
    page.wait_for_selector(LIVE)
    page.evaluate("for (const one of document.querySelectorAll('.alarm')) one.remove()")
    page.clock.fast_forward(130_000)
    page.wait_for_selector(".alarm:has-text('The newest rows are from')", timeout=30_000)
    assert opened.complaints == []


def test_a_refused_connection_is_tried_again(reader: Callable[..., Reader]) -> None:
    """Browsers try again by themselves only if a connection is lost."""
    opened = reader()
    page = opened.page
    page.clock.install()
    refused = ["/updates"]

    def answer(route: Any) -> None:
        if any(path in route.request.url for path in refused):
            route.fulfill(status=503, body=FAILED)
        else:
            route.fallback()

    page.route("**/*", answer)
    page.goto(f"{opened.url}/activity?last=1h")
    opened.drawn("Activity")
    page.wait_for_selector("#live-state:text-is('not connected; trying again')")
    refused.clear()
    page.clock.fast_forward(6000)
    page.wait_for_selector(LIVE)
    refused.append("/activity")
    page.clock.fast_forward(130_000)
    page.wait_for_selector("#live-state:text-is('no answer: it took too long')")
    refused.clear()
    page.context.clear_cookies()
    page.clock.fast_forward(130_000)
    page.wait_for_selector("#live-state:has-text('the session has ended: Open this page by')")


def test_a_link_of_another_site_leads_here(reader: Callable[..., Reader]) -> None:
    opened = reader()
    opened.page.goto(f"data:text/html,<a href='{opened.url}/findings?last=1h'>of a mail</a>")
    opened.page.get_by_role("link").click()
    opened.drawn("Findings", 0)
    assert opened.page.url.endswith("/findings?last=1h")


_seconds = itertools.count(1)


def _find(spool: Path, event: str, title: str, **more: object) -> None:
    """A row of a finding that takes active time."""
    row = live_findings.finding_row(
        live_rows.END + timedelta(seconds=next(_seconds)),
        event,
        **{"since": live_rows.END, "class": 1, "level": "warning", "share": 0.4, "aas": 2.0},
        **{"key": "new", "title": title, **more},
    )
    rows: dict[str, pa.Table] = {"findings": live_rows.finding_table(live_rows.SHOP, [row])}
    with Spool.open(spool, live_rows.UNLIMITED) as opened:
        opened.commit(rows, {})


@pytest.mark.slow
def test_the_page_is_read_without_scripts(reader: Callable[..., Reader]) -> None:
    page = reader(scripts=False).page
    page.goto(f"{page.url.partition('/activity')[0]}/findings?{WINDOW}")
    page.get_by_role("link", name=LOCK_TITLE).click()
    assert page.locator("#command-1").is_visible()
    assert not page.locator("#copy-1").is_visible()
    page.get_by_role("link", name="Activity", exact=True).click()
    page.get_by_role("link", name="last 2h").click()
    page.select_option("#server", "cloud")
    page.get_by_role("button", name="Choose").click()
    assert "server=cloud" in page.url
    assert page.locator("#table-by_type tbody tr").count() == 3
    assert page.locator(".quality.sampled").count() == 2
