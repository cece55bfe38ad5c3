"""One finding: what was seen, what to do, who waited for whom at its worst, and its course."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pgtare.errors import UsageError
from pgtare.keeping.findings.history import KeptTraces
from pgtare.keeping.live import live_charts, time_window
from pgtare.keeping.live.page_parts import PageCommand, PageLink, PageSection, ViewPage
from pgtare.keeping.live.time_window import US, TimeWindow, shown
from pgtare.keeping.live.views import blockers, findings, recordings
from pgtare.keeping.live.views.view_request import ViewRequest
from pgtare.keeping.live.worker_process import LiveRow
from pgtare.kit import numbers

#: Kinds whose sessions wait for each other.
_LOCKS = ("lock", "hotlock")
#: A finding is computed from so much time before it is written, µs.
_COMPUTED_US = 30 * US
#: It is written no more often, µs.
_WRITTEN_US = 10 * US
_MOST_STEPS = 2000
_CLOSED = (
    "This finding is closed. The commands are of its time: look at what is there now before you "
    "run one."
)
_NO_TRACE = (
    "No trace of its sessions was kept. If the server's flight recorder is on "
    "(sql_trace.recorder) and has triggers (sql_trace.keep_…), it keeps some."
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    key, begin = request.words.get("key"), request.words.get("since")
    if not key or request.server is None:
        raise UsageError("a finding is missing: choose one in the table of findings")
    since_us = time_window.parse_time(begin, "since") if begin else None
    named: dict[str, Any] = {
        "finding": key,
        "since_from": since_us or 0,
        "since_to": since_us + US if since_us is not None else 1 << 62,
    }
    rows = await request.rows(
        "finding", only=request.of_server, window=findings.around(request.window), **named
    )
    if not rows:
        raise UsageError("no such finding was open in this window: choose a longer window")
    (row,) = rows
    # a server's clock may be ahead of the agent's
    whole = TimeWindow(min(row["begun_us"], row["seen_us"]) - US, row["seen_us"], "tick")
    course = await request.rows(
        "finding_shares",
        only=request.of_server,
        window=whole,
        step_us=max(_WRITTEN_US, (whole.to_us - whole.after_us) // _MOST_STEPS),
        **named,
    )
    row["worst_urgency"] = min(one["urgency"] for one in course)
    worst = max(course, key=lambda one: one["share_then"] or 0.0)
    pids = {pid for one in course for pid in one["held_up"] or ()}
    pids |= {who["pid"] for who in _roots(row) if who["pid"] is not None}
    sections = [
        _state(request, row, worst),
        _seen(row),
        _remedies(row),
        await _worst_second(request, row, worst, pids),
        *_course(request, row, course),
        await _traces(request, row, whole, pids),
        _more(request, row),
    ]
    return ViewPage(row["heading"], sections, request.alarms())


def _roots(row: LiveRow) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (row["holder"], row["queue_head"]) if text]


def _state(request: ViewRequest, row: LiveRow, worst: LiveRow) -> PageSection:
    """At a glance: how bad, since when, how much."""
    title = (
        f"{findings.worst_level(row)}, {findings.state(request, row)}, {findings.span_words(row)}"
    )
    parts = [f"on {row['host']}"]
    if row["share_now"] is not None:
        most = numbers.percent(100 * (worst["share_then"] or 0.0))
        parts.append(
            f"{numbers.percent(100 * row['share_now'])} of active time when written last, "
            f"{most} at most ({shown(worst['seen_us'])})"
        )
    if row["spent_s"]:
        parts.append(f"{numbers.duration(1e6 * row['spent_s'])} of active time in all")
    if row["left_s"] is not None:
        parts.append(f"reached in {numbers.duration(1e6 * row['left_s'])} at this rate")
    if row["times_open"] > 1:
        parts.append(f"open {row['times_open']} times")
    return PageSection(title[:1].upper() + title[1:], [f"{', '.join(parts)}."])


def _seen(row: LiveRow) -> PageSection:
    notes = [
        f"Why it matters: {row['reason']}.",
        f"{row['certainty'].capitalize()}: {row['grounds']}.",
    ]
    return PageSection("What was seen", notes, lines=row["seen_lines"].splitlines())


def _remedies(row: LiveRow) -> PageSection:
    commands = []
    for one in json.loads(row["cures"]):
        facts = [("does" if one["command"] else "do", one["does"])]
        facts += [(name, one[name]) for name in ("risk", "privilege")]
        commands.append(PageCommand(one["command"], [fact for fact in facts if fact[1]]))
    notes = [] if findings.is_open(row) else [_CLOSED]
    return PageSection("What to do", notes, commands=commands)


async def _worst_second(
    request: ViewRequest, row: LiveRow, worst: LiveRow, pids: set[int]
) -> PageSection:
    """The sessions in the second of the longest queue, shortly before it took the most."""
    at_us = worst["seen_us"]
    if row["sort"] in _LOCKS:
        before = TimeWindow(at_us - _COMPUTED_US, at_us, "tick")
        moments = await request.rows(
            "lock_moments", only=request.of_server, window=before, grain="tick", step_us=US
        )
        if moments:
            longest = max(moments, key=lambda one: (one["waiters"], one["longest_us"]))
            at_us = longest["longest_us"] + US - 1
    return await blockers.sessions_at(
        request, at_us, f"Its sessions at the worst second, {shown(at_us)} UTC", pids
    )


def _course(request: ViewRequest, row: LiveRow, course: Sequence[LiveRow]) -> list[PageSection]:
    points = [
        (one["seen_us"], 0.0 if one["is_closed"] else 100 * one["share_then"])
        for one in reversed(course)
        if one["share_then"] is not None
    ]
    if not points:
        return []
    points = [(row["begun_us"], points[0][1]), *points]
    if not findings.is_open(row):
        points[-1] = (row["ended_us"], 0.0)
    label = "Its share of active time over time, in percent."
    chart = live_charts.line_chart(
        "share", {"share": points}, request.window, "% of active time", label
    )
    return [
        PageSection("Its share over time", ("Written once a minute, or if it rises.",), chart=chart)
    ]


async def _traces(
    request: ViewRequest, row: LiveRow, whole: TimeWindow, pids: set[int]
) -> PageSection:
    kept = await request.rows(
        "recordings", only=request.of_server, window=whole, most=recordings.MOST_READ
    )
    rows = [one for one in kept if one["process"] in pids]
    section = recordings.section(replace(request, window=whole), rows, _NO_TRACE)
    if not row["linked"]:
        return section
    return replace(section, lines=KeptTraces.model_validate_json(row["linked"]).lines())


def _more(request: ViewRequest, row: LiveRow) -> PageSection:
    links = [
        PageLink("Activity at that time", request.href("/activity")),
        PageLink("Who blocks whom", request.href("/blockers")),
        PageLink("All findings", request.href("/findings")),
    ]
    if row["statement"]:
        links.append(
            PageLink("Its statement", request.href("/statement", query_id=row["statement"]))
        )
    if row["came_after"]:
        links.append(
            PageLink("What came before it", request.href("/finding", key=row["came_after"]))
        )
    return PageSection("More", links=links)
