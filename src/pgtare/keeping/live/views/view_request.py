"""What every view is given: the window, the filters, the spool's rows, and addresses for links."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pgtare.errors import MeasurementError, UsageError
from pgtare.keeping.live import page_parts, row_sources, spool_views, time_window
from pgtare.keeping.live.page_parts import PageColumn
from pgtare.keeping.live.row_sources import RowSource
from pgtare.keeping.live.spool_views import Grain
from pgtare.keeping.live.time_window import TimeWindow
from pgtare.keeping.live.worker_process import LiveRow, WorkerProcess
from pgtare.keeping.spool.tables import TABLES

#: The columns of a table of sessions that say which session a row is of.
SESSION_COLUMNS = (
    PageColumn("pid", "process", of="process"),
    PageColumn("server", "server", of="host"),
    PageColumn("role", "role", of="user_role"),
    PageColumn("database", "database", of="base"),
    PageColumn("application", "application", of="program"),
)
STATEMENT_COLUMN = PageColumn("query_id", "statement", of=lambda row: row["statement"] or "")
#: For so long samples are kept, unless they are kept longer, µs.
_SAMPLES_KEPT_US = (TABLES["sessions"].kept_s or 0) * time_window.US
#: Rows that a table of a view has at most.
MOST = 200
#: Longer windows may have charts of hours, s.
_HOURS_S = 6 * 3600.0
_MINUTE_US = 60 * time_window.US


@dataclass
class ViewRequest:
    """One request for a view."""

    path: str
    words: Mapping[str, str]
    worker: WorkerProcess
    spans: Mapping[str, list[int]]
    newest_us: int
    window: TimeWindow
    is_gone: Callable[[], Awaitable[bool]]
    """whether nobody waits for the answer any more"""
    only: dict[str, str | int]
    left_out: list[str] = field(default_factory=list)
    dropped_us: Mapping[str, int] = field(default_factory=dict)
    """up to when rows of a table were dropped, because they were old or for room"""
    coverage: list[LiveRow] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    """segments of the spool that answers lack, up to now"""

    @classmethod
    async def of(
        cls,
        path: str,
        words: Mapping[str, str],
        worker: WorkerProcess,
        now_us: int,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> ViewRequest:
        """Understand an address. Raises UsageError, and MeasurementError if nothing answers."""
        state = await worker.state()
        spans: dict[str, list[int]] = state["spans"]
        looks = [spans[name][1] for name in ("ticks", "sessions", "waits") if name in spans]
        newest_us = min(now_us, max(looks, default=now_us))
        window = time_window.window_of(words, newest_us, spans)
        request = cls(path, words, worker, spans, newest_us, window, is_gone, _only(words))
        request.left_out = state.get("left_out", [])
        request.dropped_us = state.get("dropped_us", {})
        request.coverage = await request.rows("coverage")
        return request

    async def rows(
        self,
        name: str,
        *,
        identifiers: Mapping[str, str] | None = None,
        only: Mapping[str, str | int] | None = None,
        window: TimeWindow | None = None,
        grain: Grain = "hour",
        **values: Any,
    ) -> list[LiveRow]:
        """The answer to a query of this window. grain: as coarse as the rows may be.

        Raises MeasurementError, also if the browser has gone: others wait for the worker.
        """
        if await self.is_gone():
            raise MeasurementError("the browser no longer waits for this page")
        rows, damaged = await self.worker.answer(
            {
                "query": name,
                "window": (window or self.window).span,
                "grain": grain,
                "identifiers": identifiers or {},
                "only": only or {},
                "values": {"most": MOST, **values},
            }
        )
        self.damaged.update(damaged)
        return rows

    @property
    def server(self) -> str | None:
        """The server that it is filtered by."""
        found = self.only.get("server")
        return None if found is None else str(found)

    @property
    def of_server(self) -> dict[str, str | int]:
        """The filter by server alone."""
        return {} if self.server is None else {"server": self.server}

    @property
    def servers(self) -> list[str]:
        """All servers that were watched in the window."""
        return sorted({row["host"] for row in self.coverage})

    def servers_until(self, last_us: int) -> list[str]:
        """Servers among those that are shown whose newest rows are from this time or before."""
        newest: dict[str, int] = {}
        for row in self.coverage:
            newest[row["host"]] = max(newest.get(row["host"], 0), row["last_us"])
        return sorted(
            host for host, us in newest.items() if us <= last_us and self.server in (None, host)
        )

    def watched(self, ticks: str) -> list[str]:
        """Servers that the rows of these ticks are of, among those that are shown."""
        return sorted(
            row["host"]
            for row in self.coverage
            if row["origin"] == ticks
            and row["watched_ns"] > 0
            and self.server in (None, row["host"])
        )

    def source(self, *dimensions: str) -> RowSource:
        """Which rows answer by these dimensions, filtered as the request is."""
        only = {f"{name}={value}" for name, value in self.only.items()}
        wanted = self.words.get("source", "")
        return row_sources.row_source(dimensions, only, wanted, bool(self.watched("waits")))

    async def within(self, rows: str, grain: Grain = "hour") -> ViewRequest:
        """The same for the part of the window that has such rows, if that is not all of it.

        rows: a relation, as `samples`; grain: as it is asked for. They may be kept for less time
        than the ticks that say how long servers were watched.
        """
        after_us, to_us = self._kept_samples() if rows == "samples" else self._kept(rows, grain)
        if after_us <= self.window.after_us and to_us == self.window.to_us:
            return self
        after_us = -(-after_us // _MINUTE_US) * _MINUTE_US  # ticks may be there as minutes alone
        window = replace(self.window, after_us=min(after_us, to_us), to_us=to_us, last=None)
        part = replace(self, window=window)
        part.coverage = await part.rows("coverage")
        return part

    def _kept_samples(self) -> tuple[int, int]:
        """From when on there are samples, in the window; without one, nobody was active."""
        kept_us = self.newest_us - _SAMPLES_KEPT_US
        of_rows = self.spans.get("sessions", [kept_us])[0] - time_window.US
        first_us = max(self._gone_us("sessions"), min(of_rows, kept_us))
        return min(first_us, self.window.to_us), self.window.to_us

    def _kept(self, rows: str, grain: Grain) -> tuple[int, int]:
        """The longest part of the window of which no table has lost what is read of it.

        Minutes may be gone, and hours there.
        """
        after_us, to_us = self.window.after_us, self.window.to_us
        rolled = dict.fromkeys(spool_views.levels(rows, grain), self.newest_us)
        longest, begin, end = (to_us, to_us), after_us, after_us
        for span in spool_views.spans(rows, after_us, to_us, grain, rolled):
            gone_us = self._gone_us(span.table)
            if gone_us > span.after_us:
                begin = min(gone_us, span.to_us)
            end = span.to_us
            longest = max(longest, (begin, end), key=lambda one: one[1] - one[0])
        return longest

    def _gone_us(self, table: str) -> int:
        """Up to when rows of a table were dropped."""
        first_us = self.dropped_us.get(table, 0)
        return 0 if first_us > self.newest_us else first_us  # a clock was ahead

    def buckets(self, source: RowSource, most_rows: int) -> tuple[Grain, int]:
        """The grain of a chart's rows, and the length of its buckets in µs.

        In windows of many hours it is hours if more rows than these would have to be read.
        """
        tables = {"waits": "waits_1m", "statements": "statements"}
        found = self.spans.get(tables.get(source.rows, ""))
        if found is not None and self.window.seconds > _HOURS_S:
            first_us, last_us, rows = found
            length_us = max(last_us - first_us, 1)
            shared_us = min(last_us, self.window.to_us) - max(first_us, self.window.after_us)
            if rows * max(shared_us, 0) > most_rows * length_us:
                return "hour", self.window.step_us(3600)
        return self.window.grain, self.window.step_us(source.finest_s)

    def alarms(self, source: RowSource | None = None) -> list[str]:
        """What a reader must know before the figures."""
        found = []
        if self.left_out:
            found.append(
                f"Not in these figures, because they came only in part: "
                f"{', '.join(self.left_out)}. `pgtare store repair` lets the agent send them again."
            )
        if not self.coverage:
            found.append(
                "No server was watched in this window. Choose another window, or check that the "
                "agent is running."
            )
        elif source is not None:
            missing = sorted(set(self.watched("sessions")) - set(self.watched(source.ticks)))
            if missing:
                found.append(
                    f"Not in these figures: {', '.join(missing[:5])}"
                    f"{' and others' if len(missing) > 5 else ''}. There are only samples of "
                    "these. Choose one server, or samples only."
                )
        return found

    def href(self, path: str, **changes: Any) -> str:
        """An address with the same window and server."""
        return page_parts.address(path, {**self.window.address(), **self.of_server, **changes})

    def statement_href(self, row: LiveRow) -> str | None:
        """The statement of a row with host and statement, if it is known."""
        if not row["statement"]:
            return None
        return self.href("/statement", server=row["host"], query_id=row["statement"])

    def same(self, **changes: Any) -> str:
        """The address of this view with some words changed; None leaves one out."""
        kept = {name: value for name, value in self.words.items() if name != "table"}
        return page_parts.address(self.path, {**kept, **changes})

    def in_window(self, window: TimeWindow) -> str:
        """The address of this view for another window."""
        return self.moved(window.address())

    def moved(self, words: Mapping[str, str]) -> str:
        """The same for a window by the words of an address."""
        return self.same(**{"last": None, "from": None, "to": None, "at": None, **words})


def _only(words: Mapping[str, str]) -> dict[str, str | int]:
    found: dict[str, str | int] = {n: words[n] for n in row_sources.FILTERS if words.get(n)}
    if "query_id" in found:
        try:
            number = found["query_id"] = int(found["query_id"])
        except ValueError as ex:
            raise UsageError("query_id is a whole number") from ex
        if not -(1 << 63) <= number < 1 << 63:
            raise UsageError("query_id is a number of 64 bits")
    return found
