"""Finds the line of a TOML document that has a key, for error messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = re.compile(rf"^\s*({_KEY_PART}(?:\s*\.\s*{_KEY_PART})*)\s*=")
_PART = re.compile(_KEY_PART)


def line_of(source: str, location: Sequence[str | int]) -> int:
    """The line (from 1) of the key at `location`, or of the nearest thing around it that is there.

    Parts of the location which do not occur in the document are passed over (validators add their
    own). The document must already have been parsed: this reads lines, it checks nothing.
    """
    best_line, best_depth = 1, 0
    for line, path in _paths(source):
        depth = _matched(path, location)
        # A header below the location, [a.b.c] for a.b, is where the location is opened.
        if depth > best_depth and depth in (len(path), len(location)):
            best_line, best_depth = line, depth
    return _deeper(source, best_line, location[best_depth:])


def _paths(source: str) -> Iterator[tuple[int, Path]]:
    """Every header and `key =` line with its path; tables of an array carry their index."""
    table: Path = ()
    seen: Counter[Path] = Counter()
    fence = ""
    for number, text in enumerate(source.splitlines(), start=1):
        if fence:
            fence = "" if fence in text else fence
            continue
        header, key = _HEADER.match(text), _KEY.match(text)
        if header:
            table = _indexed(_split(header[2]), seen)
            if header[1] == "[[":
                table = (*table, seen[table])
                seen[table[:-1]] += 1
            yield number, table
        elif key:
            yield number, (*table, *_split(key[1]))
        for quote in ('"""', "'''"):
            if text.count(quote) % 2:
                fence = quote


def _split(dotted: str) -> Path:
    return tuple(p[1:-1] if p[0] in "\"'" else p for p in _PART.findall(dotted))


def _indexed(path: Path, seen: Counter[Path]) -> Path:
    """Put the index of the current element behind each array of tables on the way."""
    out: Path = ()
    for part in path[:-1]:
        out = (*out, part)
        if seen[out]:
            out = (*out, seen[out] - 1)
    return (*out, *path[-1:])


def _matched(path: Path, location: Sequence[str | int]) -> int:
    """How many parts of the path occur, in order, at the start of the location."""
    at = 0
    wanted = iter(location)
    for part in path:
        if not any(part == other for other in wanted):
            break
        at += 1
    return at


def _deeper(source: str, line: int, rest: Sequence[str | int]) -> int:
    """Look on for the remaining keys in the inline tables that begin on this line."""
    lines = source.splitlines()
    end = next(
        (n for n in range(line + 1, len(lines) + 1) if _starts_statement(lines[n - 1])),
        len(lines) + 1,
    )
    element = next((part for part in rest if isinstance(part, int)), 0)
    opened = 0
    found = line
    for number in range(line, end):
        opened += lines[number - 1].count("{")
        if opened <= element:
            continue
        found = number if found == line else found
        for part in rest:
            if isinstance(part, str) and re.search(
                rf"(?<![\w.]){re.escape(part)}[\"']?\s*=", lines[number - 1]
            ):
                return number
        if opened > element + 1:
            break
    return found


def _starts_statement(text: str) -> bool:
    return bool(_HEADER.match(text) or _KEY.match(text))
