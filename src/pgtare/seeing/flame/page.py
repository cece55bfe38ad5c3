"""Flame graphs as HTML: one file that needs nothing else, and a part of another page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import pgtare
from pgtare.kit import page_frame
from pgtare.seeing.flame import profile as profiles
from pgtare.seeing.flame.profile import Profile

#: Frames narrower than this share of the whole are not in the page, and counted.
NARROWEST = 0.0005


@dataclass
class _Node:
    """A frame below its callers. values: afterwards, and before."""

    values: list[float] = field(default_factory=lambda: [0.0, 0.0])
    children: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """One flame graph: its tree as the page's script draws it."""

    id: str
    title: str
    note: str
    data: dict[str, Any]
    left_out: int


def graph(
    id: str, title: str, found: Profile, before: Profile | None = None, *, note: str = ""
) -> Graph:
    """The tree of a profile, in ms; or of the change from `before` to it, each in % of its total.

    Widths are values, or, of two profiles compared, the mean of both, so that what has vanished
    is still there to be seen.
    """
    compared = before is not None
    root = _Node()
    for side, profile in enumerate((found, before or {})):
        scale = 100 / (profiles.total(profile) or 1) if compared else 1e-6
        for stack, ns in profile.items():
            node = root
            node.values[side] += ns * scale
            for name in stack:
                node = node.children.setdefault(name, _Node())
                node.values[side] += ns * scale
    narrowest = NARROWEST * (sum(root.values) or 1.0)
    names: dict[str, int] = {}
    nodes: list[list[float]] = []
    left_out = 0
    pending = [(root, "all", 0)]  # no recursion: stacks of other tools may be deep
    while pending:
        node, name, depth = pending.pop()
        shown = node.values if compared else node.values[:1]
        row = [depth, names.setdefault(name, len(names)), *(round(value, 6) for value in shown)]
        nodes.append(row)
        wide = [
            (child, child_name, depth + 1)
            for child_name, child in sorted(node.children.items())
            if sum(child.values) >= narrowest
        ]
        left_out += len(node.children) - len(wide)
        pending += reversed(wide)
    data = {"names": list(names), "nodes": nodes, "compared": compared}
    return Graph(id, title, note, data, left_out)


def script() -> str:
    """The program that draws every graph of a page."""
    return (resources.files("pgtare.seeing.flame") / "templates" / "flame.js").read_text(
        encoding="utf-8"
    )


def page(
    title: str,
    subtitle: str,
    graphs: Sequence[Graph],
    *,
    table_head: Sequence[str],
    table: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    alarms: Sequence[str] = (),
    answers: Sequence[str] = (),
) -> str:
    """The page as a string. table: what the graphs show, for readers who cannot see them."""
    return page_frame.render(
        "pgtare.seeing.flame",
        "page.html.j2",
        (),
        scripts=[script()],
        title=title,
        subtitle=subtitle,
        graphs=graphs,
        alarms=alarms,
        notes=notes,
        answers=answers,
        table=table,
        table_head=table_head,
        embedded=embedded,
        version=pgtare.__version__,
        created=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S %Z}",
    )


def fragment(graphs: Sequence[Graph], notes: Sequence[str] = ()) -> Markup:
    """Graphs as a part of another page, which runs `script` at its end."""
    environment = Environment(
        loader=PackageLoader("pgtare.seeing.flame"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("fragment.html.j2")
    text = template.render(graphs=graphs, notes=notes, embedded=embedded)
    return Markup(text)  # noqa: S704  # the template has escaped whatever is not ours


def embedded(graph: Graph) -> Markup:
    """A graph's data for `script`, safe within a page."""
    return Markup(page_frame.embeddable(graph.data))  # noqa: S704
