"""The page's server: one route for each view, its CSV, what the pages load, and news by SSE."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

import pgtare
from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.kit.page_frame import breakable, chart_script, embeddable
from pgtare.watching.live import page_parts
from pgtare.watching.live.access import AccessControl, AccessRules
from pgtare.watching.live.live_source import LiveSource
from pgtare.watching.live.page_parts import PageLink, ViewPage
from pgtare.watching.live.time_window import LAST_S, TimeWindow, iso, shown
from pgtare.watching.live.views import (
    activity,
    bill,
    blockers,
    breakdown,
    compare,
    event,
    findings,
    statement,
)
from pgtare.watching.live.views.view_request import ViewRequest
from pgtare.watching.live.worker_process import TIME_LIMIT_S, WorkerProcess
from pgtare.watching.store.address import StoreAddress

VIEWS: dict[str, Callable[[ViewRequest], Awaitable[ViewPage]]] = {
    "activity": activity.view,
    "breakdown": breakdown.view,
    "event": event.view,
    "statement": statement.view,
    "compare": compare.view,
    "blockers": blockers.view,
    "bill": bill.view,
    "findings": findings.view,
}
#: Views that the menu leads to; the others are reached from tables.
_MENU = {
    "activity": "Activity",
    "breakdown": "What made it up",
    "compare": "Two windows",
    "blockers": "Who blocks whom",
    "bill": "The bill",
    "findings": "Findings",
}
_FORGET = {"last": None, "from": None, "to": None, "at": None}
#: How often the source is looked at for new rows, and a silent connection is kept alive, s.
_LOOK_S, _ALIVE_S = 1.0, 15.0
#: The newest rows are said to be old after this, s.
_OLD_S = 120
#: An alarm names at most this many files.
_MOST_NAMED = 3
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
    from plotly.offline import get_plotlyjs

    own = resources.files("pgtare.watching.live") / "static"
    script = chart_script("live.js", "pgtare.watching.live", "static")
    frame = resources.files("pgtare.kit") / "templates" / "page.css"
    css = frame.read_bytes() + (own / "live.css").read_bytes()
    return {
        "css": StaticFile("page.css", css),
        "script": StaticFile("live.js", script.encode()),
        "plotly": StaticFile("plotly.js", get_plotlyjs().encode()),
    }


class LivePage:
    """All routes, over one spool or store. limit_s: the longest time that a query may take."""

    def __init__(self, source: Path | StoreAddress, limit_s: float = TIME_LIMIT_S) -> None:
        self._source = LiveSource.of(source)
        self._worker = WorkerProcess(source, limit_s)
        self._files = static_files()
        self._by_name = {file.name: file for file in self._files.values()}
        environment = Environment(
            loader=PackageLoader("pgtare.watching.live"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["breakable"] = breakable
        environment.globals["shown_cell"] = page_parts.shown_cell
        self._template = environment.get_template("live.html.j2")

    def app(self, rules: AccessRules) -> ASGIApp:
        """The application, behind its access control."""
        routes = [
            Route("/", _first),
            Route("/updates", self._updates),
            Route("/static/{name}", self._static),
            Route("/{view}.csv", self._csv),
            Route("/{view}", self._view),
        ]
        return AccessControl(Starlette(routes=routes, lifespan=self._lifespan), rules)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        with contextlib.suppress(PgtareError):  # the first view says what is wrong
            await self._worker.state()  # it takes a while to start
        yield
        await self._worker.close()

    async def _static(self, request: Request) -> Response:
        file = self._by_name.get(request.path_params["name"])
        return file.response(request) if file else HTMLResponse("not found", 404)

    async def _page(self, request: Request) -> tuple[ViewRequest, ViewPage]:
        name = request.path_params["view"]
        words = {key: value for key, value in request.query_params.items() if "\0" not in value}
        asked = await ViewRequest.of(f"/{name}", words, self._worker, time.time_ns() // 1000)
        return asked, await VIEWS[name](asked)

    async def _view(self, request: Request) -> Response:
        name = request.path_params["view"]
        if name not in VIEWS:
            return self._failure("There is no such view.", 404)
        try:
            asked, page = await self._page(request)
        except UsageError as ex:
            return self._failure(str(ex), 400)
        except MeasurementError as ex:
            return self._failure(str(ex), 503)
        except PgtareError as ex:
            return self._failure(str(ex), 500)
        return HTMLResponse(self._html(name, asked, page))

    async def _csv(self, request: Request) -> Response:
        name = request.path_params["view"]
        if name not in VIEWS:
            return Response("there is no such view\n", 404)
        try:
            _, page = await self._page(request)
        except PgtareError as ex:
            return Response(f"{ex}\n", 400 if isinstance(ex, UsageError) else 503)
        table = page.table(request.query_params.get("table", ""))
        if table is None:
            return Response("there is no such table\n", 404)
        disposition = f'attachment; filename="{name}-{table.id}.csv"'
        headers = {"content-disposition": disposition}
        return Response(table.csv(), headers=headers, media_type="text/csv; charset=utf-8")

    async def _updates(self, request: Request) -> Response:
        return StreamingResponse(
            self._news(request),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _news(self, request: Request) -> AsyncIterator[str]:
        """One event for each new commit, as long as the browser listens."""
        seen, silent_s = self._source.news(), 0.0
        yield "retry: 3000\n\n"
        while not await request.is_disconnected():
            await asyncio.sleep(_LOOK_S)
            now, silent_s = self._source.news(), silent_s + _LOOK_S
            if now != seen:
                seen, silent_s = now, 0.0
                yield "event: commit\ndata: new rows\n\n"
            elif silent_s >= _ALIVE_S:
                silent_s = 0.0
                yield ": nothing new\n\n"

    def _html(self, name: str, asked: ViewRequest, page: ViewPage) -> str:
        window = asked.window
        last = [
            PageLink(word, asked.same(**{**_FORGET, "last": word}), window.last == word)
            for word in LAST_S
        ]
        moves = [
            PageLink("‹ earlier", asked.in_window(window.shifted(-1))),
            PageLink("later ›", asked.in_window(window.shifted(1))),
            PageLink("wider", asked.in_window(window.widened())),
        ]
        age_s = time.time() - asked.newest_us / 1e6
        alarms = list(page.alarms)
        if window.last is not None and age_s > _OLD_S:
            alarms.append(
                f"The newest rows are from {shown(asked.newest_us)} UTC. No agent is writing to "
                f"this {self._source.what}."
            )
        if asked.damaged:
            alarms.append(_damaged_words(asked.damaged))
        kept = {
            key: value
            for key, value in asked.words.items()
            if key not in ("last", "from", "to", "at", "server", "table", "token")
        }
        return self._template.render(
            title=page.title,
            page=page,
            alarms=alarms,
            window=window,
            window_words=window.words(),
            start=iso(window.after_us),
            end=iso(window.to_us),
            last=last,
            moves=moves,
            kept=kept,
            path=asked.path,
            servers=sorted({*asked.servers, *([asked.server] if asked.server else [])}),
            server=asked.server or "",
            earlier=_ends(compare.earlier(asked)) if name == "compare" else None,
            menu=[
                PageLink(words, asked.href(f"/{view}"), view == name)
                for view, words in _MENU.items()
            ],
            csv=lambda table: page_parts.address(
                f"{asked.path}.csv", {**asked.words, **window.address(), "table": table.id}
            ),
            data=self._data(page),
            **self._shell(),
        )

    def _data(self, page: ViewPage) -> Markup:
        figures = [chart.figure() for chart in page.charts]
        return Markup(embeddable(figures))  # noqa: S704 - `embeddable` escapes it

    def _shell(self) -> dict[str, Any]:
        files = {key: f"/static/{file.name}" for key, file in self._files.items()}
        return {"files": files, "version": pgtare.__version__}

    def _failure(self, sentence: str, status: int) -> Response:
        text = self._template.render(
            title="That did not work",
            page=ViewPage("That did not work", []),
            alarms=[sentence[:1].upper() + sentence[1:]],
            window=None,
            menu=[PageLink(words, f"/{view}") for view, words in _MENU.items()],
            data=Markup("[]"),
            **self._shell(),
        )
        return HTMLResponse(text, status)


def _damaged_words(names: Collection[str]) -> str:
    count = "a file" if len(names) == 1 else f"{len(names)} files"
    more = " and others" if len(names) > _MOST_NAMED else ""
    return (
        f"Rows are missing here: {count} of the spool cannot be read "
        f"({', '.join(sorted(names)[:_MOST_NAMED])}{more}). Restore what is damaged from a copy."
    )


def _ends(window: TimeWindow) -> tuple[str, str]:
    return iso(window.after_us), iso(window.to_us)


async def _first(request: Request) -> Response:
    return RedirectResponse("/activity", 303)
