"""The page in a real browser, with the network shut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgtare.weighing.weigh.report.page import write_page
from tests.browser.pages import (
    HOSTILE,
    HOSTILE_IMAGE,
    HOSTILE_LINK,
    Visit,
    assert_fits_a_phone,
    assert_inert,
    assert_structured,
)
from tests.unit.sample_result import sample

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

#: The contrast of every colour with what is behind it.
CONTRAST = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue('--' + name).trim();
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [lo, hi] = [light(a), light(b)].sort((x, y) => x - y);
    return (hi + 0.05) / (lo + 0.05);
  };
  const on = (ground, names) => names.map((n) => [n + ' on ' + ground, ratio(n, ground)]);
  return {
    text: Object.fromEntries([
      ...on('paper', ['ink', 'muted', 'focus', 'cost', 'gain', 'equivalent',
                      'inconclusive', 'not_verified']),
      ...on('soft', ['ink']), ...on('alarm', ['alarm-ink'])]),
    lines: Object.fromEntries(
      on('paper', ['axis', 'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7'])),
  };
}"""
#: Words that a line break tears.
TORN = """() => {
  const torn = [], range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    if (node.parentElement.closest('svg, script, pre, .cards thead')) continue;
    for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((r) => r.top)).size > 1)
        torn.push(word[0]);
    }
  }
  return torn;
}"""


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "result.html"
    drawn = sample()
    write_page(drawn.result, drawn.observations, path)
    return path


@pytest.fixture(scope="session")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "hostile.html"
    drawn = sample()
    renamed = {
        "pg_stat_statements": HOSTILE,
        "track_io_timing": HOSTILE_IMAGE,
        "auto_explain": HOSTILE_LINK,
    }
    result = drawn.result
    for arm in result.arms:
        arm.name = renamed.get(arm.name, arm.name)
        arm.settings = {name: HOSTILE for name in arm.settings}
        if arm.proof:
            arm.proof.evidence = HOSTILE_IMAGE
    result.server["settings"] = {"application_name": HOSTILE, HOSTILE_IMAGE: HOSTILE_LINK}
    result.command = ["pgtare", HOSTILE, HOSTILE_IMAGE]
    result.warnings = [HOSTILE, HOSTILE_LINK]
    write_page(result, drawn.observations, path)
    return path


