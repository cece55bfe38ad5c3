"""The routes over pages that other commands wrote: their list, and each of them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pgtare.errors import MeasurementError
from pgtare.keeping.live.page_parts import PageColumn, PageRow, PageSection, PageTable, ViewPage
from pgtare.keeping.live.page_shell import PageShell
from pgtare.keeping.live.written_pages import WrittenPages
from pgtare.kit.page_frame import shared_scripts

MENU = {"/pages": "Pages"}
_COLUMNS = (
    PageColumn("title", "page"),
    PageColumn("name", "file"),
    PageColumn("written", "written", "time"),
    PageColumn("bytes", "size", "bytes"),
)


class PageRoutes:
    """The routes over one directory. Raises UsageError if there is none."""

    def __init__(self, directory: Path, shell: PageShell) -> None:
        plotly, charts = shared_scripts()
        addresses = {plotly: shell.address("plotly"), charts: shell.address("charts")}
        self._pages, self._shell = WrittenPages(directory, addresses), shell

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/pages", self._list),
            Route("/pages.csv", self._csv),
            Route("/pages/{name:path}", self._page),
        ]

    async def _table(self) -> tuple[PageTable, int]:
        """The newest pages, and how many older ones it lacks."""
        pages, older = await run_in_threadpool(self._pages.listed)
        rows = [
            PageRow(
                [page.title, page.name, page.written_us, page.size], f"/pages/{quote(page.name)}"
            )
            for page in pages
        ]
        empty = "No pages here yet. Commands write one with --out."
        table = PageTable("pages", "Pages that commands wrote", _COLUMNS, rows, empty=empty)
        return table, older

    async def _list(self, request: Request) -> Response:
        table, older = await self._table()
        note = "The newest come first."
        if older:
            note += f" {older} older ones are not listed."
        section = PageSection("All", (note,), table=table)
        return self._shell.plain(ViewPage("Pages", [section]), "/pages")

    async def _csv(self, request: Request) -> Response:
        headers = {"content-disposition": 'attachment; filename="pages.csv"'}
        table, _ = await self._table()
        return Response(table.csv(), headers=headers, media_type="text/csv; charset=utf-8")

    async def _page(self, request: Request) -> Response:
        try:
            found = await run_in_threadpool(self._pages.served, request.path_params["name"])
        except MeasurementError as ex:
            return self._shell.failure(str(ex), 503)
        if found is None:
            return self._shell.failure("There is no such page.", 404)
        return HTMLResponse(found.text, headers=dict(found.headers))
