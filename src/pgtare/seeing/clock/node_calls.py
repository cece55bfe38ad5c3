"""Count the instrumented calls of a plan's nodes: each is timed by two readings of the clock.

EXPLAIN ANALYZE wraps ExecProcNode, which returns one row or, at the end, none, so a node read to
its end is called once more in each loop than it returns rows. The exceptions follow the executor
of PostgreSQL 15 to 18: nodes that deliver all at once (MultiExecProcNode), parents that stop
early, and processes that work side by side. If a plan does not tell, the count is a range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from pgtare.seeing.clock.plan import Node, Plan

#: Nodes that hand over a whole hash table or bitmap in one call.
AT_ONCE = frozenset({"Hash", "Bitmap Index Scan", "BitmapAnd", "BitmapOr"})
#: Nodes whose children are read to the end before the first row is returned.
_BLOCKING = frozenset({"Sort", "Hash", "SetOp", "Bitmap Heap Scan", "BitmapAnd", "BitmapOr"})
_BLOCKING_AGGREGATES = frozenset({"Plain", "Hashed", "Mixed"})
#: Rounds that the planner expects of a recursive query.
_RECURSIVE_ROUNDS = 10


@dataclass(frozen=True)
class Range:
    """A quantity that is known between two bounds."""

    lo: float
    likely: float
    hi: float

    @classmethod
    def exactly(cls, value: float) -> Range:
        return cls(value, value, value)

    def __add__(self, other: Range) -> Range:
        return Range(self.lo + other.lo, self.likely + other.likely, self.hi + other.hi)

    def scaled(self, factor: float) -> Range:
        """This, times a number that is not negative."""
        return Range(self.lo * factor, self.likely * factor, self.hi * factor)

    def times(self, other: Range) -> Range:
        """Bounds of the product; `self` is not negative."""
        corners = [a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        return Range(min(corners), self.likely * other.likely, max(corners))


class Reads(Enum):
    """How a parent reads a node in each loop."""

    ALL = "to the end"
    STOPS = "stops at a row"
    UNSURE = "to the end or not"


@dataclass(frozen=True)
class Calls:
    """The instrumented calls of one node, in all processes."""

    node: Node
    depth: int
    rows: float
    loops: float
    calls: Range
    processes: float
    """Processes that share the calls."""
    note: str = ""


@dataclass(frozen=True)
class _Place:
    """A node's place in the execution: what its parent does with it."""

    node: Node
    depth: int
    rows: float
    rows_error: float
    loops: float
    reads: Reads
    processes: float
    #: Share of the rows that are read before a parent stops; only estimates need it.
    fraction: float = 1.0
    note: str = ""


def count_calls(plan: Plan) -> list[Calls]:
    """The calls of every node, parents before children."""
    root = plan.root
    if plan.analyzed:
        place = _Place(root, 0, root.rows, root.rows_error, root.loops, Reads.ALL, 1)
    else:
        place = _Place(root, 0, root.plan_rows, 0, 1, Reads.ALL, 1)
    return list(_visit(place, plan.analyzed))


def _visit(place: _Place, analyzed: bool) -> Iterator[Calls]:
    yield Calls(
        place.node,
        place.depth,
        place.rows,
        place.loops,
        _calls(place),
        place.processes,
        "never executed" if place.loops == 0 else place.note,
    )
    outer: _Place | None = None
    for child in place.node.children:
        below = _actual(place, child) if analyzed else _estimated(place, child, outer)
        if child.relationship == "Outer":
            outer = below
        yield from _visit(below, analyzed)


def _calls(place: _Place) -> Range:
    """With one that each process makes of each node when it ends the plan (ExecShutdownNode)."""
    if place.loops == 0:
        return Range.exactly(0)
    return _reading_calls(place) + Range.exactly(place.processes)


def _reading_calls(place: _Place) -> Range:
    loops, rows = place.loops, place.rows
    if place.node.kind in AT_ONCE:
        return Range.exactly(loops)
    least, most = max(rows - place.rows_error, 0.0), rows + place.rows_error
    # a loop without a row still is one call
    fewest = max(least, loops)
    if place.reads is Reads.ALL:
        return Range(least + loops, rows + loops, most + loops)
    if place.reads is Reads.STOPS:
        # two rows in one loop make room for a loop without any
        spare = loops if place.node.relationship == "Inner" and rows > loops else 0.0
        return Range(fewest, max(rows, loops), max(most, loops) + spare)
    return Range(fewest, rows + loops, most + loops)


