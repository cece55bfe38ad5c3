"""The page of a trace in a real browser, with the network shut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.file.records import CallKind
from pgtare.observing.trace.output.page import write_page
from tests.browser.pages import HOSTILE, HOSTILE_IMAGE, Visit, assert_fits_a_phone
from tests.sample_trace import ROWS, two_requests
from tests.unit.made_traces import MS, trace

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def trace_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trace")
    b = two_requests()
    b.text(7, HOSTILE + " " + "x" * 400, 101)
    b.text(8, HOSTILE_IMAGE, 102)
    for i, text in enumerate((7, 8)):
        start = (50 + 10 * i) * MS
        b.call(CallKind.EXECUTE, start, start + 5 * MS, text=text, query_id=94 + text)
        b.request(start, start + 5 * MS)
    path = directory / "report.html"
    write_page(ledger(trace(directory / "t.pgtrace", b.data, ROWS)), path)
    return path


def test_draws_without_complaint_and_a_statement_opens_by_keyboard(
    visit: Callable[..., Visit], trace_page: Path
) -> None:
    opened = visit(trace_page)
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    assert opened.page.evaluate("window.pwned") is None
    page = opened.page
    assert page.locator("#chart-active .scatterlayer .js-line").count() >= 1
    bars = opened.page.locator("#h-line ~ figure svg rect")
    assert bars.count() == 7 + len(ROWS)  # each call and each wait
    assert "UPDATE t SET a = ?" in opened.page.locator("svg title").all_text_contents()[3]
    first = page.locator("details.statement").first
    assert first.get_attribute("open") is None
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert first.get_attribute("open") is not None
    assert first.locator("table").first.is_visible()


@pytest.mark.slow
def test_a_phone_needs_no_sideways_scroll(visit: Callable[..., Visit], trace_page: Path) -> None:
    assert_fits_a_phone(visit(trace_page, width=360).page)


def test_reads_without_scripts(visit: Callable[..., Visit], trace_page: Path) -> None:
    page = visit(trace_page, scripts=False).page
    assert page.get_by_text("are accounted for").is_visible()
    assert page.locator("table").first.is_visible()
