"""Pages that other commands wrote: a list, and each with the scripts it shares loaded once.

A page whose scripts are all this pgtare's own is served with the addresses of shared files in
their place. Any other page is served as it is, but as a stranger to this site (CSP `sandbox`): its
scripts can read neither the live page nor the browser's cookie.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import page_frame

#: How deep below the directory pages are looked for: the pages of a run, of many runs, of a fleet.
_DEEPEST = 3
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
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
        for name, path in self._paths().items():
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
        path = self._paths().get(name)
        if path is None:
            return None
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as ex:
            why = ex.strerror if isinstance(ex, OSError) else "it is not UTF-8"
            raise MeasurementError(f"the page {name} cannot be read: {why}") from ex
        shared = page_frame.with_scripts_at(text, self._addresses)
        return ServedText(text, _STRANGER) if shared is None else ServedText(shared, {})

    def _paths(self) -> dict[str, Path]:
        """By their names in addresses; links that lead out of the directory are left out."""
        found = {}
        for depth in range(_DEEPEST):
            for path in self._directory.glob("*/" * depth + "*.html"):
                if path.is_file() and path.resolve().is_relative_to(self._directory):
                    found[path.relative_to(self._directory).as_posix()] = path
        return found
