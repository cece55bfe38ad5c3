"""Traces that servers kept because a trigger of the flight recorder fired."""

from __future__ import annotations

from collections.abc import Sequence

from pgtare.keeping.live.page_parts import PageColumn, PageRow, PageSection, PageTable
from pgtare.keeping.live.views.view_request import SESSION_COLUMNS, ViewRequest, session_values
from pgtare.keeping.live.worker_process import LiveRow

#: Recordings that are read to choose from.
MOST_READ = 10_000
_COLUMNS = (
    PageColumn("number", "number"),
    PageColumn("cause", "what triggered it"),
    PageColumn("detail", "how much"),
    PageColumn("started", "when", "time"),
    *SESSION_COLUMNS,
    PageColumn("query_id", "statement"),
    PageColumn("bytes", "in memory", "bytes"),
    PageColumn("file", "file on the server"),
)
_NOTE = (
    "sql_trace kept these because a trigger fired. Show one with pgtare trace kept NUMBER --dsn …, "
    "and take it with --out FILE.pgtrace."
)


def section(request: ViewRequest, rows: Sequence[LiveRow], empty: str) -> PageSection:
    """A section with these recordings. empty: what to say if there are none."""
    lines = [PageRow(_values(row), request.statement_href(row)) for row in rows]
    caption = f"Traces that servers kept, {request.window.words()}"
    table = PageTable("recordings", caption, _COLUMNS, lines, empty=empty)
    return PageSection("Recordings", (_NOTE,) if rows else (), table=table)


def _values(row: LiveRow) -> list[object]:
    return [
        str(row["recording"]),
        row["trigger_words"],
        row["how_much"],
        row["begun_us"],
        *session_values(row),
        str(row["statement"] or ""),
        row["size_bytes"] or None,
        row["place"] or "",
    ]
