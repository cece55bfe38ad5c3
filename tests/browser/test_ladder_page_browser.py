"""The page of a study in a real browser, with the network shut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.weighing.ladder import analysis
from pgtare.weighing.ladder.page import write_page
from pgtare.weighing.ladder.rounds import all_steps
from tests.browser.pages import HOSTILE, HOSTILE_IMAGE, Visit, assert_fits_a_phone
from tests.unit.simulated_study import facts, runs, study

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def study_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = study()
    made = runs(found, {"stats": -0.001, "trace": -0.08})
    last = max(made, key=lambda key: made[key].step.round)
    made[last] = made[last].model_copy(update={"failed": (HOSTILE + " " + "x" * 300,)})
    result = analysis.analyse(
        found,
        facts(found),
        all_steps(found, 7),
        made,
        {},
        directory=Path("d"),
        closed=False,
        skipped={},
    )
    result.title = HOSTILE_IMAGE
    result.about = HOSTILE
    result.workloads[0].rungs[0].evidence = HOSTILE
    path = tmp_path_factory.mktemp("study") / "report.html"
    write_page(result, path)
    return path


def test_draws_every_chart_and_says_where_p_values_come_from(
    visit: Callable[..., Visit], study_page: Path
) -> None:
    opened = visit(study_page)
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    page = opened.page
    assert page.evaluate("window.pwned") is None
    drawn = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.chart')].map(
             (c) => [c.id, c.querySelectorAll('.point').length]))"""
    )
    assert drawn == {
        "chart-effects": 2 + 1,  # two comparisons and the floor
        "chart-rounds-W1": 9 * 3,  # nine rounds kept of the ten, three runs next to the base
    }
    place = page.locator("details", has_text="Means over the rounds kept (W1)").first
    place.locator("summary").focus()
    page.keyboard.press("Enter")
    assert place.locator("tbody tr").count() == 4  # three variants, the floor's twice
    assert "off" in place.locator("tbody tr").first.inner_text()


@pytest.mark.slow
def test_a_phone_needs_no_sideways_scroll(visit: Callable[..., Visit], study_page: Path) -> None:
    assert_fits_a_phone(visit(study_page, width=360).page)


def test_reads_without_scripts(visit: Callable[..., Visit], study_page: Path) -> None:
    page = visit(study_page, scripts=False).page
    assert page.get_by_text("round 10 was dropped").is_visible()
    assert page.get_by_text("trace costs something compared with off").is_visible()
