"""The routes over a spool or store: each view, its CSV, and news by server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from pgtare.errors import PgtareError, UsageError
from pgtare.keeping.live import page_parts
from pgtare.keeping.live.page_parts import PageLink, ViewPage
from pgtare.keeping.live.page_shell import PageShell
from pgtare.keeping.live.time_window import LAST_S, US, TimeWindow, iso, shown
from pgtare.keeping.live.views import (
    activity,
    bill,
    blockers,
    breakdown,
    compare,
    event,
    finding,
    findings,
    statement,
)
from pgtare.keeping.live.views.view_request import ViewRequest
from pgtare.keeping.live.worker_process import WorkerProcess
from pgtare.keeping.store.address import StoreAddress

VIEWS: dict[str, Callable[[ViewRequest], Awaitable[ViewPage]]] = {
    "activity": activity.view,
    "breakdown": breakdown.view,
    "event": event.view,
    "statement": statement.view,
    "compare": compare.view,
    "blockers": blockers.view,
    "bill": bill.view,
    "findings": findings.view,
    "finding": finding.view,
}
#: Views that the menu leads to; the others are reached from tables.
MENU = {
    "/activity": "Activity",
    "/breakdown": "What sessions waited for",
    "/compare": "Compare two times",
    "/blockers": "Who blocks whom",
    "/bill": "The bill",
    "/findings": "Findings",
}
#: How often the source is looked at for new rows, and a silent connection is kept alive, s.
_LOOK_S, _ALIVE_S = 1.0, 15.0
#: The newest rows are said to be old after this, s.
_OLD_S = 120
#: An alarm names at most this many files or servers.
_MOST_NAMED = 3


class ViewRoutes:
    """The routes over one source. limit_s: the longest time that a query may take."""

    def __init__(self, source: Path | StoreAddress, shell: PageShell, limit_s: float) -> None:
        self._worker = WorkerProcess(source, limit_s)
        self._shell = shell

    def routes(self) -> list[Route]:
        """All of them; the last takes every name."""
        return [
            Route("/updates", self._updates),
            Route("/{view}.csv", self._csv),
            Route("/{view}", self._view),
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the process that answers queries."""
        with contextlib.suppress(PgtareError):  # the first view says what is wrong
            await self._worker.state()  # it takes a while to start
        yield
        await self._worker.close()

    async def _page(self, request: Request) -> tuple[ViewRequest, ViewPage]:
        name = request.path_params["view"]
        words = {key: value for key, value in request.query_params.items() if "\0" not in value}
        now_us = time.time_ns() // 1000
        asked = await ViewRequest.of(
            f"/{name}", words, self._worker, now_us, request.is_disconnected
        )
        return asked, await VIEWS[name](asked)

    async def _view(self, request: Request) -> Response:
        name = request.path_params["view"]
        if name not in VIEWS:
            return self._shell.failure("There is no such view.", 404)
        try:
            asked, page = await self._page(request)
        except PgtareError as ex:
            return self._shell.failure(str(ex), 400 if isinstance(ex, UsageError) else 503)
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
        """One event for each new commit, and one at times if there is none, while it is heard.

        A page can tell a silence from a connection that is gone: scripts do not see comments.
        """
        seen, silent_s = self._worker.news(), 0.0
        yield "retry: 3000\n\n"
        while not await request.is_disconnected():
            await asyncio.sleep(_LOOK_S)
            now, silent_s = self._worker.news(), silent_s + _LOOK_S
            if now != seen:
                seen, silent_s = now, 0.0
                yield "event: commit\ndata: new rows\n\n"
            elif silent_s >= _ALIVE_S:
                silent_s = 0.0
                yield "event: alive\ndata: nothing new\n\n"

    def _html(self, name: str, asked: ViewRequest, page: ViewPage) -> str:
        window = asked.window
        last = [PageLink(word, asked.moved({"last": word}), window.last == word) for word in LAST_S]
        moves = [
            PageLink("‹ earlier", asked.in_window(window.shifted(-1))),
            PageLink("later ›", asked.in_window(window.shifted(1))),
            PageLink("wider", asked.in_window(window.widened())),
        ]
        alarms = list(page.alarms)
        if window.last is not None:
            alarms += self._late(asked)
        if asked.damaged:
            alarms.append(_damaged_words(asked.damaged))
        kept = {
            key: value
            for key, value in asked.words.items()
            if key not in ("last", "from", "to", "at", "server", "table", "token")
        }
        return self._shell.html(
            page,
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
                PageLink(link.words, asked.href(link.href), link.current)
                for link in self._shell.menu(f"/{name}")
            ],
            csv=lambda table: page_parts.address(
                f"{asked.path}.csv", {**asked.words, **window.address(), "table": table.id}
            ),
        )

    def _late(self, asked: ViewRequest) -> list[str]:
        """What a reader of the newest rows must know if some do not come."""
        old_us = time.time_ns() // 1000 - _OLD_S * US
        if asked.newest_us > old_us:
            late = asked.servers_until(asked.newest_us - _OLD_S * US)
            if not late:
                return []
            return [
                f"No new rows of {', '.join(late[:_MOST_NAMED])}"
                f"{' and others' if len(late) > _MOST_NAMED else ''}. The agent no longer watches "
                "them, or has not reached them: its log says why."
            ]
        why = f"No agent is writing to this {self._worker.kind}."
        if asked.spans.get("agent", [0, 0])[1] > old_us:
            why = "The agent runs, but has not reached a server since then: its log says why."
        return [f"The newest rows are from {shown(asked.newest_us)} UTC. {why}"]


def _damaged_words(names: Collection[str]) -> str:
    count = "a file" if len(names) == 1 else f"{len(names)} files"
    more = " and others" if len(names) > _MOST_NAMED else ""
    return (
        f"Rows are missing here: {count} of the spool cannot be read "
        f"({', '.join(sorted(names)[:_MOST_NAMED])}{more}). Restore what is damaged from a copy."
    )


def _ends(window: TimeWindow) -> tuple[str, str]:
    return iso(window.after_us), iso(window.to_us)
