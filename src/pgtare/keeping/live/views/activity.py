"""Activity: open findings, average active sessions by wait class against processors, and gaps."""

from __future__ import annotations

from dataclasses import replace

from pgtare.keeping.live import live_charts
from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageLink,
    PageRow,
    PageSection,
    PageTable,
    ViewPage,
)
from pgtare.keeping.live.time_window import DAY_US
from pgtare.keeping.live.views import breakdown, findings
from pgtare.keeping.live.views.view_request import ViewRequest

_GAPS = (
    PageColumn("server", "server"),
    PageColumn("kind", "what happened"),
    PageColumn("from_ts", "from", "time"),
    PageColumn("ts", "to", "time"),
    PageColumn("detail", "what is missing, and why"),
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    source = request.source("type")
    step_us = request.window.step_us(source.finest_s)
    part = await request.within(source.rows)
    series = await part.rows(
        "series",
        identifiers={"rows": source.rows, "dimension": "type"},
        only=request.only,
        grain=request.window.grain,
        step_us=step_us,
        source=source.ticks,
    )
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
    (classes,) = await breakdown.parts(
        request, "type", source, chart=False, title="Average active sessions"
    )
    events = await breakdown.parts(request, "event", source, chart=False, title="Events")
    more = [
        PageLink(f"by {words}", request.href("/breakdown", by=name))
        for name, words in (("event", "event"), ("query_id", "statement"), ("role", "role"))
    ]
    rows = breakdown.rows_links(request)
    notes = [source.note, *breakdown.cut_notes(request, part, source, charted=True)]
    notes.append("Drag along the chart to select a window.")
    if processors:
        notes.append(f"The dashed line is the number of processors: {processors:g}.")
    if shades:
        notes.append("Shaded: when a finding was open that took active time.")
    first = PageSection(classes.title, notes, classes.quality, chart, classes.table)
    sections = [
        findings.strip(request, found),
        first,
        *events,
        PageSection("What sessions waited for", links=more),
        rows,
    ]
    return ViewPage("Activity", [*sections, *await _gaps(request)], request.alarms(source))


async def _gaps(request: ViewRequest) -> list[PageSection]:
    """A section on gaps, if there are any."""
    window = request.window
    # gaps may end later than the newest row, if their server has not been reached since
    ended = replace(window, to_us=max(window.to_us, request.newest_us + DAY_US))
    rows = await request.rows("gaps", only=request.of_server, window=ended, until_us=window.to_us)
    if not rows:
        return []
    lines = [
        PageRow([row["host"], row["reason"], row["since_us"], row["until_us"], row["words"]])
        for row in rows
    ]
    return [PageSection("Gaps", table=PageTable("gaps", "What is missing", _GAPS, lines))]
