"""Predictions for EXPLAIN, track_io_timing and captured waits, as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.clock.calls import Range
from pgtare.clock.check import Measured, Progress
from pgtare.clock.predict import Clock, ExplainCost, IoCost, NodeCost
from pgtare.report import numbers

#: Nodes shown; what the others cost is summed up.
_MOST_NODES = 15


def explain_view(cost: ExplainCost, most: int = _MOST_NODES) -> RenderableType:
    """What TIMING adds to a plan, and which nodes cause it."""
    actual = "" if cost.plan.analyzed else " by the planner's estimates"
    head = (
        f"EXPLAIN (ANALYZE, TIMING) costs {span(cost.wall_ms)} more than TIMING OFF{actual}:"
        f" {cost.calls.likely:,.0f} calls of {_ns(cost.call_ns)}"
    )
    if cost.percent is not None and cost.bare_ms is not None:
        head += f"; {cost.percent.likely:,.0f} % of {_ms(cost.bare_ms)} without it"
    parts: list[RenderableType] = [Text(head + "."), _nodes(cost, most)]
    return Group(*parts, *(Text(f"Note: {note}.") for note in cost.notes))


def io_line(cost: IoCost) -> str:
    """What track_io_timing adds."""
    line = f"track_io_timing costs {_ns(cost.io_ns)} for each I/O"
    if cost.plan_ms is not None and cost.ios is not None:
        line += f", {span(cost.plan_ms)} for this plan ({_count(cost.ios)} I/Os)"
    return line + "."


def wait_line(costs: Mapping[str, Range], clock: Clock) -> str:
    """What a captured wait costs."""
    levels = ", ".join(f"{_ns(cost)} ({level})" for level, cost in costs.items())
    return f"A captured wait costs {levels} on {clock.name}."


def measured_line(measured: Measured, cost: ExplainCost) -> str:
    """The prediction beside what was measured."""
    found = measured.difference_ms
    early = ", interrupted" if measured.interrupted else ""
    ratio = cost.wall_ms.likely / found.estimate if found.estimate > 0 else math.nan
    error = numbers.signed(100 * (ratio - 1), 0)
    return (
        f"Measured: {_ms(found.estimate)} [{_ms(found.lo)}, {_ms(found.hi)}] by {measured.by},"
        f" median of {len(measured.on)} pairs{early}; the prediction is off by {error} %."
    )


def progress_line(progress: Progress) -> str:
    """How far a measurement is."""
    return (
        f"{progress.pairs} of {progress.wanted} pairs, about {progress.left_s:.0f} s left;"
        " Ctrl-C ends it"
    )


def span(ms: Range) -> str:
    """Milliseconds with their bounds."""
    if ms.low == ms.high:
        return _ms(ms.likely)
    return f"{_ms(ms.likely)} [{_ms(max(ms.low, 0))}, {_ms(ms.high)}]"


def _nodes(cost: ExplainCost, most: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", overflow="fold")
    for name in ("rows", "loops", "timed calls", "cost", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    shown = sorted(cost.nodes, key=lambda each: -each.wall_ms.likely)[:most]
    for each in cost.nodes:
        if each in shown:
            _add(table, each, cost.wall_ms.likely)
    left = len(cost.nodes) - len(shown)
    if left > 0:
        rest = sum(each.wall_ms.likely for each in cost.nodes if each not in shown)
        table.add_row(f"{left} more", "", "", "", _ms(rest), "", "")
    return table


def _add(table: Table, cost: NodeCost, total_ms: float) -> None:
    calls = cost.calls
    relation = calls.node.text("Relation Name")
    name = "  " * calls.depth + calls.node.kind + (f" on {relation}" if relation else "")
    share = f"{100 * cost.wall_ms.likely / total_ms:.0f} %" if total_ms else ""
    notes = [calls.note] if calls.note else []
    if cost.stalls.high:
        notes.append("may stall")
    table.add_row(
        Text(name), f"{calls.rows:,.0f}", f"{calls.loops:,.0f}", _count(calls.calls),
        _ms(cost.wall_ms.likely), share, Text(", ".join(notes)),
    )  # fmt: skip


def _count(value: Range) -> str:
    if value.high - value.low <= 0.01 * value.likely:
        return f"{value.likely:,.0f}"
    return f"{value.low:,.0f}–{value.high:,.0f}"


def _ms(ms: float) -> str:
    return numbers.duration(1000 * ms)


def _ns(value: Range) -> str:
    return f"{value.likely:.1f} ns [{max(value.low, 0):.1f}, {value.high:.1f}]"
