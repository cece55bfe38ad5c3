"""Profiles, statements and clients as tables for a terminal, and profiles as JSON."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.terminal_text import plain
from pgtare.observing.trace.documents import (
    CallSum,
    NodeSum,
    PlanSum,
    ProfileLine,
    TraceClient,
    TracedStatement,
    TraceProfile,
)

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 90
#: Plans of a statement that are shown, those with most time first.
_PLANS = 3
_NO_NODES = (
    "No row source was measured: they are where sql_trace.rowsource_sampling is set (128, say) "
    "while a trace is recorded"
)
#: Most lines of a profile, and most statements, that a terminal shows.
_LINES, _STATEMENTS = 30, 20
_WHOLE = "mean, min and max are those of whole waits; of some, the time holds a part only"
_OF_KERNEL = "of it kernel CPU"
_KERNEL = f"{_OF_KERNEL}: the part of a wait in which the kernel worked for it (estimated)"


def ns(value: float) -> str:
    """A length of time in the unit that suits it."""
    return numbers.duration(value / 1000)


def one_line(text: str, width: int = _WIDTH) -> str:
    """A statement on one line, cut."""
    flat = " ".join(plain(text).split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def _spark(line: ProfileLine) -> str:
    """How the lengths are distributed, from the shortest power of two met to the longest."""
    met = [i for i, n in enumerate(line.histogram) if n]
    if not met:
        return ""
    span = line.histogram[met[0] : met[-1] + 1]
    most = max(span)
    return "".join(_BARS[-(-n * 8 // most)] for n in span)


def _counted(line: ProfileLine) -> tuple[str, str, str, str]:
    """Times, mean, shortest and longest as texts; empty if nothing is counted."""
    if not line.times:
        return ("",) * 4
    return numbers.count(line.times), ns(line.mean_ns), ns(line.min_ns), ns(line.max_ns)


def profile_view(profile: TraceProfile) -> RenderableType:
    """The profile of a trace; what goes beyond the longest lines is one line."""
    what = "process" if profile.workers else "session"
    plural = "" if profile.sessions == 1 else "es" if profile.workers else "s"
    heading = (
        f"{ns(profile.total_ns)} of {profile.scope} ({profile.sessions} {what}{plural}), by "
        f"{profile.by}"
    )
    columns = head(profile)
    spare = ("lengths", "min", "max", "mean", "times", _OF_KERNEL)
    table = Fitted(profile.by, *columns, spare=tuple(name for name in spare if name in columns))
    for row in rows(profile, _LINES, _WIDTH):
        table.add_row(*row)
    parts: list[RenderableType] = [Text(plain(heading)), table]
    if profile.by == "event" and any(
        line.mean_ns * line.times > 1.01 * line.total_ns for line in profile.lines[:_LINES]
    ):
        parts.append(Text(_WHOLE, style="dim"))
    if _OF_KERNEL in columns:
        parts.append(Text(_KERNEL, style="dim"))
    if profile.by in ("node", "relation") and not profile.measured:
        parts.append(Text(_NO_NODES))
    return Group(*parts)


def head(profile: TraceProfile) -> list[str]:
    """What the columns of `rows` are called, but for the first one."""
    split = any(line.kernel_ns for line in profile.lines)
    return ["time", "share", "times", "mean", "min", "max", *[_OF_KERNEL] * split, "lengths"]


def rows(profile: TraceProfile, most: int, width: int) -> list[list[str]]:
    """The longest lines as texts, one for all others, and the total, to which they add up."""
    columns = head(profile)
    shown, left = profile.lines[:most], profile.lines[most:]
    found = [
        [
            one_line(line.name, width),
            ns(line.total_ns),
            numbers.percent(line.share_pct),
            *_counted(line),
            *([_kernel(line)] if _OF_KERNEL in columns else []),
            _spark(line),
        ]
        for line in shown
    ]
    if left:
        spent = sum(line.total_ns for line in left)
        share = numbers.percent(100 * spent / profile.total_ns)
        found.append([f"{len(left)} more", ns(spent), share])
    found.append(["total", ns(profile.total_ns), "100 %"])
    return [row + [""] * (1 + len(columns) - len(row)) for row in found]


def _kernel(line: ProfileLine) -> str:
    """The share of a line's time in which the kernel worked; empty for none."""
    return numbers.percent(100 * line.kernel_ns / line.total_ns) if line.kernel_ns else ""


