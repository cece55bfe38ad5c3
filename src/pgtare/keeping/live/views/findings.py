"""What slowed servers in a window: the strip of open findings, their spans, and the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgtare.keeping.live.live_charts import ChartShade
from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageItem,
    PageLink,
    PageSection,
    PageTable,
    ViewPage,
    page_rows,
)
from pgtare.keeping.live.time_window import LAST_S, US, TimeWindow, iso, shown
from pgtare.keeping.live.views import recordings
from pgtare.keeping.live.views.view_request import ViewRequest
from pgtare.keeping.live.worker_process import LiveRow
from pgtare.kit import numbers

#: Rows from so long before and after a window tell which findings were open in it, µs: an open one
#: is written every minute, unless its server cannot be reached.
AROUND_US = 3600 * US
#: An open finding without a row for so long has a note, µs.
_OLD_US = 180 * US
#: Classes that take active time, or will: outage, active time, limit. Others are settings.
_URGENT = 2
_MOST_ITEMS, _MOST_SHADES = 8, 20
_COLORS = ("c7", "c2", "c5")
_CLASSES = ("outage", "active time", "limit", "setting", "information")
_COLUMNS = (
    PageColumn("title", "finding", of="heading"),
    PageColumn("level", "level", of=lambda row: worst_level(row)),
    PageColumn("class", "class", of=lambda row: _CLASSES[row["worst_urgency"]]),
    PageColumn("share", "largest share", "share", of="most_share"),
    PageColumn("aas", "most sessions", "aas", of="most_sessions"),
    PageColumn("state", "state"),
    PageColumn("since", "since", "time", of="begun_us"),
    PageColumn("until", "until", "time", of="ended_us"),
    PageColumn("episodes", "times open", "count", of="times_open"),
    PageColumn("server", "server", of="host"),
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    rows = [{**row, "state": state(request, row)} for row in await of_window(request)]
    table = PageTable(
        "findings",
        f"Findings that were open, {request.window.words()}, the most urgent first",
        _COLUMNS,
        page_rows(_COLUMNS, rows, lambda row: href(request, row)),
        empty="No finding was open in this window.",
    )
    kept = await request.rows("recordings", only=request.of_server)
    traces = recordings.section(request, kept, "No server kept a trace in this window.")
    return ViewPage("Findings", [PageSection("All", table=table), traces], request.alarms())


async def of_window(request: ViewRequest) -> list[LiveRow]:
    """The findings that were open within the window, the most urgent first."""
    window = request.window
    return await request.rows(
        "findings",
        only=request.of_server,
        window=around(window),
        after_us=window.after_us,
        until_us=window.to_us,
    )


def around(window: TimeWindow) -> TimeWindow:
    """The window in which rows of its findings are looked for."""
    return replace(window, after_us=window.after_us - AROUND_US, to_us=window.to_us + AROUND_US)


def strip(request: ViewRequest, rows: Sequence[LiveRow]) -> PageSection:
    """What is open now; of a window in the past, what was."""
    live = request.window.last is not None
    found = [row for row in rows if is_open_now(request, row) or not live]
    urgent = [row for row in found if row["urgency"] <= _URGENT]
    if live:
        urgent.sort(key=lambda row: (row["urgency"], -(row["share_now"] or 0.0)))
    items = [
        PageItem(
            row["severity"] if live else worst_level(row),
            row["heading"],
            href(request, row),
            _about(request, row, now=live),
        )
        for row in urgent[:_MOST_ITEMS]
    ]
    left = len(found) - len(items)
    links = [PageLink(f"{left} more", request.href("/findings"))] if left else []
    title = "Open findings" if live else "Findings of this window"
    notes = () if items else ("None that takes active time, and no limit that is near.",)
    return PageSection(title, notes, items=items, links=links)


def shades(request: ViewRequest, rows: Sequence[LiveRow]) -> list[ChartShade]:
    """When those were open that take active time."""
    return [
        ChartShade(
            row["begun_us"],
            _open_until(request, row),
            _COLORS[row["worst_urgency"]],
            f"{row['heading']}, {span_words(row)}",
        )
        for row in rows
        if row["worst_urgency"] <= _URGENT
    ][:_MOST_SHADES]


def is_open(row: LiveRow) -> bool:
    """Whether it was open when it was written last."""
    return bool(row["last_change"] != "close")


def is_open_now(request: ViewRequest, row: LiveRow) -> bool:
    """Whether it still is, as far as is known: its server was reached within the last hour."""
    return is_open(row) and request.newest_us - row["seen_us"] <= AROUND_US


def _open_until(request: ViewRequest, row: LiveRow) -> int:
    """When it was closed, or as far as is known."""
    if not is_open(row):
        return int(row["ended_us"])
    return request.window.to_us if is_open_now(request, row) else int(row["seen_us"])


def state(request: ViewRequest, row: LiveRow) -> str:
    """In a word or two; rows after a window of the past are not all read."""
    if not is_open(row):
        return "closed"
    return "open" if is_open_now(request, row) else "open then"


def span_words(row: LiveRow) -> str:
    """When it was open."""
    if is_open(row):
        return f"since {shown(row['begun_us'])}"
    return f"{shown(row['begun_us'])} to {shown(row['ended_us'])}"


def href(request: ViewRequest, row: LiveRow) -> str:
    """The finding's own page, in a window that shows it from its beginning."""
    words = {"server": row["host"], "key": row["finding"], "since": iso(row["begun_us"])}
    margin_us = 120 * US
    if not is_open(row) or request.window.last is None:
        ends = row["begun_us"] - margin_us, row["seen_us"] + margin_us
        return request.href(
            "/finding", **words, **{"last": None, "from": iso(ends[0]), "to": iso(ends[1])}
        )
    age_s = (request.newest_us - row["begun_us"] + margin_us) / US
    last = next((name for name, length_s in LAST_S.items() if length_s >= age_s), None)
    return request.href("/finding", **words, last=last or [*LAST_S][-1])


def worst_level(row: LiveRow) -> str:
    """Of its worst time; an outage that becomes smaller is written as a warning."""
    return "critical" if row["worst_urgency"] == 0 else str(row["severity"])


def _about(request: ViewRequest, row: LiveRow, *, now: bool) -> str:
    """Its figures, of now or the largest of its time."""
    names = ("share_now", "sessions_now") if now else ("most_share", "most_sessions")
    share, sessions = (row[name] for name in names)
    parts = []
    if share is not None:
        parts.append(f"{numbers.percent(100 * share)} of active time")
    if sessions is not None:
        parts.append(f"{sessions:.1f} sessions")
    if row["left_s"] is not None:
        parts.append(f"reached in {numbers.duration(1e6 * row['left_s'])} at this rate")
    parts.append(span_words(row))
    if is_open(row) and request.newest_us - row["seen_us"] > _OLD_US:
        parts.append(f"not seen after {shown(row['seen_us'])}")
    return ", ".join([*parts, row["host"]])
