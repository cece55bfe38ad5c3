"""A fleet's page in a real browser, with the network shut off."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.weighing.fleet.combination import combine_servers
from pgtare.weighing.fleet.documents import FleetWeighing
from pgtare.weighing.fleet.raw_data import LeftOut, ServerRecord
from pgtare.weighing.fleet.report.page import write_page
from tests.browser.pages import HOSTILE, HOSTILE_IMAGE, HOSTILE_LINK, Visit, assert_inert
from tests.unit.made_fleets import made_figures

pytestmark = [pytest.mark.browser, pytest.mark.timeout(60)]


def made(names: list[str], arms: tuple[str, ...]) -> FleetWeighing:
    """The last server is unlike the rest, and has a label that no other has."""
    records = {name: ServerRecord({"site": "ab"[i % 2]}) for i, name in enumerate(names)}
    records[names[-1]] = ServerRecord({"disk": names[0]})
    effects = [0.05 + 0.001 * i for i in range(len(names))]
    figures = [
        made_figures(name, {arm: effect for arm in arms})
        for name, effect in zip(names, [*effects[:-1], 0.4], strict=True)
    ]
    return combine_servers(figures, [LeftOut("db-lost", "no answer")], records, 0.005)


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
    # twelve servers, the mean, and the next server
    assert points == {"chart-forest-1": 14, "chart-forest-2": 14}
    ticks = opened.page.evaluate(
        "[...document.querySelectorAll('#chart-forest-1 .ytick')].map((t) => t.textContent)"
    )
    assert {"db-00", "db-11", "mean", "next server"} <= set(ticks)
    text = opened.page.inner_text("main")
    assert "db-11 is unlike the rest" in text
    assert "Only it has disk = db-00." in text
    assert "db-lost" in opened.page.inner_text(".alarm")


def test_follows_the_theme_and_its_change(visit: Callable[..., Visit], page_file: Path) -> None:
    opened = visit(page_file, scheme="dark")
    colours = """() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('#chart-forest-1 .main-svg')).backgroundColor]"""
    assert opened.page.evaluate(colours) == ["rgb(20, 24, 29)", "rgb(20, 24, 29)"]
    opened.page.emulate_media(color_scheme="light")
    opened.page.wait_for_selector('html[data-drawn="light"]')
    assert opened.page.evaluate(colours) == ["rgb(255, 255, 255)", "rgb(255, 255, 255)"]
    assert opened.complaints == []


@pytest.mark.parametrize("which", ["page_file", "hostile_file"])
def test_a_phone_needs_no_sideways_scroll(
    visit: Callable[..., Visit], request: pytest.FixtureRequest, which: str
) -> None:
    page = visit(request.getfixturevalue(which), width=360).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


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


def test_structure_for_a_screen_reader(visit: Callable[..., Visit], page_file: Path) -> None:
    page = visit(page_file).page
    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    faults = page.evaluate(
        """() => {
          const named = (e) => e.getAttribute('aria-label')
            || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent;
          const all = (s) => [...document.querySelectorAll(s)];
          return {
            tables: all('table').filter((t) => !t.caption?.textContent).length,
            cells: all('th').filter((c) => !['col', 'row'].includes(c.scope)).length,
            regions: all('[role=region], [role=img], section, figure').filter(
              (e) => !e.closest('svg') && !named(e)).length,
            charts: all('.chart').filter((c) => c.getAttribute('role') !== 'img'
              || !c.parentElement.querySelector('details table tbody td')).length,
          };
        }"""
    )
    assert faults == {"tables": 0, "cells": 0, "regions": 0, "charts": 0}


def test_without_scripts_the_figures_remain(visit: Callable[..., Visit], page_file: Path) -> None:
    page = visit(page_file, scripts=False).page
    assert "Leaving pg_stat_statements on costs" in page.inner_text("main")
    assert page.locator("figure details table").count() == 2
