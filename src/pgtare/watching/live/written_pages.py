"""Pages that other commands wrote: a list, and each with the scripts it shares loaded once.

A page whose scripts are all this pgtare's own is served with the addresses of shared files in
their place. Any other page is served as it is, but as a stranger to this site (CSP `sandbox`): its
scripts can read neither the live page nor the browser's cookie.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import page_frame

#: How deep below the directory pages are looked for: the pages of a run, of many runs, of a fleet.
_DEEPEST = 3
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
#: What no address can name: a byte that is not UTF-8, and control characters.
_UNADDRESSED = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
#: A page's title stands in its first bytes, behind no script.
_HEAD_BYTES = 4096
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

    def listed(self) -> list[WrittenPage]:
        """All pages, the newest first."""
        found = []
        for name, path in self._paths():
            try:
                with path.open("rb") as file:
                    head = file.read(_HEAD_BYTES).decode(errors="replace")
                state = path.stat()
            except OSError:
                continue  # another account's, or gone since
            title = _TITLE.search(head)
            words = html.unescape(title[1]).strip() if title else name
            found.append(WrittenPage(name, words, state.st_mtime_ns // 1000, state.st_size))
        return sorted(found, key=lambda page: (-page.written_us, page.name))

    def served(self, name: str) -> ServedText | None:
        """What to send for a page, None if there is none. Raises MeasurementError."""
        place = Path(name)
        path = self._directory / place
        named = place.as_posix() == name and 1 <= len(place.parts) <= _DEEPEST
        if not named or not all(self._inside(part) for part in (place, *place.parents[:-1])):
            return None
        if not self._is_page(place) or not self._leads_inside(path):
            return None
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as ex:
            why = ex.strerror if isinstance(ex, OSError) else "it is not UTF-8"
            raise MeasurementError(f"the page {name} cannot be read: {why}") from ex
        shared = page_frame.with_scripts_at(text, self._addresses)
        return ServedText(text, _STRANGER) if shared is None else ServedText(shared, {})

    def _paths(self) -> Iterator[tuple[str, Path]]:
        """All pages by their names in addresses. What cannot be looked at is left out."""
        for folder, folders, files in os.walk(self._directory, followlinks=True):
            here = Path(folder).relative_to(self._directory)
            deepest = len(here.parts) >= _DEEPEST - 1
            folders[:] = [name for name in folders if not deepest and self._inside(here / name)]
            for file in files:
                if self._is_page(here / file):
                    yield (here / file).as_posix(), self._directory / here / file

    def _is_page(self, place: Path) -> bool:
        return (
            place.suffix == ".html"
            and self._inside(place)
            and os.path.isfile(self._directory / place)
        )

    def _inside(self, place: Path) -> bool:
        """Whether a place in the directory has an address and leads nowhere else.

        A hidden name is that of a result which is still being written.
        """
        if place.name.startswith(".") or _UNADDRESSED.search(place.name):
            return False
        path = self._directory / place
        return not os.path.islink(path) or self._leads_inside(path)

    def _leads_inside(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._directory)
