"""A statement: its text, what it waited for, its trend, and what was recorded meanwhile."""

from __future__ import annotations

from pgtare.errors import UsageError
from pgtare.watching.live.page_parts import (
    PageColumn,
    PageRow,
    PageSection,
    PageTable,
    ViewPage,
)
from pgtare.watching.live.row_sources import BY_STATEMENT, SAMPLED
from pgtare.watching.live.views import breakdown, event
from pgtare.watching.live.views.view_request import ViewRequest

_RECORDINGS = (
    PageColumn("number", "number"),
    PageColumn("cause", "what triggered it"),
    PageColumn("started", "from", "time"),
    PageColumn("pid", "process"),
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    if "query_id" not in request.only or request.server is None:
        raise UsageError("a statement is missing: choose one in a table of statements")
    server, query_id = request.server, int(request.only["query_id"])
    known = await breakdown.texts(request, [{"statement": query_id}])
    text = known.get((server, query_id), "")
    missing = "" if text else "Its text is not known: pg_stat_statements has it, if it is loaded."
    sections = [PageSection("Text", (missing,) if missing else (), text=text)]
    counted = request.source("event")
    if counted.exact:
        sections += await breakdown.parts(
            request, "event", BY_STATEMENT, chart=True, title="What it waited for"
        )
        sections += await event.latency_sections(request, BY_STATEMENT)
    sections += await breakdown.parts(
        request, "type", SAMPLED, chart=False, title="With its time on processors"
    )
    sections.append(await _recordings(request))
    return ViewPage(f"Statement {query_id} on {server}", sections, request.alarms())


async def _recordings(request: ViewRequest) -> PageSection:
    rows = await request.rows("recordings", only=request.of_server)
    lines = [
        PageRow([row["recording"], row["trigger_words"], row["begun_us"], str(row["process"])])
        for row in rows
    ]
    table = PageTable(
        "recordings",
        "Traces that the server kept in this window",
        _RECORDINGS,
        lines,
        empty="None is known. The flight recorder keeps traces; see `pgtare trace kept`.",
    )
    return PageSection("Recordings", table=table)
