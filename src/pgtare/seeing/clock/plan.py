"""Read the output of EXPLAIN (FORMAT JSON): a tree of nodes with their rows and loops."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgtare.errors import UsageError

_HOW = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON), with or without ANALYZE, writes what is wanted"


@dataclass(frozen=True)
class Node:
    """One node of a plan."""

    kind: str
    """As PostgreSQL names it: "Seq Scan", "Hash Join"."""
    properties: Mapping[str, Any]
    children: tuple[Node, ...]

    @property
    def relationship(self) -> str:
        """What the node is to its parent: Outer, Inner, Member, InitPlan, SubPlan, Subquery."""
        return self.text("Parent Relationship")

    @property
    def subplan(self) -> str:
        """As "SubPlan 1", "InitPlan 1 (returns $0)" or "CTE x"; empty for others."""
        return self.text("Subplan Name")

    @property
    def loops(self) -> float:
        """How often it was begun, in all processes; 0 if it never ran."""
        return self.number("Actual Loops")

    @property
    def rows(self) -> float:
        """Rows that it returned, in all loops and processes."""
        return self.number("Actual Rows") * self.loops

    @property
    def rows_error(self) -> float:
        """How far `rows` can be off, as EXPLAIN prints the rounded mean of a loop."""
        if self.loops <= 1:
            return 0.0
        # 18 prints two decimals, and older releases whole rows
        whole = isinstance(self.properties.get("Actual Rows"), int)
        return self.loops * (0.5 if whole else 0.005)

    @property
    def plan_rows(self) -> float:
        """Rows of one loop in one process, as the planner estimates them."""
        return self.number("Plan Rows")

    def number(self, name: str) -> float:
        """A numeric property, 0 if it is missing."""
        value = self.properties.get(name, 0)
        return float(value) if isinstance(value, int | float) else 0.0

    def text(self, name: str) -> str:
        """A property of text, empty if it is missing."""
        value = self.properties.get(name, "")
        return value if isinstance(value, str) else ""

    def mentions(self, words: str) -> bool:
        """Whether an expression of this node holds these words."""
        for value in self.properties.values():
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and words in text:
                    return True
        return False

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Plan:
    """A whole plan."""

    root: Node
    analyzed: bool
    """Rows and loops are those of an execution, not estimates."""
    timed: bool
    """It was executed with TIMING on."""
    execution_ms: float | None
    trigger_calls: int

    @property
    def buffers(self) -> bool:
        """Whether it tells what was read and written."""
        return self.analyzed and "Shared Read Blocks" in self.root.properties

    @property
    def newest_major(self) -> int:
        """The newest of 15 to 18 that prints such a plan: 18 gives rows two decimals."""
        whole = any(isinstance(n.properties.get("Actual Rows"), int) for n in self.root.walk())
        return 17 if whole else 18


def read_plan(path: Path) -> Plan:
    """The plan in a file; UsageError says what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"{path} is not text in UTF-8: {_HOW}") from ex
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as ex:
        raise UsageError(f"{path} is not JSON: {_HOW} (from psql: -XAtc)") from ex
    return parse_plan(document, str(path))


def parse_plan(document: Any, name: str = "the plan") -> Plan:
    """The plan in a parsed document: EXPLAIN's list of one, or the object auto_explain logs."""
    if isinstance(document, list):
        if len(document) > 1:
            raise UsageError(f"{name} holds {len(document)} plans: give one at a time")
        document = document[0] if document else None
    if not isinstance(document, dict) or not isinstance(document.get("Plan"), dict):
        raise UsageError(f"{name} is no plan of PostgreSQL: {_HOW}")
    try:
        root = _node(document["Plan"], name)
    except RecursionError as ex:
        raise UsageError(f"{name} is nested too deeply to be a plan of PostgreSQL") from ex
    time = document.get("Execution Time")
    triggers = document.get("Triggers", [])
    calls = (t.get("Calls", 0) for t in triggers if isinstance(t, dict))
    return Plan(
        root=root,
        analyzed="Actual Loops" in root.properties,
        timed=any("Actual Total Time" in node.properties for node in root.walk()),
        execution_ms=float(time) if isinstance(time, int | float) else None,
        trigger_calls=sum(int(n) for n in calls if isinstance(n, int | float)),
    )


def _node(found: Mapping[str, Any], name: str) -> Node:
    kind = found.get("Node Type")
    below = found.get("Plans", [])
    if not isinstance(kind, str) or not isinstance(below, list):
        raise UsageError(f"{name} has a node without a type: {_HOW}")
    if not all(isinstance(child, dict) for child in below):
        raise UsageError(f"{name} has a node that is none: {_HOW}")
    rows = found.get("Actual Rows", found.get("Plan Rows"))
    if rows is None:
        raise UsageError(f"{name} does not tell the rows of {kind} (COSTS OFF?): {_HOW}")
    for count in ("Actual Rows", "Actual Loops", "Plan Rows"):
        if not _is_count(found.get(count, 0)):
            raise UsageError(f"{name} has {found[count]!r} as the {count} of {kind}: {_HOW}")
    properties = {key: value for key, value in found.items() if key != "Plans"}
    return Node(kind, properties, tuple(_node(child, name) for child in below))


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