def _reads(place: _Place, child: Node) -> tuple[Reads, str]:
    """How a node's parent reads it, and what there is to say about that."""
    parent, kind = place.node, place.node.kind
    if child.relationship in ("InitPlan", "SubPlan"):
        return _reads_subplan(parent, child)
    if kind == "Limit":
        # Only a limit below the rows expected shows up in the plan, as the rows of the Limit.
        if not parent.plan_rows < child.plan_rows:
            return Reads.UNSURE, ""
        # One that was reached stops there; one whose input ran out knows it.
        reached = place.rows + place.rows_error >= parent.plan_rows * place.loops
        return (Reads.STOPS if reached else Reads.ALL), "stopped by Limit" if reached else ""
    if kind == "Nested Loop" and child.relationship == "Inner":
        first = parent.properties.get("Inner Unique") is True
        if first or parent.text("Join Type") in ("Semi", "Anti"):
            return Reads.STOPS, "stops at the first match"
        return Reads.ALL, ""
    if kind == "Memoize" and place.reads is Reads.STOPS:
        return Reads.STOPS, "stops at the first match"
    if kind == "Merge Join":
        return Reads.UNSURE, ""
    if _blocks(parent) or (kind == "Hash Join" and child.relationship == "Inner"):
        return Reads.ALL, ""
    return place.reads, ""


def _reads_subplan(parent: Node, child: Node) -> tuple[Reads, str]:
    name = child.subplan.partition(" (")[0]
    if name.startswith("CTE") or parent.mentions(f"hashed {name}"):
        return Reads.ALL, ""
    if parent.mentions(f"EXISTS({name}"):
        return Reads.STOPS, "stops at the first row"
    # an expression reads to the end, EXISTS and ANY stop; releases before 17 print them alike
    return Reads.UNSURE, ""


def _blocks(node: Node) -> bool:
    if node.kind == "Aggregate":
        return node.text("Strategy") in _BLOCKING_AGGREGATES
    return node.kind in _BLOCKING


def _actual(place: _Place, child: Node) -> _Place:
    reads, note = _reads(place, child)
    rows, error = child.rows, child.rows_error
    if error and _delivers_all(place, child):
        rows, error = place.rows, place.rows_error
    processes = place.processes
    if place.node.kind in ("Gather", "Gather Merge") and child.relationship == "Outer":
        processes = max(child.loops / max(place.loops, 1), 1)
        note = f"in {processes:.0f} processes"
    elif child.relationship == "InitPlan":
        processes = 1
    return _Place(child, place.depth + 1, rows, error, child.loops, reads, processes, note=note)


def _delivers_all(place: _Place, child: Node) -> bool:
    """Whether each row of the inner side is one of the join, whose count is less rounded."""
    parent = place.node
    return (
        parent.kind == "Nested Loop"
        and child.relationship == "Inner"
        and parent.text("Join Type") == "Inner"
        and not {"Join Filter", "Filter"} & parent.properties.keys()
        and place.rows_error < child.rows_error
    )


def _estimated(place: _Place, child: Node, outer: _Place | None) -> _Place:
    """A child's place by the planner's estimates."""
    parent = place.node
    reads, note = _reads(place, child)
    loops, processes, fraction = place.loops, place.processes, place.fraction
    if child.relationship == "InitPlan":
        loops, processes, fraction = 1.0, 1.0, 1.0
    elif child.relationship == "SubPlan":
        hashed = parent.mentions(f"hashed {child.subplan}")
        loops, fraction = (1.0 if hashed else max(place.rows, 1.0)), 1.0
        note = note or ("" if hashed else "once for each row of its parent, taken as its output")
    elif parent.kind == "Nested Loop" and child.relationship == "Inner" and outer is not None:
        loops, fraction = max(outer.rows, 1.0), 1.0
    elif parent.kind in ("Gather", "Gather Merge"):
        processes = parent.number("Workers Planned") + 1
        loops = place.loops * processes
        note = f"in {processes:.0f} processes"
    elif parent.kind == "Materialize":
        loops = processes
    elif parent.kind == "Memoize":
        note = note or "as if nothing were found in the cache"
    elif parent.kind == "Recursive Union" and child.relationship == "Inner":
        loops = place.loops * _RECURSIVE_ROUNDS
    elif _blocks(parent) or (parent.kind == "Hash Join" and child.relationship == "Inner"):
        fraction = 1.0
    if parent.kind == "Limit" and child.plan_rows > 0:
        fraction = fraction * min(parent.plan_rows / child.plan_rows, 1.0)
    found = _Place(child, place.depth + 1, 0, 0, loops, reads, processes, fraction, note)
    return replace(found, rows=_estimated_rows(found))


def _estimated_rows(place: _Place) -> float:
    per_loop = place.node.plan_rows
    if place.reads is Reads.STOPS and place.note == "stops at the first match":
        per_loop = min(per_loop, 1.0)
    rows = per_loop * place.loops * place.fraction
    if place.processes > 1 and any(n.properties.get("Parallel Aware") for n in place.node.walk()):
        # The planner divides a parallel scan's rows; the leader's share shrinks with the workers.
        workers = place.processes - 1
        rows *= (workers + max(1 - 0.3 * workers, 0)) / place.processes
    return math.ceil(rows)