def test_draws_every_chart_for_eyes_screen_readers_and_keyboards(
    visit: Callable[..., Visit], page_file: Path
) -> None:
    opened = visit(page_file)
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    points = opened.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.chart')].map(
             (c) => [c.id, c.querySelectorAll('.scatterlayer :is(.point, .js-line)').length]))"""
    )
    # settling: of all arms but the control
    assert points == {"chart-effects": 6, "chart-settling": 5}
    for name in points:
        assert opened.page.locator(f"#{name}").is_visible()
    assert opened.page.get_attribute("html", "lang") == "en"
    for landmark in ("header", "main", "footer"):
        assert opened.page.locator(f"body > {landmark}").count() == 1
    assert_structured(opened.page)
    # the keyboard reaches everything
    page = opened.page
    focused = "document.activeElement"
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.textContent") == "Skip to the answer"
    assert page.evaluate(f"{focused}.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.className") == "scroll"  # the table can be scrolled by keys
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.tagName") == "SUMMARY"
    assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate(f"{focused}.parentElement.open")


@pytest.mark.slow
def test_every_table_can_be_read_on_a_phone(visit: Callable[..., Visit], page_file: Path) -> None:
    """None is wider than the screen, or it can be scrolled by itself; no text is tiny."""
    opened = visit(page_file, width=360)
    page = opened.page
    assert_fits_a_phone(page)
    faults = page.evaluate(
        """() => [...document.querySelectorAll('table')].filter((table) => {
             const room = table.closest('.scroll, .meta, .chart-table, figure details');
             const scrolls = room && getComputedStyle(room).overflowX === 'auto';
             const wide = table.getBoundingClientRect().right > 360;
             return (wide && !scrolls) || parseFloat(getComputedStyle(table).fontSize) < 12;
           }).map((table) => table.caption.textContent)"""
    )
    assert faults == []
    assert opened.complaints == []


def test_follows_the_theme_and_its_change_with_contrast_of_aa(
    visit: Callable[..., Visit], page_file: Path
) -> None:
    opened = visit(page_file, scheme="dark")
    page = opened.page
    for scheme, colour in (("dark", "rgb(20, 24, 29)"), ("light", "rgb(255, 255, 255)")):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_selector(f'html[data-drawn="{scheme}"]')
        for part in ("body", "#chart-effects .main-svg"):
            element = f"document.querySelector('{part}')"
            assert page.evaluate(f"getComputedStyle({element}).backgroundColor") == colour
        ratios = page.evaluate(CONTRAST)
        assert {name: ratio for name, ratio in ratios["text"].items() if not ratio >= 4.5} == {}
        assert {name: ratio for name, ratio in ratios["lines"].items() if not ratio >= 3} == {}
    assert opened.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "which", ["page_file", pytest.param("hostile_file", marks=pytest.mark.slow)]
)
def test_a_phone_shows_every_verdict_beside_its_name_and_needs_no_sideways_scroll(
    visit: Callable[..., Visit], request: pytest.FixtureRequest, which: str
) -> None:
    page = visit(request.getfixturevalue(which), width=360).page
    places = page.evaluate(
        """() => [...document.querySelectorAll('.cards tbody tr')].map((row) => {
             const box = (e) => e.getBoundingClientRect();
             const [name, verdict] = ['th', '.verdict'].map((s) => box(row.querySelector(s)));
             return { right: verdict.right, lower: Math.abs(verdict.top - name.top),
                      width: row.scrollWidth, room: row.clientWidth,
                      text: row.querySelector('.verdict').innerText };
           })"""
    )
    assert len(places) == 6
    assert all(place["text"] and 0 < place["right"] <= 360 for place in places)
    assert all(place["lower"] < 4 for place in places)
    assert all(place["width"] <= place["room"] for place in places)
    assert_fits_a_phone(page)
    widest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('.main-svg')].map("
        "(s) => s.getBoundingClientRect().right))"
    )
    assert widest <= 360
    if which == "page_file":  # a hostile name may be one long word
        assert page.evaluate(TORN) == []


def test_hostile_names_are_inert_and_shown_as_they_are(
    visit: Callable[..., Visit], hostile_file: Path
) -> None:
    opened = visit(hostile_file)
    page = opened.page
    assert_inert(opened)
    assert HOSTILE in page.inner_text("tbody")
    drawn = page.evaluate(
        "[...document.querySelectorAll('#chart-effects .annotation-text')].map(t => t.textContent)"
    )
    assert HOSTILE in drawn
    legend = page.evaluate(
        "[...document.querySelectorAll('#chart-settling .legendtext')].map(t => t.textContent)"
    )
    assert HOSTILE_IMAGE in legend
    assert HOSTILE_LINK.replace("\u2028", " ") in [name.replace("\u2028", " ") for name in legend]


def test_the_policy_forbids_network_eval_and_foreign_scripts(
    visit: Callable[..., Visit], page_file: Path
) -> None:
    page = visit(page_file).page
    tried = page.evaluate(
        """async () => {
          const blocked = [];
          document.addEventListener('securitypolicyviolation', (e) => {
            blocked.push(e.effectiveDirective);
          });
          const fetched = await fetch('https://example.org/').then(() => 'yes', () => 'no');
          // The test's own frame is exempt from the policy, a timer's is not.
          const evaluated = await new Promise((done) => setTimeout(() => {
            try { done(new Function('return "yes"')()); } catch { done('no'); }
          }));
          const script = document.createElement('script');
          script.textContent = 'window.pwned = 1';
          document.body.append(script);
          const image = new Image();
          image.src = 'https://example.org/x.png';
          // they are reported a little later, on a busy machine much later
          const wanted = ['connect-src', 'img-src', 'script-src-elem'];
          for (let n = 0; n < 300 && !wanted.every((one) => blocked.includes(one)); n++)
            await new Promise((done) => setTimeout(done, 100));
          return { fetched, evaluated, pwned: window.pwned ?? null, blocked: blocked.sort() };
        }"""
    )
    assert tried["fetched"] == tried["evaluated"] == "no"
    assert tried["pwned"] is None
    assert {"connect-src", "img-src", "script-src-elem"} <= set(tried["blocked"])


def test_without_scripts_the_figures_remain(visit: Callable[..., Visit], page_file: Path) -> None:
    page = visit(page_file, scripts=False).page
    assert "All were seen working." in page.inner_text("main")
    row = page.locator(".cards tbody tr", has_text="pg_stat_statements")
    assert row.locator(".verdict").inner_text() == "cost"
    assert page.locator("figure details table").count() == 2
    assert "need JavaScript" in page.inner_text("main")
