"""From what one reading of the clock costs to what PostgreSQL's timing costs.

The costs are bounds with a likely value between them, added up as if all were wrong in the same
direction; they are no confidence intervals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pgtare.errors import UsageError
from pgtare.seeing.clock.memory_stalls import stalls
from pgtare.seeing.clock.node_calls import Calls, Range, count_calls
from pgtare.seeing.clock.plan import Node, Plan

#: What InstrStartNode and InstrStopNode do under TIMING besides two readings, in ns. Until 15
#: an instr_time is a struct timespec, whose differences need carrying; from 16 on it is a number.
#: Below zero if the processor does it along with other work. Measured by `make bench-explain`
#: on a 2.5 GHz Xeon (virtual machine).
_PAIR_WORK_NS = {15: Range(-1, 6, 12)}
_PAIR_WORK_NS_SINCE_16 = Range(-1, 4, 10)
#: How much more a reading costs amid other work than in a loop; measured by the same.
_IN_PLACE = Range(1, 1.05, 1.15)
#: What a load that misses the core's own cache stalls, in ns; measured by the same.
STALL_NS = Range(50, 100, 150)
NONE = Range.exactly(0)
#: What track_io_timing does besides reading the clock, for each I/O, in ns: assumed.
_IO_WORK_NS = Range(0, 10, 20)
#: Blocks that one vectored read takes at most (io_combine_limit's default), from 17 on.
_COMBINED_BLOCKS = 16
#: What folding a captured wait costs besides two readings, in ns: docs/wait-events.md.
_WAIT_WORK_NS = {"stats": Range(6.5, 7.2, 8.5), "trace": Range(9.0, 10.6, 12.5)}

_BLOCKS_READ = ("Shared Read Blocks", "Local Read Blocks")
_BLOCKS_MOVED = (
    "Shared Written Blocks",
    "Local Written Blocks",
    "Temp Read Blocks",
    "Temp Written Blocks",
)


@dataclass(frozen=True)
class Clock:
    """What one reading costs, back to back in a loop."""

    read_ns: float
    name: str = "CLOCK_MONOTONIC"
    #: It waits for earlier loads, as clock_gettime and RDTSCP do and RDTSC does not.
    fenced: bool = True
    #: What such a load then stalls.
    stall_ns: Range = STALL_NS

    def __post_init__(self) -> None:
        if not (math.isfinite(self.read_ns) and self.read_ns > 0):
            raise UsageError(f"a reading of the clock must cost more than 0 ns, not {self.read_ns}")

    def two_reads(self) -> Range:
        """Two readings, in ns."""
        return Range.exactly(2 * self.read_ns)


@dataclass(frozen=True)
class NodeCost:
    """What timing one node costs."""

    calls: Calls
    stalls: Range
    cpu_ms: Range
    """In all processes."""
    wall_ms: Range
    """In one of them, if the work is shared evenly."""


@dataclass(frozen=True)
class ExplainCost:
    """What TIMING adds to EXPLAIN ANALYZE of a plan."""

    plan: Plan
    major: int
    call_ns: Range
    nodes: tuple[NodeCost, ...]
    triggers_ms: Range
    cpu_ms: Range
    wall_ms: Range
    notes: tuple[str, ...]

    @property
    def calls(self) -> Range:
        """Timed calls of all nodes, in all processes."""
        return _sum(cost.calls.calls for cost in self.nodes)

    @property
    def bare_ms(self) -> float | None:
        """The execution without TIMING, if the plan was executed."""
        if self.plan.execution_ms is None:
            return None
        if not self.plan.timed:
            return self.plan.execution_ms
        return max(self.plan.execution_ms - self.wall_ms.likely, 0.0)

    @property
    def cost_pct(self) -> Range | None:
        """The cost in percent of the execution without TIMING."""
        bare = self.bare_ms
        return self.wall_ms.scaled(100 / bare) if bare else None

    def as_json(self) -> dict[str, Any]:
        """For programs; every name carries its unit."""
        percent = self.cost_pct
        return {
            "rows_and_loops": "actual" if self.plan.analyzed else "estimated",
            "postgresql": self.major,
            "call_ns": _json(self.call_ns),
            "calls": _json(self.calls),
            "wall_ms": _json(self.wall_ms),
            "cpu_ms": _json(self.cpu_ms),
            "triggers_ms": _json(self.triggers_ms),
            "execution_ms": self.plan.execution_ms,
            "executed_with_timing": self.plan.timed,
            "without_timing_ms": self.bare_ms,
            "cost_pct": None if percent is None else _json(percent),
            "nodes": [_node_json(cost) for cost in self.nodes],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class IoCost:
    """What track_io_timing adds."""

    io_ns: Range
    """For each I/O."""
    ios: Range | None
    """I/Os of a plan with BUFFERS; None without."""

    @property
    def plan_ms(self) -> Range | None:
        """For that plan."""
        return None if self.ios is None else self.ios.times(self.io_ns).scaled(1e-6)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        plan_ms = self.plan_ms
        return {
            "io_ns": _json(self.io_ns),
            "ios": None if self.ios is None else _json(self.ios),
            "io_ms": None if plan_ms is None else _json(plan_ms),
        }


def call_cost(clock: Clock, major: int) -> Range:
    """What TIMING adds to one call of a node, in ns: what a row costs in each node it passes."""
    reads = _IN_PLACE.scaled(2 * clock.read_ns)
    return reads + _PAIR_WORK_NS.get(major, _PAIR_WORK_NS_SINCE_16)


def explain_cost(plan: Plan, clock: Clock, major: int) -> ExplainCost:
    """What TIMING adds to EXPLAIN ANALYZE of this plan on PostgreSQL `major`."""
    call_ns = call_cost(clock, major)
    counted = count_calls(plan)
    by_node = {id(calls.node): calls for calls in counted}
    stalled = [stalls(calls, by_node) if clock.fenced else NONE for calls in counted]
    nodes = tuple(
        _node_cost(calls, lost, call_ns, clock.stall_ns)
        for calls, lost in zip(counted, stalled, strict=True)
    )
    triggers = call_ns.scaled(plan.trigger_calls * 1e-6)
    return ExplainCost(
        plan,
        major,
        call_ns,
        nodes,
        triggers,
        cpu_ms=_sum(cost.cpu_ms for cost in nodes) + triggers,
        wall_ms=_sum(cost.wall_ms for cost in nodes) + triggers,
        notes=tuple(_notes(plan, nodes)),
    )


def io_cost(clock: Clock, major: int, plan: Plan | None = None) -> IoCost:
    """What track_io_timing adds to each I/O, and to a plan that tells its buffers."""
    io_ns = io_reads(major).scaled(clock.read_ns) + _IO_WORK_NS
    ios = None
    if plan is not None and plan.buffers:
        ios = _sum(_ios(node, major) for node in plan.root.walk())
    return IoCost(io_ns, ios)


def io_reads(major: int) -> Range:
    """Readings of the clock for an I/O."""
    # one pair around the start of a read, from 18 on another if it has to be waited for
    return Range(2, 4, 4) if major >= 18 else Range.exactly(2)


def wait_cost(clock: Clock) -> dict[str, Range]:
    """What a captured wait costs at each capture level of wait_event_timing, in ns."""
    return {level: clock.two_reads() + work for level, work in _WAIT_WORK_NS.items()}


def _node_cost(calls: Calls, stalled: Range, call_ns: Range, stall_ns: Range) -> NodeCost:
    cpu_ms = (calls.calls.times(call_ns) + stalled.times(stall_ns)).scaled(1e-6)
    return NodeCost(calls, stalled, cpu_ms, cpu_ms.scaled(1 / calls.processes))


def _ios(node: Node, major: int) -> Range:
    """I/Os of a node itself: EXPLAIN's figures hold those of its children as well."""

    def own(names: tuple[str, ...]) -> float:
        of = [sum(n.number(name) for name in names) for n in (node, *node.children)]
        return max(of[0] - sum(of[1:]), 0.0)

    read = own(_BLOCKS_READ)
    streams = (node.kind == "Seq Scan" and major >= 17) or (
        node.kind == "Bitmap Heap Scan" and major >= 18
    )
    fewest = math.ceil(read / _COMBINED_BLOCKS) if streams else read
    return Range(fewest, fewest, read) + Range.exactly(own(_BLOCKS_MOVED))


