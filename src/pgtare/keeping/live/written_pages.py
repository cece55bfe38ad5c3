"""Pages that other commands wrote: their list and routes, each with shared scripts loaded once.

A page that this pgtare wrote, with no script but its own, is served with the addresses of shared
files in their place. Any other page is served as it is, but as a stranger to this site (CSP
`sandbox`): its scripts can read neither the live page nor the browser's cookie.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pgtare.errors import MeasurementError, UsageError
from pgtare.keeping.live.page_parts import PageColumn, PageRow, PageSection, PageTable, ViewPage
from pgtare.keeping.live.page_shell import PageShell
from pgtare.kit import numbers, page_frame

MENU = {"/pages": "Pages"}
_COLUMNS = (
    PageColumn("title", "page"),
    PageColumn("name", "file"),
    PageColumn("written", "written", "time"),
    PageColumn("bytes", "size", "bytes"),
)
#: How deep below the directory pages are looked for: the pages of a run, of many runs, of a fleet.
_DEEPEST = 3
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
#: What no address can name: a byte that is not UTF-8, and control characters.
_UNADDRESSED = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
#: A page's title stands in its first bytes, behind no script.
_HEAD_BYTES = 4096
#: Pages that are listed, the newest first. A larger page is not read: it would be in memory whole.
_MOST_LISTED, _MOST_BYTES = 1000, 64 << 20
#: A page that shares scripts needs nothing of the site but these.
_SHARING = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
_STRANGER = {
    "content-security-policy": (
        "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    # Browsers refuse a sandboxed page that also asks to be kept apart from its opener.
    "cross-origin-opener-policy": "unsafe-none",
}


@dataclass(frozen=True)
class WrittenPage:
    """A page in the directory: its path there, its title, when it was written (µs), its bytes."""

    name: str
    title: str
    written_us: int
    size: int


@dataclass(frozen=True)
class ServedText:
    """What is sent for a page, and the headers that differ from the live page's own."""

    text: str
    headers: Mapping[str, str]


class WrittenPages:
    """The pages below a directory. addresses: where the scripts are served, by their text."""

    def __init__(self, directory: Path, addresses: Mapping[str, str]) -> None:
        if not directory.is_dir():
            raise UsageError(
                f"--pages {directory}: no such directory; give the one that holds what commands "
                "wrote with --out"
            )
        self._directory, self._addresses = directory.resolve(), addresses

    def listed(self) -> tuple[list[WrittenPage], int]:
        """The newest pages, the newest first, and how many older ones are left out."""
        found = []
        for path in self._paths():
            with contextlib.suppress(OSError):  # gone since
                state = path.stat()
                if stat.S_ISREG(state.st_mode):
                    found.append((-state.st_mtime_ns, self._name(path), state.st_size))
        pages = []
        for age, name, size in sorted(found)[:_MOST_LISTED]:
            try:
                with self._opened(name) as file:
                    head = file.read(_HEAD_BYTES).decode(errors="replace")
            except OSError:
                continue  # another account's, leads out of the directory, or gone since
            title = _TITLE.search(head)
            words = html.unescape(title[1]).strip() if title else name
            pages.append(WrittenPage(name, words, -age // 1000, size))
        return pages, max(0, len(found) - _MOST_LISTED)

    def served(self, name: str) -> ServedText | None:
        """What to send for a page, None if there is none. Raises MeasurementError."""
        if not name.endswith(".html") or not _has_address(name):
            return None
        try:
            with self._opened(name) as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                limit = numbers.volume(_MOST_BYTES)
                raise MeasurementError(f"the page {name} is larger than {limit}: open it as a file")
            text = content.decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeError) as ex:
            why = ex.strerror if isinstance(ex, OSError) else "it is not UTF-8"
            raise MeasurementError(f"the page {name} cannot be read: {why}") from ex
        shared = page_frame.with_scripts_at(text, self._addresses)
        return ServedText(text, _STRANGER) if shared is None else ServedText(shared, _SHARING)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        """A page's file. Raises FileNotFoundError for what is no file or not in the directory.

        What was opened is what is looked at: a link could lead elsewhere a moment later. A pipe
        would keep us waiting for who writes it.
        """
        path = self._directory / name
        if not os.path.isfile(path):
            raise FileNotFoundError(name)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            place = Path(os.readlink(f"/proc/self/fd/{fd}"))
            inside = place.is_relative_to(self._directory)
            if not inside or not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FileNotFoundError(name)
            with open(fd, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(fd)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._directory).as_posix()

    def _paths(self) -> Iterator[Path]:
        """What may be a page."""
        for depth in range(_DEEPEST):
            for path in self._directory.glob("*/" * depth + "*.html"):
                if _has_address(self._name(path)):
                    yield path


def _has_address(name: str) -> bool:
    """Whether a path below the directory can be asked for.

    A hidden name, like the parent's, starts with a dot: results are hidden until they are whole.
    """
    parts = name.split("/")
    if len(parts) > _DEEPEST or _UNADDRESSED.search(name):
        return False
    return all(part and not part.startswith(".") for part in parts)


class PageRoutes:
    """The routes over one directory. Raises UsageError if there is none."""

    def __init__(self, directory: Path, shell: PageShell) -> None:
        plotly, charts = page_frame.shared_scripts()
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
