"""The page of a recording in a real browser, with the network shut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.seeing.waits.page import write_page
from tests.browser.pages import HOSTILE, HOSTILE_IMAGE, Visit
from tests.unit.sample_recording import write

pytestmark = [pytest.mark.browser, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def recording_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recording")
    write(directory, {"101": HOSTILE + " " + "x" * 400, "102": HOSTILE_IMAGE}, lost=7)
    path = directory / "report.html"
    write_page(directory, path)
    return path


def test_draws_every_chart_without_complaint_or_request(
    visit: Callable[..., Visit], recording_page: Path
) -> None:
    opened = visit(recording_page)
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    page = opened.page
    assert page.evaluate("window.pwned") is None
    assert page.locator(".chart").count() == 4  # active, heat, and a histogram of two events
    assert page.locator("#chart-active .scatterlayer .js-line").count() == 3
    assert page.locator("#chart-heat .heatmaplayer image").count() == 1
    assert page.locator("#chart-histogram-0 .barlayer .point").count() == 11


def test_follows_the_theme(visit: Callable[..., Visit], recording_page: Path) -> None:
    opened = visit(recording_page, scheme="dark")
    assert (
        opened.page.evaluate(
            "getComputedStyle(document.querySelector('#chart-active .main-svg')).backgroundColor"
        )
        == "rgb(20, 24, 29)"
    )
    opened.page.emulate_media(color_scheme="light")
    opened.page.wait_for_selector('html[data-drawn="light"]')
    assert opened.complaints == []


def test_a_phone_needs_no_sideways_scroll(
    visit: Callable[..., Visit], recording_page: Path
) -> None:
    page = visit(recording_page, width=360).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_statement_opens_by_keyboard(visit: Callable[..., Visit], recording_page: Path) -> None:
    page = visit(recording_page).page
    first = page.locator("details.statement").first
    assert first.get_attribute("open") is None
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert first.get_attribute("open") is not None
    assert first.locator("table").is_visible()


def test_reads_without_scripts(visit: Callable[..., Visit], recording_page: Path) -> None:
    page = visit(recording_page, scripts=False).page
    assert page.get_by_text("7 records were overwritten").is_visible()
    assert page.get_by_text("sessions were active on average").is_visible()
