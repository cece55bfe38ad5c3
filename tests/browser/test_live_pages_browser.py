"""Pages of other commands in a real browser: plotly is loaded once, and a stranger is kept out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from pgtare.weighing.weigh.report.page import page as weigh_page
from tests.browser.pages import Reader
from tests.live_pages import ServedPage, served
from tests.unit.sample_result import sample

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

STRANGER = """<!DOCTYPE html><title>stranger</title><p>not one of ours</p><script>
  const tried = {};
  try { tried.cookie = document.cookie; } catch (error) { tried.cookie = error.name; }
  try { localStorage.x = 1; tried.storage = "kept"; } catch (error) { tried.storage = error.name; }
  fetch("/pages").then(
    () => { tried.fetch = "read"; }, () => { tried.fetch = "refused"; }
  ).then(() => { document.body.dataset.tried = JSON.stringify(tried); });
</script>"""


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    directory: Path = tmp_path_factory.mktemp("results")
    drawn = sample()
    text = weigh_page(drawn.result, drawn.observations)
    for name in ("monday", "tuesday"):
        (directory / f"{name}.html").write_text(text, encoding="utf-8")
    (directory / "stranger.html").write_text(STRANGER, encoding="utf-8")
    with served(None, pages=directory) as found:
        yield found


def test_a_page_is_drawn_without_complaints(reader: Callable[..., Reader]) -> None:
    opened = reader()
    opened.page.goto(f"{opened.url}/pages/monday.html")
    opened.page.wait_for_selector("html[data-drawn]")
    assert opened.page.locator("#chart-effects .main-svg").count() >= 1
    assert (opened.complaints, opened.elsewhere) == ([], [])


@pytest.mark.slow
def test_plotly_is_loaded_once_for_all_pages(chromium: Any, page_server: ServedPage) -> None:
    # a context without routes: those would turn the browser's cache off
    with contextlib.closing(chromium.new_context()) as context:
        page = context.new_page()
        page.goto(page_server.rules.login_address())
        visits = [_visit(page)]
        for name in ("monday", "tuesday"):
            page.locator(f"tr:has-text('{name}.html') a").click()
            visits.append(_visit(page))
            page.go_back()
    assert [plotly for _, plotly in visits if plotly] == [pytest.approx(1_500_000, rel=0.3)]
    assert max(size for size, _ in visits) < 300_000 < len(get_plotlyjs())


def _visit(page: Any) -> tuple[int, int]:
    """Bytes of the page that is open, and those of plotly that came over the wire for it."""
    page.wait_for_selector("html[data-drawn]")
    return (
        page.evaluate("performance.getEntriesByType('navigation')[0].encodedBodySize"),
        page.evaluate(
            """performance.getEntriesByType('resource')
                 .filter((one) => one.name.includes('/static/plotly'))
                 .reduce((sum, one) => sum + one.transferSize, 0)"""
        ),
    )


def test_a_stranger_runs_and_sees_nothing(reader: Callable[..., Reader]) -> None:
    opened = reader()
    page = opened.page
    page.goto(f"{opened.url}/pages")
    page.locator("tr:has-text('stranger.html') a").click()
    page.wait_for_selector("body[data-tried]")
    tried = page.evaluate("JSON.parse(document.body.dataset.tried)")
    assert tried == {"cookie": "SecurityError", "storage": "SecurityError", "fetch": "refused"}
    page.go_back()
    page.wait_for_selector("h1:has-text('Pages')")
