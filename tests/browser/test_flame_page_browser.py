"""Flame graphs in a real browser, with the network shut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.observing.flame import show
from pgtare.observing.flame.show import graph, page
from tests.browser.pages import HOSTILE, HOSTILE_IMAGE, Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

BEFORE = {("backend", "run", "plan"): 40_000_000, ("backend", "run", "wait"): 60_000_000}
AFTER = {
    ("backend", "run", "plan"): 20_000_000,
    ("backend", "run", f"statement: {HOSTILE}"): 70_000_000,
    ("backend", "run", HOSTILE_IMAGE): 10_000_000,
}


@pytest.fixture(scope="module")
def flame_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flame") / "flame.html"
    graphs = [
        graph("main", "Blocked", AFTER),
        show.difference(BEFORE, AFTER, ("before", "after")),
    ]
    path.write_text(
        page(
            "Blocked",
            HOSTILE,
            graphs,
            show.HEAD,
            show.rows(AFTER),
            alarms=[HOSTILE],
            answers=["x"],
        )
    )
    return path


def test_draws_without_complaint_and_zooms_by_click(
    visit: Callable[..., Visit], flame_page: Path
) -> None:
    opened = visit(flame_page)
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    page = opened.page
    assert page.evaluate("window.pwned") is None
    assert page.locator("#flame-main g.frame").count() == 6
    assert page.locator("#flame-change g.frame").count() == 7
    widths = page.evaluate(
        "[...document.querySelectorAll('#flame-main g.frame')].map((g) => "
        "[g.querySelector('title').textContent, +g.querySelector('rect').getAttribute('width')])"
    )
    by_name = {text.split(":")[0]: width for text, width in widths}
    assert by_name["statement"] == pytest.approx(0.7 * by_name["all"], rel=0.01)
    # the change is reported and coloured
    wait = page.locator("#flame-change g.frame", has=page.locator("title", has_text="wait:"))
    assert "60 % before, 0 % after, −60 points" in wait.locator("title").text_content()
    assert wait.locator("rect").get_attribute("fill").startswith("hsl(212")
    # zooms by click, and back by its button
    plan = page.locator("#flame-main g.frame", has=page.locator("title", has_text="plan:"))
    before = plan.locator("rect").bounding_box()
    plan.click()
    after = plan.locator("rect").bounding_box()
    assert after["width"] > 4 * before["width"]
    page.locator("#flame-main button").click()
    assert plan.locator("rect").bounding_box()["width"] == pytest.approx(before["width"])


def test_moves_zooms_and_searches_by_keyboard(
    visit: Callable[..., Visit], flame_page: Path
) -> None:
    page = visit(flame_page).page
    page.locator("#flame-main svg").focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert "statement: " in page.locator("#flame-main .flame-description").text_content()
    assert "70 %" in page.locator("#flame-main .flame-description").text_content()
    page.keyboard.press("/")
    page.keyboard.type("plan")
    assert page.locator("#flame-main output").text_content() == "20 % match"
    assert page.locator("#flame-main g.match").count() <= 1
    page.keyboard.press("Escape")
    assert page.locator("#flame-main output").text_content() == ""
    page.keyboard.press("Escape")
    assert page.locator("#flame-main g.frame").count() == 6


@pytest.mark.slow
def test_fits_a_phone_and_reads_without_scripts(
    visit: Callable[..., Visit], flame_page: Path
) -> None:
    narrow = visit(flame_page, width=360).page
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
    plain = visit(flame_page, scripts=False).page
    assert plain.locator("#flame-main figcaption").is_visible()
    assert plain.get_by_role("rowheader", name="plan").is_visible()
