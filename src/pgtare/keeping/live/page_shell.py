"""The frame of every page that is served: menu, styles, scripts, and sentences on failures."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import pgtare
from pgtare.keeping.live import page_parts
from pgtare.keeping.live.page_parts import PageLink, ViewPage
from pgtare.kit.page_frame import chart_script, embeddable, plotly_script, templates

_TYPES = {"css": "text/css", "js": "text/javascript"}


class StaticFile:
    """A file that pages load; its name changes with its content, so that browsers may keep it."""

    def __init__(self, name: str, content: bytes) -> None:
        stem, _, self.kind = name.rpartition(".")
        self.name = f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{self.kind}"
        self.content, self.compressed = content, gzip.compress(content, 6)

    def response(self, request: Request) -> Response:
        """The file."""
        headers = {
            "cache-control": "private, max-age=31536000, immutable",
            "vary": "accept-encoding",
        }
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"], content = "gzip", self.compressed
        return Response(content, headers=headers, media_type=_TYPES[self.kind])


def static_files() -> dict[str, StaticFile]:
    """By what templates call them."""
    own = resources.files("pgtare.keeping.live") / "static"
    script = chart_script("live.js", "pgtare.keeping.live", "static")
    frame = resources.files("pgtare.kit") / "templates" / "page.css"
    css = frame.read_bytes() + (own / "live.css").read_bytes()
    return {
        "css": StaticFile("page.css", css),
        "script": StaticFile("live.js", script.encode()),
        "plotly": StaticFile("plotly.js", plotly_script().encode()),
    }


class PageShell:
    """What all pages share. menu: words by address."""

    def __init__(self, menu: Mapping[str, str]) -> None:
        self._menu = menu
        self.files = static_files()
        self._by_name = {file.name: file for file in self.files.values()}
        environment = templates("pgtare.keeping.live")
        environment.globals["shown_cell"] = page_parts.shown_cell
        self._template = environment.get_template("live.html.j2")

    def menu(self, current: str = "") -> list[PageLink]:
        """The menu, without a window."""
        return [PageLink(words, href, href == current) for href, words in self._menu.items()]

    def html(self, page: ViewPage, **context: Any) -> str:
        """A page; context: `alarms`, `menu`, `window` or None, and what the window needs."""
        figures = [chart.figure() for chart in page.charts]
        return self._template.render(
            title=page.title,
            page=page,
            data=Markup(embeddable(figures)),  # noqa: S704 - `embeddable` escapes it
            files={key: self.address(key) for key in self.files},
            version=pgtare.__version__,
            **context,
        )

    def failure(self, sentence: str, status: int) -> Response:
        """A page without a window or tables that says what did not work."""
        text = self.html(
            ViewPage("That did not work", []),
            alarms=[sentence[:1].upper() + sentence[1:]],
            window=None,
            menu=self.menu(),
        )
        return HTMLResponse(text, status)

    def address(self, key: str) -> str:
        """Where a file of `static_files` is served."""
        return f"/static/{self.files[key].name}"

    async def static(self, request: Request) -> Response:
        """One of the files."""
        file = self._by_name.get(request.path_params["name"])
        return file.response(request) if file else HTMLResponse("not found", 404)