def clients_view(found: list[TraceClient]) -> RenderableType:
    """Clients with their work."""
    table = Fitted("client", "sessions", "calls", "busy", "CPU", "waits")
    for c in found:
        table.add_row(
            one_line(c.name),
            str(c.sessions),
            numbers.count(c.calls),
            ns(c.busy_ns),
            ns(c.cpu_ns),
            ns(c.waited_ns),
        )
    return table


def statements_view(found: list[TracedStatement]) -> RenderableType:
    """The first statements one after another, those within others last."""
    parts: list[RenderableType] = []
    recursive = False
    for statement in found[:_STATEMENTS]:
        if statement.recursive and not recursive:
            recursive = True
            parts.append(Text("Statements within others (functions, triggers)\n", style="bold"))
        parts += [_statement(statement), Text("")]
    if len(found) > _STATEMENTS:
        parts.append(Text(f"{len(found) - _STATEMENTS} more statements (--json lists all)"))
    return Group(*parts)


def _statement(statement: TracedStatement) -> RenderableType:
    name = f"query identifier {statement.query_id}" if statement.query_id else "no identifier"
    parts: list[RenderableType] = [Text(one_line(statement.text, 400)), Text(name, style="dim")]
    table = Fitted(
        "call",
        "count",
        "elapsed",
        "inner calls",
        "CPU",
        "waits",
        "other",
        "longest",
        "hit",
        "read",
        "rows",
        spare=("hit", "read", "longest", "rows", "inner calls", "other", "waits"),
    )
    for kind, call in statement.calls.items():
        table.add_row(kind, *cells(call))
    if statement.calls:
        parts.append(table)
    if statement.errors:
        states = ", ".join(f"{state} × {n}" for state, n in statement.errors.items())
        parts.append(Text(plain(f"failed: {states}")))
    if statement.waits:
        waits = Fitted("waited for", "times", "total", "longest")
        for wait in statement.waits[:10]:
            waits.add_row(wait.event, numbers.count(wait.waits), ns(wait.total_ns), ns(wait.max_ns))
        parts.append(waits)
    parts += [_plan(plan) for plan in statement.plans[:_PLANS]]
    if len(statement.plans) > _PLANS:
        parts.append(Text(f"{len(statement.plans) - _PLANS} more plans (--json has all)"))
    return Group(*parts)


def cells(call: CallSum) -> tuple[str, ...]:
    """The figures of the calls of one kind, as texts."""
    return (
        numbers.count(call.count) + (f" ({call.failed} failed)" if call.failed else ""),
        ns(call.elapsed_ns),
        ns(call.inner_ns),
        ns(call.cpu_ns),
        ns(call.waited_ns),
        ns(call.other_ns),
        ns(call.max_ns),
        numbers.count(call.buffers.get("shared_hit", 0)),
        numbers.count(call.buffers.get("shared_read", 0)),
        numbers.count(call.rows),
    )


def _plan(plan: PlanSum) -> RenderableType:
    table = Fitted(
        f"row source of {plan.executions:,} execution{'s' if plan.executions > 1 else ''}",
        "calls",
        "rows",
        "loops",
        "time",
        "95 % interval",
        "own",
        spare=("95 % interval", "loops"),
    )
    for node in plan.nodes:
        table.add_row(*node_cells(node, "  "))
    return table


def node_cells(node: NodeSum, indent: str) -> list[str]:
    """A node of a plan as texts: its name, calls, rows, loops, time with its interval, own time."""
    of = f" on {node.relation}" if node.relation else ""
    using = f" using {node.index}" if node.index else ""
    exact = node.exact or node.lo_ns == node.hi_ns
    return [
        indent * node.depth + node.kind + using + of,
        numbers.count(node.calls),
        numbers.count(node.rows),
        numbers.count(node.loops),
        ns(node.time_ns),
        "exact" if exact else f"{ns(node.lo_ns)} to {ns(node.hi_ns)}",
        ns(node.own_ns),
    ]
