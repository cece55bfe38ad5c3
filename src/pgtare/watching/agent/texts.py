"""Texts of statements: those of pg_stat_statements, without literals and without secrets."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable

from pgtare.server.sql_text import normalised

#: Statements that can hold a password where no literal is: their texts are left out.
_SECRET = re.compile(
    r"\b(?:CREATE|ALTER)\s+(?:ROLE|USER|GROUP|SUBSCRIPTION|SERVER)\b", re.IGNORECASE
)
#: A text that was not there is asked for again after this many s.
_AGAIN_S = 1800.0
#: More statements than that are not remembered.
_MOST = 50_000


def text_hash(text: str) -> int:
    """A number of a text, signed with 64 bits: the same on every server."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def storable(text: str) -> str | None:
    """A text without its literals; None if it is of a kind that is left out."""
    plain = normalised(text)
    return None if _SECRET.search(plain) else plain


class StatementTexts:
    """Which texts of a server are known. hashes: by query identifier."""

    def __init__(self) -> None:
        self.hashes: dict[int, int] = {}
        self._asked: dict[int, float] = {}
        self._given: set[int] = set()

    def unknown(self, query_ids: Iterable[int]) -> list[int]:
        """Those whose texts should be asked for now."""
        now = time.monotonic()
        return [
            query_id
            for query_id in query_ids
            if query_id
            and query_id not in self.hashes
            and now - self._asked.get(query_id, -_AGAIN_S) >= _AGAIN_S
        ]

    def learn(self, asked: Iterable[int], found: Iterable[tuple[int, str]]) -> dict[int, str]:
        """Note the texts of those that were asked for. Returns the texts that are new, by hash."""
        if len(self.hashes) + len(self._asked) > _MOST:
            self.hashes.clear()
            self._asked.clear()
        now = time.monotonic()
        self._asked.update((query_id, now) for query_id in asked)
        new = {}
        for query_id, text in found:
            plain = storable(text)
            if plain is None:
                continue
            number = self.hashes[query_id] = text_hash(plain)
            if number not in self._given:
                self._given.add(number)
                new[number] = plain
        return new
