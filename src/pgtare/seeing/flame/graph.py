"""A profile, or two, as the tree that the page draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgtare.seeing.flame.samples import Stack

#: Frames narrower than this share of the whole are not in the page, and counted.
NARROWEST = 0.0005


@dataclass
class _Node:
    after: float = 0.0
    before: float = 0.0
    children: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """One flame graph. unit: of the values; compared: `before` is shown with each value.

    Widths are values, or, of two profiles compared, the mean of both, so that what has vanished
    is still there to be seen.
    """

    id: str
    title: str
    note: str
    unit: str
    compared: bool
    data: dict[str, Any]
    left_out: int


def graph(
    id: str,
    title: str,
    after: Mapping[Stack, float],
    before: Mapping[Stack, float] | None = None,
    *,
    note: str = "",
    unit: str = "ms",
) -> Graph:
    """The tree of a profile in `unit`, or of the change from `before` to `after`."""
    root = _Node()
    for stack, value in after.items():
        _add(root, stack, value, 0.0)
    for stack, value in (before or {}).items():
        _add(root, stack, 0.0, value)
    names: dict[str, int] = {}
    nodes: list[list[float]] = []
    compared = before is not None
    whole = _width(root, compared) or 1.0
    left_out = 0

    pending = [(root, "all", 0)]  # no recursion: stacks of other tools may be deep
    while pending:
        node, name, depth = pending.pop()
        row = [depth, names.setdefault(name, len(names)), round(node.after, 6)]
        nodes.append([*row, round(node.before, 6)] if compared else row)
        wide = [
            (child, child_name, depth + 1)
            for child_name, child in sorted(node.children.items())
            if _width(child, compared) >= NARROWEST * whole
        ]
        left_out += len(node.children) - len(wide)
        pending += reversed(wide)
    data = {"id": id, "names": list(names), "nodes": nodes, "compared": compared, "unit": unit}
    return Graph(id, title, note, unit, compared, data, left_out)


def _add(root: _Node, stack: Stack, after: float, before: float) -> None:
    node = root
    node.after += after
    node.before += before
    for name in stack:
        node = node.children.setdefault(name, _Node())
        node.after += after
        node.before += before


def _width(node: _Node, compared: bool) -> float:
    return (node.after + node.before) / 2 if compared else node.after
