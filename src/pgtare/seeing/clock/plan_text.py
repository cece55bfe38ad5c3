"""What timing a plan costs, as a terminal and the page show it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.kit import numbers
from pgtare.seeing.clock.schema import MeasuredTiming, PlanTiming, Span, TimedNode

#: Nodes that a terminal shows; what the others cost is summed up.
_MOST_NODES = 15
#: Columns of the table of nodes.
HEADS = ["node", "rows", "loops", "timed calls", "timing costs", "share", ""]


def view(plan: PlanTiming, most: int = _MOST_NODES) -> RenderableType:
    """The answer, the nodes that cause it, and what limits it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in HEADS:
        side = name in (HEADS[0], HEADS[-1])
        table.add_column(
            name,
            justify="left" if side else "right",
            no_wrap=not side,
            overflow="fold" if side else "ellipsis",
        )
    for row in rows(plan, most):
        table.add_row(*map(Text, row))
    heading = Text(f"\n{plan.source}", style="bold", overflow="fold")
    return Group(heading, *map(Text, answers(plan)), table, *map(Text, notes(plan)))


def answers(plan: PlanTiming) -> Iterator[str]:
    """What TIMING and track_io_timing add, and what was measured, a sentence each."""
    estimated = "" if plan.rows_and_loops == "actual" else ", by the planner's estimates"
    calls = "1 timed call" if plan.calls.likely == 1 else f"{plan.calls.likely:,.0f} timed calls"
    head = (
        f"Predicted, likely value [lowest, highest]: EXPLAIN (ANALYZE, TIMING) takes"
        f" {span(plan.wall_ms)} longer than with TIMING OFF on PostgreSQL {plan.postgresql}"
        f"{estimated}: {calls} of plan nodes, {ns_span(plan.call_ns)} each"
    )
    if plan.cost_pct is not None and plan.without_timing_ms is not None:
        head += (
            f"; that is {_share(plan.cost_pct.likely)} of the {_ms(plan.without_timing_ms)} that "
            "the execution takes without"
        )
    yield head + "."
    if plan.measured is not None:
        yield _measured(plan.measured, plan.wall_ms)
    if plan.postgresql19_wall_ms is not None:
        yield f"On PostgreSQL 19, by RDTSC, that would be {span(plan.postgresql19_wall_ms)}."
    line = f"track_io_timing takes {ns_span(plan.io_ns)} for each I/O"
    if plan.io_ms is not None and plan.ios is not None:
        line += f", so {span(plan.io_ms)} for this plan ({_count(plan.ios)} {_ios(plan.ios)})"
    yield line + "."


def notes(plan: PlanTiming) -> Iterator[str]:
    """What limits the prediction."""
    yield from (f"Note: {note}." for note in plan.notes)


def rows(plan: PlanTiming, most: int | None = None) -> Iterator[list[str]]:
    """The nodes that cost most, in the plan's order, and one row for all others."""
    dearest = sorted(range(len(plan.nodes)), key=lambda i: -plan.nodes[i].wall_ms.likely)
    shown = set(dearest[:most])
    for i in sorted(shown):
        yield _row(plan.nodes[i], plan.wall_ms.likely)
    rest = [node.wall_ms.likely for i, node in enumerate(plan.nodes) if i not in shown]
    if rest:
        yield [f"{len(rest)} more", "", "", "", _ms(sum(rest)), "", ""]


def _row(node: TimedNode, total_ms: float) -> list[str]:
    name = "\N{NO-BREAK SPACE}" * 2 * node.depth + node.node
    share = f"{100 * node.wall_ms.likely / total_ms:.0f} %" if total_ms else ""
    remarks = [node.note] if node.note else []
    if node.stalls.hi:
        remarks.append("may stall")
    return [
        name + (f" on {node.relation}" if node.relation else ""),
        f"{node.rows:,.0f}",
        f"{node.loops:,.0f}",
        _count(node.calls),
        _ms(node.wall_ms.likely),
        share,
        ", ".join(remarks),
    ]


def _measured(measured: MeasuredTiming, predicted: Span) -> str:
    found = measured.difference_ms
    early = ", interrupted" if measured.interrupted else ""
    ends = (
        f" [{_ms(found.lo)}, {_ms(found.hi)}] (95 % interval)"
        if found.lo is not None and found.hi is not None
        else ""
    )
    if (found.lo or 0) > 0:
        ratio = predicted.likely / found.estimate
        verdict = f"the prediction is off by {numbers.signed(100 * (ratio - 1), 0)} %"
    else:
        verdict = "too little, or too noisy, to tell it from 0"
    return (
        f"Measured: {_ms(found.estimate)}{ends} of {measured.by} longer with TIMING than without,"
        f" median of {numbers.counted(measured.pairs, 'pair')} of executions{early}; {verdict}."
    )


def span(ms: Span) -> str:
    """Milliseconds with their bounds."""
    if ms.lo == ms.hi:
        return _ms(ms.likely)
    return f"{_ms(ms.likely)} [{_ms(max(ms.lo, 0))}, {_ms(ms.hi)}]"


def ns_span(value: Span) -> str:
    """Nanoseconds with their bounds, in the unit that suits the likely value."""
    scale, unit = (1e3, "µs") if value.likely >= 9999.5 else (1.0, "ns")
    likely, low, high = (v / scale for v in (value.likely, max(value.lo, 0), value.hi))
    digits = 0 if likely >= 99.95 else 1
    return f"{likely:,.{digits}f} {unit} [{low:,.{digits}f}, {high:,.{digits}f}]"


def _share(percent: float) -> str:
    return numbers.percent(percent) if math.isfinite(percent) else numbers.NONE


def _count(value: Span) -> str:
    if value.hi - value.lo <= 0.01 * value.likely:
        return f"{value.likely:,.0f}"
    return f"{value.lo:,.0f}–{value.hi:,.0f}"


def _ios(value: Span) -> str:
    return "I/O" if value.lo == value.hi == 1 else "I/Os"


def _ms(ms: float) -> str:
    return numbers.duration(1000 * ms)