def _notes(plan: Plan, nodes: tuple[NodeCost, ...]) -> Iterator[str]:
    if not plan.analyzed:
        yield (
            "rows and loops are the planner's estimates: the prediction is as good as they are"
            " (EXPLAIN ANALYZE gives the actual ones)"
        )
    if any(cost.calls.processes > 1 for cost in nodes):
        yield "the time of parallel processes counts as if all shared the work and ran at once"
    if any(cost.stalls.hi for cost in nodes):
        yield (
            "rows that are fetched from all over a memory larger than the processor's cache (sorts,"
            " hash tables, look-ups) may stall where the clock is read: the upper bound has that"
        )
    kinds = sorted({cost.calls.node.kind for cost in nodes} & {"Custom Scan", "Foreign Scan"})
    if kinds:
        yield f"how {' and '.join(kinds)} call their own parts is not known, and not counted"


def _node_json(cost: NodeCost) -> dict[str, Any]:
    calls = cost.calls
    return {
        "node": calls.node.kind,
        "depth": calls.depth,
        "subplan": calls.node.subplan or None,
        "relation": calls.node.text("Relation Name") or None,
        "rows": calls.rows,
        "loops": calls.loops,
        "processes": calls.processes,
        "calls": _json(calls.calls),
        "stalls": _json(cost.stalls),
        "cpu_ms": _json(cost.cpu_ms),
        "wall_ms": _json(cost.wall_ms),
        "note": calls.note or None,
    }


def _json(value: Range) -> dict[str, float]:
    return dataclasses.asdict(value)


def _sum(values: Iterator[Range]) -> Range:
    total = NONE
    for value in values:
        total = total + value
    return total
