"""Activity: open findings, average active sessions by wait class against processors, and gaps."""

from __future__ import annotations

from dataclasses import replace

from pgtare.keeping.live import live_charts
from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageLink,
    PageSection,
    PageTable,
    ViewPage,
    page_rows,
)
from pgtare.keeping.live.time_window import DAY_US
from pgtare.keeping.live.views import breakdown, findings
from pgtare.keeping.live.views.view_request import ViewRequest

_GAPS = (
    PageColumn("server", "server", of="host"),
    PageColumn("kind", "what happened", of="reason"),
    PageColumn("from_ts", "from", "time", of="since_us"),
    PageColumn("ts", "to", "time", of="until_us"),
    PageColumn("detail", "what is missing, and why", of="words"),
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    source = request.source("type")
    step_us = request.window.step_us(source.finest_s)
    grain = request.window.grain
    part = await request.within(source.rows, grain)
    series = await breakdown.series(part, "type", source, grain, step_us)
    figures = await request.rows("transactions", only=request.of_server)
    shown = set(request.watched(source.ticks))
    counts = [row["most_processors"] for row in figures if row["host"] in shown]
    processors = (
        sum(counts) if counts and len(counts) == len(shown) and None not in counts else None
    )
    found = await findings.of_window(request)
    shades = findings.shades(request, found)
    marked = [*breakdown.cut_shades(request, part), *shades]
    chart = live_charts.activity_chart(
        "activity", series, request.window, step_us, processors, by_class=True, shades=marked
    )
    classes = await breakdown.section(request, "type", source, "Average active sessions")
    more = [
        PageLink(f"by {words}", request.href("/breakdown", by=name))
        for name, words in (("event", "event"), ("query_id", "statement"), ("role", "role"))
    ]
    listed = await request.within(source.rows)
    notes = [source.note, *breakdown.cut_notes(request, source, listed, part)]
    notes.append("Drag along the chart to select a window.")
    if processors:
        notes.append(f"The dashed line is the number of processors: {processors:g}.")
    if shades:
        notes.append("Shaded: when a finding was open that took active time.")
    sections = [
        findings.strip(request, found),
        replace(classes, notes=notes, chart=chart),
        await breakdown.section(request, "event", source, "Events"),
        PageSection("What sessions waited for", links=more),
        breakdown.rows_links(request),
        *await _gaps(request),
    ]
    return ViewPage("Activity", sections, request.alarms(source))


async def _gaps(request: ViewRequest) -> list[PageSection]:
    """A section on gaps, if there are any."""
    window = request.window
    # gaps may end later than the newest row, if their server has not been reached since
    ended = replace(window, to_us=max(window.to_us, request.newest_us + DAY_US))
    rows = await request.rows("gaps", only=request.of_server, window=ended, until_us=window.to_us)
    if not rows:
        return []
    table = PageTable("gaps", "What is missing", _GAPS, page_rows(_GAPS, rows))
    return [PageSection("Gaps", table=table)]
