"""What the tests of pages share: a page as it is open, and names that would break out of one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from tests.live_pages import ServedPage

HOSTILE = "<script>window.pwned = 1</script>"
HOSTILE_IMAGE = "\"'><img src=x onerror='window.pwned = 1'>"
HOSTILE_LINK = '<a href="https://example.org/">%{x} $y$</a>\u2028</script>'


class Visit:
    """An open page and everything it complained about or asked for."""

    def __init__(self, context: Any, path: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)
        if context.scripts:
            self.page.wait_for_selector("html[data-drawn]")


def assert_inert(opened: Visit) -> None:
    """Nothing that a name holds has run, been loaded, or become a link."""
    page = opened.page
    assert page.evaluate("window.pwned") is None
    assert opened.complaints == []
    assert opened.requests == [opened.url]
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed').length") == 0
    links = page.evaluate(
        "[...document.querySelectorAll('a')].map("
        "(a) => a.getAttribute('href') || a.getAttribute('xlink:href'))"
    )
    assert links == ["#main"]


def assert_fits_a_phone(page: Any) -> None:
    """A page 360 pixels wide needs no sideways scroll, whatever is opened."""
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def assert_structured(page: Any) -> None:
    """What a screen reader needs: headings in order, names, and tables in place of charts."""
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
            roles: all('.cards :is(thead, tbody, tr, th, td)').filter((e) => !e.role).length,
            charts: all('.chart').filter((c) => c.getAttribute('role') !== 'img'
              || !c.parentElement.querySelector('details table tbody td')).length,
          };
        }"""
    )
    assert set(faults.values()) == {0}, faults


class Reader:
    """A browser that was let in, everything it complained about, and where else it wanted to go."""

    def __init__(self, context: Any, served_page: ServedPage) -> None:
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.url = served_page.url
        context.route("**/*", self._route)
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(served_page.rules.login_address())

    def _route(self, route: Any) -> None:
        if route.request.url.startswith((self.url, "data:")):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()

    def drawn(self, heading: str, charts: int = 1) -> None:
        """Wait for a view, with all of its charts."""
        self.page.wait_for_selector(f"h1:has-text('{heading}')")
        self.page.wait_for_selector("html[data-drawn]")
        assert self.page.locator(".js-plotly-plot .main-svg").count() >= charts
        assert self.page.locator(".alarm:has-text('took longer')").count() == 0
        wide = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, heading

    def click(self, words: str, inside: str = "main") -> None:
        self.page.locator(inside).get_by_role("link", name=words, exact=True).first.click()
