"""What EXPLAIN's TIMING costs a plan: the calls of its nodes times the cost of timing one.

EXPLAIN ANALYZE reads the clock when a node is called and again when it returns. A call returns one
row, or reports the end, so a node is called once more in each loop than it returns rows. A node
that delivers a whole hash table or bitmap is called once in each loop. A parent that stops early
saves the last call of a loop; that call is counted all the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgtare.errors import UsageError
from pgtare.observing.clock.schema import PlanTiming, Span

#: Nodes that hand over a whole hash table or bitmap in one call.
_AT_ONCE = frozenset({"Hash", "Bitmap Index Scan", "BitmapAnd", "BitmapOr"})
_HOW = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) writes what is needed (psql -XAtc)"


def node_calls(path: Path) -> int:
    """The timed calls of all nodes of a plan, in all processes.

    path: what EXPLAIN (ANALYZE, FORMAT JSON) or auto_explain wrote. Raises UsageError.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except (ValueError, RecursionError) as ex:
        raise UsageError(f"{path} is not JSON: {_HOW}") from ex
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict) or not isinstance(document.get("Plan"), dict):
        raise UsageError(f"{path} is not one plan of PostgreSQL: {_HOW}")
    return round(sum(_calls(node, path) for node in _nodes(document["Plan"])))


def plan_timing(path: Path, calls: int, call_ns: Span) -> PlanTiming:
    """What TIMING adds to a plan with that many calls, at that cost of a call in ns."""
    return PlanTiming(
        source=str(path),
        calls=calls,
        call_ns=call_ns,
        timing_ms=call_ns.scaled(calls * 1e-6),
    )


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The nodes of a plan, without recursion, as a file may nest them as deeply as it likes."""
    waiting: list[Any] = [plan]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            below = node.get("Plans", [])
            waiting += below if isinstance(below, list) else [below]


def _calls(node: Mapping[str, Any], path: Path) -> float:
    rows, loops = (_count(node.get(name), path) for name in ("Actual Rows", "Actual Loops"))
    return loops if node.get("Node Type") in _AT_ONCE else rows * loops + loops


def _count(value: object, path: Path) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{path} does not have the actual rows and loops of each node: {_HOW}")
    return value
