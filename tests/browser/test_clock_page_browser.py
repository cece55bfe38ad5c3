"""The page on the clocks in a real browser, with the network shut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.observing.clock.page import write_page
from tests.browser.pages import HOSTILE, HOSTILE_IMAGE, HOSTILE_LINK, Visit, assert_fits_a_phone
from tests.unit.sample_clock_report import sample, sample_plan

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def clock_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clock") / "clock.html"
    report = sample()
    report.command = ["pgtare", "clock", HOSTILE]
    report.diagnosis.clocksource = HOSTILE_IMAGE
    report.machine["cpu_model"] = HOSTILE_LINK
    report.lacking = {"counter": HOSTILE}
    report.plan = sample_plan(HOSTILE)
    write_page(report, path)
    return path


def test_draws_every_chart_without_complaint_or_request(
    visit: Callable[..., Visit], clock_page: Path
) -> None:
    opened = visit(clock_page)
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    page = opened.page
    assert page.evaluate("window.pwned") is None
    assert page.locator(".chart").count() == 5  # costs, gaps, two clocks, processors
    assert page.locator("#chart-costs .barlayer .point").count() == 4
    assert page.locator("#chart-distributions .scatterlayer .js-line").count() == 2
    assert page.locator("#chart-exact-1 .barlayer .point").count() == 2
    assert page.locator("#chart-cores .scatterlayer .point").count() == 1
    table = page.locator("table", has=page.locator("#cap-clocks"))
    assert (
        table.locator("thead th").count()
        == table.locator("tbody tr").first.locator("td").count() + 1
    )
    assert page.get_by_text("The clock is cheap and sane.").is_visible()
    plan = page.locator("section", has=page.locator("#h-plan"))
    assert plan.get_by_text("11 timed calls of plan nodes").is_visible()


@pytest.mark.slow
def test_a_phone_needs_no_sideways_scroll(visit: Callable[..., Visit], clock_page: Path) -> None:
    assert_fits_a_phone(visit(clock_page, width=360).page)


@pytest.mark.slow
def test_reads_without_scripts(visit: Callable[..., Visit], clock_page: Path) -> None:
    page = visit(clock_page, scripts=False).page
    assert page.get_by_text("The clock is cheap and sane.").is_visible()
    assert page.locator("#main").get_by_text("context switch").first.is_visible()
