"""Traces that servers kept because a trigger of the flight recorder fired."""

from __future__ import annotations

from collections.abc import Sequence

from pgtare.keeping.live.page_parts import PageColumn, PageSection, PageTable, page_rows
from pgtare.keeping.live.views.view_request import SESSION_COLUMNS, STATEMENT_COLUMN, ViewRequest
from pgtare.keeping.live.worker_process import LiveRow

#: Recordings that are read to choose from.
MOST_READ = 10_000
_COLUMNS = (
    PageColumn("number", "number", of="recording"),
    PageColumn("cause", "what triggered it", of="trigger_words"),
    PageColumn("detail", "how much", of="how_much"),
    PageColumn("started", "when", "time", of="begun_us"),
    *SESSION_COLUMNS,
    STATEMENT_COLUMN,
    PageColumn("bytes", "in memory", "bytes", of=lambda row: row["size_bytes"] or None),
    PageColumn("file", "file on the server", of="place"),
)
_NOTE = (
    "sql_trace kept these because a trigger fired. Show one with pgtare trace kept NUMBER --dsn …, "
    "and take it with --out FILE.pgtrace."
)


def section(request: ViewRequest, rows: Sequence[LiveRow], empty: str) -> PageSection:
    """A section with these recordings. empty: what to say if there are none."""
    lines = page_rows(_COLUMNS, rows, request.statement_href)
    caption = f"Traces that servers kept, {request.window.words()}"
    table = PageTable("recordings", caption, _COLUMNS, lines, empty=empty)
    return PageSection("Recordings", (_NOTE,) if rows else (), table=table)
