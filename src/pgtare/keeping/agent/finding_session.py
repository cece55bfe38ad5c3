"""Reads for findings, in the agent's session, without holding up its other looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pgtare.keeping.agent.server_session import ServerSession
from pgtare.observing.doctor.session import Session
from pgtare.observing.findings.queries import Query
from pgtare.observing.findings.read import Unreadable

#: A query that the server gave up is not sent again for so long, in s: at first, and at most.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20.0, 320.0


class SlowQueries:
    """The queries for findings that a server gave up, and when each may be sent again."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}

    def require_due(self, query: Query) -> None:
        """Raise Unreadable if it must wait."""
        if time.monotonic() < self._pauses.get(query.name, (0.0, 0.0))[1]:
            raise Unreadable("it took too long, so it is not read again for a while")

    def note(self, query: Query, *, slow: bool) -> None:
        """Note whether the server gave it up."""
        pause_s, _ = self._pauses.pop(query.name, (_FIRST_PAUSE_S / 2, 0.0))
        if slow:
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            self._pauses[query.name] = pause_s, time.monotonic() + pause_s


class FindingSession(Session):
    """The agent's session, as what reads for findings sees it.

    between: called before each query, and makes the looks that are due. Time counts as `part`.
    limit_s: after so long the server gives a query up.
    """

    def __init__(
        self,
        session: ServerSession,
        part: str,
        limit_s: float,
        slow: SlowQueries,
        between: Callable[[], None],
    ) -> None:
        def count(seconds: float) -> None:
            session.seconds[part] += seconds

        super().__init__(session.conn, limit_s, count)
        self._slow, self._between = slow, between

    def rows(
        self, query: Query, schema: str | None = None, values: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows of a query, its extension found in `schema`. Raises Unreadable."""
        self._between()
        self._slow.require_due(query)
        try:
            rows = super().rows(query, schema, values)
        except Unreadable as ex:
            self._slow.note(query, slow=ex.slow)
            raise
        self._slow.note(query, slow=False)
        return rows
