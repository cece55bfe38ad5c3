"""What statements say: read from the file of all texts only as often as the server bears it.

However few texts are asked for, the server reads the file of all of them, under a lock that new
statements wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from pgtare.observing.findings import read
from pgtare.observing.findings.read import Reader
from pgtare.observing.findings.remedies import identifier

#: A file of more bytes is not read at all. One of 8 MiB, or that takes 0.1 s, is large.
MOST_BYTES, _LARGE_BYTES, _SLOW_S = 512 << 20, 8 << 20, 0.1
#: Looks at a large file are this far apart, s.
LARGE_PAUSE_S = 600.0
#: A text that was missing is requested again after so many s: it is there when its statement has
#: ended for the first time.
_AGAIN_S = 60.0
#: Texts of statements are remembered, the most.
_MOST = 1000


def reset(schema: str) -> str:
    """The SQL that forgets all statements; schema: of the extension."""
    where = "" if schema == "public" else f"{identifier(schema)}."
    return f"SELECT {where}pg_stat_statements_reset();"


def new_file(schema: str) -> str:
    """The same, with a comment on what it does."""
    return f"{reset(schema)}  -- starts the file anew, and forgets all statistics"


class TextFile:
    """When the file of all texts may be read again, by whoever reads it."""

    def __init__(self) -> None:
        self._not_before = -math.inf

    @property
    def may_be_read(self) -> bool:
        """Whether it is not known to be large, or was left alone for long enough."""
        return time.monotonic() >= self._not_before

    def pause_if_large(self, size: int | None, took_s: float = 0.0) -> bool:
        """Leave the file alone for ten minutes if it is large. Returns whether it is.

        size: in bytes, None if unknown. took_s: how long it took to read.
        """
        large = (size or 0) >= _LARGE_BYTES or took_s >= _SLOW_S
        if large:
            self._not_before = time.monotonic() + LARGE_PAUSE_S
        return large


class FindingTexts:
    """Texts of the statements that findings may name, without literals."""

    def __init__(self, file: TextFile) -> None:
        self._file = file
        self._known: dict[int, str] = {}
        self._asked: dict[int, float] = {}

    def read(
        self, reader: Reader, schema: str | None, query_ids: Iterable[int], *, sized: bool
    ) -> dict[int, str]:
        """What these statements say; of those under way their sessions', if nothing else knows.

        schema: of pg_stat_statements, None if it is not there. sized: whether the role may ask
        how large the file is.
        """
        wanted = list(query_ids)
        self._learn(reader, schema, wanted, sized=sized)
        found = {each: self._known[each] for each in wanted if each in self._known}
        if missing := [each for each in wanted if each not in found]:
            found |= read.texts_under_way(reader, missing)
        return found

    def _learn(self, reader: Reader, schema: str | None, wanted: list[int], *, sized: bool) -> None:
        began = time.monotonic()
        asked = [
            each
            for each in wanted
            if each not in self._known and began - self._asked.get(each, -_AGAIN_S) >= _AGAIN_S
        ]
        if schema is None or not asked or not self._file.may_be_read:
            return
        if len(self._known) + len(self._asked) > _MOST:
            self._known.clear()
            self._asked.clear()
        self._asked.update((each, began) for each in asked)
        size = None
        try:
            size = read.size_of_texts(reader) if sized else None
            if size is None or size <= MOST_BYTES:
                self._known |= read.texts(reader, schema, asked)
        except read.Unreadable:
            pass  # given up, or holds what this encoding does not have: it is named without text
        self._file.pause_if_large(size, time.monotonic() - began)
