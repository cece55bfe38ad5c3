"""A statement: its text, what it waited for, its trend, and which traces of it were kept."""

from __future__ import annotations

from pgtare.errors import UsageError
from pgtare.keeping.live.page_parts import PageSection, ViewPage
from pgtare.keeping.live.row_sources import BY_STATEMENT, SAMPLED
from pgtare.keeping.live.views import breakdown, event, recordings
from pgtare.keeping.live.views.view_request import MOST, ViewRequest

_NO_TEXT = "Its text is not known. If pg_stat_statements is loaded, the agent reads texts from it."
_NONE = (
    "No trace of this statement was kept in this window. If the server's flight recorder is on "
    "(sql_trace.recorder) and has triggers (sql_trace.keep_…), it keeps some of slow requests, "
    "errors and long waits for locks."
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    if "query_id" not in request.only or request.server is None:
        raise UsageError("a statement is missing: choose one in a table of statements")
    server, query_id = request.server, int(request.only["query_id"])
    known = await breakdown.texts(request, [{"statement": query_id}])
    text = known.get((server, query_id), "")
    sections = [PageSection("Text", () if text else (_NO_TEXT,), text=text)]
    counted = request.source("event")
    if counted.exact:
        words = "What it waited for"
        sections.append(await breakdown.section(request, "event", BY_STATEMENT, words, chart=True))
        sections += await event.latency_sections(request, BY_STATEMENT)
    words = "With its time on processors"
    sections.append(await breakdown.section(request, "type", SAMPLED, words))
    kept = await request.rows("recordings", only=request.of_server, most=recordings.MOST_READ)
    incidents = {row["shared"] for row in kept if row["statement"] == query_id} - {None}
    # with those of sessions that held it up
    rows = [row for row in kept if row["statement"] == query_id or row["shared"] in incidents]
    sections.append(recordings.section(request, rows[:MOST], _NONE))
    return ViewPage(f"Statement {query_id} on {server}", sections, request.alarms())
