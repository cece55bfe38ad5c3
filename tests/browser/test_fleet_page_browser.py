"""A fleet's page in a real browser, with the network shut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.weighing.fleet.combination import combine_servers
from pgtare.weighing.fleet.documents import FleetLeftOut, FleetWeighing
from pgtare.weighing.fleet.report.page import write_page
from pgtare.weighing.fleet.state import FleetServerState
from tests.browser.pages import (
    HOSTILE,
    HOSTILE_IMAGE,
    HOSTILE_LINK,
    Visit,
    assert_fits_a_phone,
    assert_inert,
    assert_structured,
)
from tests.unit.made_fleets import made_figures

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def made(names: list[str], arms: tuple[str, ...]) -> FleetWeighing:
    """The last server is unlike the rest, and has a label that no other has."""
    labels = {name: {"site": "ab"[i % 2]} for i, name in enumerate(names)}
    labels[names[-1]] = {"disk": names[0]}
    records = {name: FleetServerState(name=name, labels=own) for name, own in labels.items()}
    effects = [0.05 + 0.001 * i for i in range(len(names))]
    figures = [
        made_figures(name, {arm: effect for arm in arms})
        for name, effect in zip(names, [*effects[:-1], 0.4], strict=True)
    ]
    return combine_servers(
        figures, [FleetLeftOut(server="db-lost", reason="no answer")], records, 0.005
    )


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "fleet.html"
    names = [f"db-{i:02}" for i in range(12)]
    write_page(made(names, ("pg_stat_statements", "track_io_timing")), path)
    return path


@pytest.fixture(scope="session")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "hostile.html"
    names = [HOSTILE, HOSTILE_IMAGE, HOSTILE_LINK, "a" * 200, "db-5", f"{HOSTILE} unlike"]
    write_page(made(names, (HOSTILE_IMAGE, HOSTILE_LINK)), path)
    return path


def test_draws_every_chart_without_complaint_or_request(
    visit: Callable[..., Visit], page_file: Path
) -> None:
    opened = visit(page_file)
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    points = opened.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.chart')].map(
             (c) => [c.id, c.querySelectorAll('.scatterlayer .point').length]))"""
    )
    # twelve servers and the mean: they are of two kinds, and nothing is said of the next one
    assert points == {"chart-forest-1": 13, "chart-forest-2": 13}
    ticks = opened.page.evaluate(
        "[...document.querySelectorAll('#chart-forest-1 .ytick')].map((t) => t.textContent)"
    )
    assert {"db-00", "db-11", "mean"} <= set(ticks)
    text = opened.page.inner_text("main")
    assert "these servers differ in kind; dearer: db-11" in text
    assert "db-11 is unlike the rest" in text
    assert "Only it has disk = db-00." in text
    assert "db-lost" in opened.page.inner_text(".alarm")
    assert_structured(opened.page)


@pytest.mark.parametrize("which", ["page_file", "hostile_file"])
@pytest.mark.slow
def test_a_phone_needs_no_sideways_scroll(
    visit: Callable[..., Visit], request: pytest.FixtureRequest, which: str
) -> None:
    assert_fits_a_phone(visit(request.getfixturevalue(which), width=360).page)


@pytest.mark.slow
def test_hostile_names_are_inert_and_shown_as_they_are(
    visit: Callable[..., Visit], hostile_file: Path
) -> None:
    opened = visit(hostile_file)
    page = opened.page
    assert_inert(opened)
    assert HOSTILE in page.inner_text("main")
    ticks = page.evaluate(
        "[...document.querySelectorAll('#chart-forest-1 .ytick')].map((t) => t.textContent)"
    )
    assert f"{HOSTILE[:19]}…" in ticks


def test_without_scripts_the_figures_remain(visit: Callable[..., Visit], page_file: Path) -> None:
    page = visit(page_file, scripts=False).page
    assert "pg_stat_statements: +8" in page.inner_text("main").replace("\u00a0", " ")
    assert page.locator("figure details table").count() == 2
