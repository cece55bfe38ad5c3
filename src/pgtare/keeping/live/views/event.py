"""An event: how long its waits took, over time, and which statements and sessions waited."""

from __future__ import annotations

from collections.abc import Sequence

from pgtare.errors import UsageError
from pgtare.keeping.live import live_charts
from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageLink,
    PageRow,
    PageSection,
    PageTable,
    ViewPage,
    page_rows,
)
from pgtare.keeping.live.row_sources import SAMPLED, RowSource, row_source
from pgtare.keeping.live.views import breakdown
from pgtare.keeping.live.views.view_request import SESSION_COLUMNS, STATEMENT_COLUMN, ViewRequest

#: A histogram over many hours reads hours if there are more rows of minutes than this.
_MOST_COUNTED = 1_000_000
#: The percentiles that are shown.
_SHARES = (0.5, 0.9, 0.99, 0.999)
_PERCENTILES = (
    PageColumn("share", "of the waits", "share"),
    PageColumn("from_ns", "took at least", "ns"),
    PageColumn("below_ns", "and less than", "ns"),
)
_CLASSES = (
    PageColumn("from_ns", "from", "ns"),
    PageColumn("below_ns", "below", "ns"),
    PageColumn("calls", "waits", "count"),
    PageColumn("share", "share", "share"),
)
_SESSIONS = (
    *SESSION_COLUMNS,
    STATEMENT_COLUMN,
    PageColumn("seen", "seen", "count", of="times_seen"),
    PageColumn("last_ts", "last", "time", of="last_us"),
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    if "event" not in request.only:
        raise UsageError("an event is missing: choose one in a table of events")
    source = request.source("event")
    sections = await latency_sections(request, source) if source.exact else []
    if not sections:
        words = (
            "Durations of waits are known only if the server has the module wait_event_timing. "
            "Samples do not show them."
        )
        sections = [PageSection("Latency", (words,))]
    by_statement = request.source("query_id")
    waited = await breakdown.section(request, "query_id", by_statement, "Statements that waited")
    others = [
        PageLink(f"by {words}", request.href("/breakdown", **{**request.only, "by": name}))
        for name, words in (
            ("backend_type", "type of process"),
            ("role", "role"),
            ("database", "database"),
            ("server", "server"),
        )
    ]
    sections += [waited, await _sessions(request), PageSection("Who else", links=others)]
    return ViewPage(f"Event {request.only['event']}", sections, request.alarms(source))


async def latency_sections(request: ViewRequest, source: RowSource) -> list[PageSection]:
    """Heat map and percentiles of the waits that the request is filtered by; none if none ended."""
    grain, step_us = request.buckets(source, _MOST_COUNTED)
    part = await request.within(source.rows, grain)
    found = await part.rows(
        "histogram",
        identifiers={"rows": source.rows},
        only=request.only,
        grain=grain,
        step_us=step_us,
    )
    counts = [sum(row[f"in_h{number:02d}"] or 0 for row in found) for number in range(32)]
    total = sum(counts)
    if total <= 0:
        return []
    chart = live_charts.heat_chart(found, request.window, step_us)
    lines = [PageRow([share, *bounds_ns(percentile_class(counts, share))]) for share in _SHARES]
    ended = sum(row["waits_ended"] for row in found)
    waited = sum(row["waited_ns"] for row in found)
    mean = waited / ended if ended else 0.0
    caption = f"{ended:,} waits ended; {mean / 1000:,.1f} µs on average"
    classes = [
        PageRow([*bounds_ns(number), count, count / total])
        for number, count in enumerate(counts)
        if count
    ]
    notes = ["Every wait is counted in one of 32 classes of duration. Nothing is sampled."]
    return [
        PageSection(
            "Latency",
            [*notes, *breakdown.cut_notes(request, source, part, request)],
            "exact",
            chart,
            PageTable("percentiles", caption, _PERCENTILES, lines),
        ),
        PageSection(
            "All classes", table=PageTable("histogram", "Waits by duration", _CLASSES, classes)
        ),
    ]


def percentile_class(counts: Sequence[int], share: float) -> int:
    """The class in which a percentile lies, exactly.

    Counts may be negative, as differences are, but not their sum.
    """
    total = sum(counts)
    seen = 0
    for number, count in enumerate(counts):
        seen += count
        if seen >= share * total:
            return number
    raise AssertionError


def bounds_ns(number: int) -> tuple[int, int | None]:
    """The ends of a class, ns; the last one has no upper end."""
    low = live_charts.BOUNDS_NS[number - 1] if number else 0
    return low, live_charts.BOUNDS_NS[number] if number < len(live_charts.BOUNDS_NS) else None


async def _sessions(request: ViewRequest) -> PageSection:
    known = {name: value for name, value in request.only.items() if name != "kind"}
    row_source(["event"], list(known), "sampled", False)
    rows = await request.rows("sessions", only=known, grain="tick")
    lines = page_rows(_SESSIONS, rows)
    empty = "No session was sampled in this event. Samples are kept for two days."
    table = PageTable(
        "sessions", "Sessions that were sampled in this event", _SESSIONS, lines, empty=empty
    )
    return PageSection("Sessions that waited", (SAMPLED.note,), "sampled", table=table)
