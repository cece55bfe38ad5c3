"""Findings of the doctor with their remedies, and traces that servers kept."""

from __future__ import annotations

from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageRow,
    PageSection,
    PageTable,
    ViewPage,
)
from pgtare.keeping.live.time_window import shown
from pgtare.keeping.live.views import recordings
from pgtare.keeping.live.views.view_request import ViewRequest

_COLUMNS = (
    PageColumn("severity", "severity"),
    PageColumn("title", "finding"),
    PageColumn("server", "server"),
    PageColumn("seen", "seen", "count"),
    PageColumn("first_ts", "first", "time"),
    PageColumn("last_ts", "last", "time"),
    PageColumn("detail", "what was seen, and the remedy"),
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    rows = await request.rows("findings", only=request.of_server)
    lines = [
        PageRow(
            [
                row["level"],
                row["heading"],
                row["host"],
                row["times_seen"],
                row["first_us"],
                row["last_us"],
                row["words"],
            ]
        )
        for row in rows
    ]
    table = PageTable(
        "findings",
        f"What the doctor found, {request.window.words()}",
        _COLUMNS,
        lines,
        empty="Nothing was found in this window. The doctor looks once an hour.",
    )
    details = [
        PageSection(
            f"{row['heading']} ({row['host']})",
            (f"{row['level']}, last seen {shown(row['last_us'])} UTC",),
            text=row["words"],
        )
        for row in rows[:20]
    ]
    kept = await request.rows("recordings", only=request.of_server)
    traces = recordings.section(request, kept, "No server kept a trace in this window.")
    sections = [PageSection("All", table=table), *details, traces]
    return ViewPage("Findings", sections, request.alarms())
