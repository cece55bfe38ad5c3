"""Texts of statements: those of pg_stat_statements, without literals and without secrets.

A file of them that is large, or slow to read, is read at most once in ten minutes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable

from pgtare.observing.findings.statement_texts import TextFile
from pgtare.postgres.sql_text import storable

#: A text that was missing is requested again after this many s.
_AGAIN_S = 1800.0
#: The most statements, and the most texts, that are remembered.
_MOST = 50_000
#: A look at texts that takes longer than this is given up, s; other looks have more time.
LIMIT_S = 1.0


def text_hash(text: str) -> int:
    """A number of a text, signed with 64 bits: the same on every server."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class StatementTexts:
    """Which texts of a server are known. hashes: by query identifier."""

    def __init__(self, file: TextFile) -> None:
        self.file = file
        self.hashes: dict[int, int] = {}
        self._asked: dict[int, float] = {}
        self._given: set[int] = set()
        self._wanted: set[int] = set()

    def unknown(self, query_ids: Iterable[int]) -> list[int]:
        """Statements whose texts should be read now, with earlier ones that had to wait.

        Empty while a large file must not be read again.
        """
        now = time.monotonic()
        if len(self._wanted) < _MOST:
            self._wanted |= {
                query_id
                for query_id in query_ids
                if query_id
                and query_id not in self.hashes
                and now - self._asked.get(query_id, -_AGAIN_S) >= _AGAIN_S
            }
        return sorted(self._wanted) if self.file.may_be_read else []

    def learn(self, asked: Iterable[int], found: Iterable[tuple[int, str]]) -> dict[int, str]:
        """Note the texts that were requested. Returns those that are new, by hash."""
        plain_texts = [(query_id, storable(text)) for query_id, text in found]
        if len(self.hashes) + len(self._asked) > _MOST:
            self.hashes.clear()
            self._asked.clear()
        now = time.monotonic()
        if len(self._given) > _MOST:
            self._given.clear()  # one that comes again has a second row, which does no harm
        self._asked.update((query_id, now) for query_id in asked)
        self._wanted.clear()
        new = {}
        for query_id, plain in plain_texts:
            if plain is None:
                continue
            number = self.hashes[query_id] = text_hash(plain)
            if number not in self._given:
                self._given.add(number)
                new[number] = plain
        return new

    def take_back(self, new: Collection[int]) -> None:
        """Texts that were new, by hash, did not arrive: they will be requested again."""
        if not new:
            return
        self._given.difference_update(new)
        for query_id in [each for each, number in self.hashes.items() if number in new]:
            del self.hashes[query_id]
            self._asked.pop(query_id, None)
