"""The bill: what observing costs here, as far as the agent can tell of itself."""

from __future__ import annotations

import json

from pgtare.keeping.live import live_charts
from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageRow,
    PageSection,
    PageTable,
    ViewPage,
)
from pgtare.keeping.live.views.view_request import ViewRequest
from pgtare.keeping.live.worker_process import LiveRow
from pgtare.kit import numbers

_FIGURES = (
    PageColumn("server", "server"),
    PageColumn("kind", "figure"),
    PageColumn("value", "total"),
    PageColumn("per_hour", "per hour"),
    PageColumn("largest", "largest"),
    PageColumn("readings", "readings", "count"),
)
_SETTINGS = (
    PageColumn("server", "server"),
    PageColumn("name", "setting"),
    PageColumn("value", "value"),
    PageColumn("since", "seen since", "time"),
)
_WORDS = {
    "cpu": "processor time of the agent",
    "memory": "memory of the agent",
    "commit": "time of commits to the spool",
    "rows": "rows",
    "servers": "servers to watch",
    "connected": "servers connected",
}
_NOTES = (
    "What the agent measures of itself. A look is one short transaction on the server; its time "
    "includes the network.",
    "pgtare weigh measures what the instruments on a server cost its load. pgtare bill adds that "
    "up, and the agent.",
)


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    rows = await request.rows("agent_figures")
    chosen = [row for row in rows if not row["host"] or request.server in (None, row["host"])]
    read_ns = {
        row["host"]: row["watched_ns"] for row in request.coverage if row["origin"] == "waits"
    }
    lines = [_line(row, read_ns.get(row["host"], 0)) for row in chosen]
    step_us = request.window.step_us()
    over_time = await request.rows("agent_cost", step_us=step_us)
    points = [(row["bucket_us"], row["cores"]) for row in over_time]
    chart = None
    if points:
        chart = live_charts.line_chart(
            "cores",
            {"agent": points},
            request.window,
            "cores",
            "Processor time of the agent over time, in cores; of several agents their sum.",
        )
    table = PageTable(
        "bill",
        f"{request.window.words()}. {_cores(rows)}",
        _FIGURES,
        lines,
        empty="The agent's own figures are kept for seven days; there are none in this window.",
    )
    sections = [PageSection("The agent", _NOTES, "", chart, table)]
    sections.append(await _settings(request))
    return ViewPage("The bill", sections, request.alarms())


def _cores(rows: list[LiveRow]) -> str:
    for row in rows:
        if row["host"] == "" and row["figure"] == "cpu" and row["each_ns"] is not None:
            who = "The agent" if row["spools"] == 1 else f"{row['spools']} agents together"
            return f"{who} took {numbers.percent(1e11 * row['each_ns'])} of a core."
    return ""


def _line(row: LiveRow, read_ns: int) -> PageRow:
    """read_ns: how long the server's waits were read. What they lack has rows only if it grew."""
    kind, unit = row["figure"], row["measured_in"]
    words = _WORDS.get(kind, kind)
    if kind.startswith("look_"):
        words = f"time of looks: {kind.removeprefix('look_')}"
    lost = unit in ("waits", "entries")
    adds_up = lost or unit in ("s", "rows")
    each_ns = row["each_ns"]
    if lost:
        each_ns = row["total_value"] / read_ns if read_ns else None
    total = _amount(row["total_value"], unit) if adds_up else ""
    each = _amount(3.6e12 * each_ns, unit) if adds_up and each_ns is not None else ""
    largest = _amount(row["largest"], unit)
    return PageRow([row["host"] or "(agent)", words, total, each, largest, row["readings"]])


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "s":
        return numbers.duration(1e6 * value)
    if unit == "bytes":
        return numbers.volume(value)
    return f"{value:,.6g} {unit}"


async def _settings(request: ViewRequest) -> PageSection:
    found = await request.rows("observing_settings", only=request.of_server, grain="hour")
    newest: dict[tuple[str, str], tuple[str, int]] = {}
    for row in found:
        try:
            settings = json.loads(row["content"])
        except ValueError:
            continue
        for name, value in settings.items() if isinstance(settings, dict) else ():
            before = newest.get((row["host"], name))
            if before is None or before[0] != str(value):
                newest[row["host"], name] = str(value), row["seen_us"]
    lines = [PageRow([host, name, *values]) for (host, name), values in sorted(newest.items())]
    table = PageTable(
        "settings",
        "Settings that observe the server, as noted in this window",
        _SETTINGS,
        lines,
        empty="They are noted when they change. Choose a longer window.",
    )
    return PageSection("What is switched on", table=table)
