"""A recording, or the change between two, in words, tables, graphs, pages and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import pgtare
from pgtare.kit import numbers, page_frame
from pgtare.kit.terminal_text import plain
from pgtare.observing.flame import profile as profiles
from pgtare.observing.flame.documents import FlameGraph, FlameStack
from pgtare.observing.flame.profile import FrameChange, Profile
from pgtare.observing.flame.recording import BLOCKED, RUNNABLE, FlameRecording

TITLES = {"on": "On the processor", "off": "Blocked", "wake": "Blocked, and what ended it"}
HEAD = ["frame", "with callees", "share", "in itself"]
CHANGE_HEAD = ["frame", "before", "after", "points"]
#: Rows of a table in the terminal, and on a page.
_ROWS, _PAGE_ROWS = 15, 60
#: Most functions that a document lists.
_FRAMES = 200
#: Frames narrower than this share of the whole are not in the page, and counted.
_NARROWEST = 0.0005
_PACKAGE = "pgtare.observing.flame"


def lines(recording: FlameRecording, found: Profile, *, idle: bool) -> list[str]:
    """The result in sentences."""
    spent = profiles.total(found)
    walk = "frame pointers" if recording.walk == "fp" else "DWARF"
    sentences = [
        f"{TITLES[recording.mode]}: {_duration(spent)} in {numbers.seconds(recording.duration_s)}, "
        f"{recording.target}; {numbers.count(recording.events)} events, "
        f"{numbers.count(recording.lost)} lost; stacks by {walk}"
    ]
    if recording.mode != "on":
        runnable = recording.samples.of(RUNNABLE).total_ns
        sentences.append(f"Ready, but without a processor: {_duration(runnable)}")
        if not idle:
            rest = _duration(recording.samples.of(BLOCKED).total_ns - spent)
            sentences.append(f"Left out, waiting for something to do: {rest} (--idle shows it)")
    return sentences


def rows(found: Profile, limit: int = _ROWS) -> list[list[str]]:
    """The widest frames: name, time with callees, share, time in itself."""
    whole = profiles.total(found) or 1
    made = []
    for f in profiles.functions(found)[:limit]:
        share = numbers.percent(100 * f.total_ns / whole)
        made.append([f.name, _duration(f.total_ns), share, _duration(f.own_ns)])
    return made


def change_rows(found: Sequence[FrameChange], limit: int = _ROWS) -> list[list[str]]:
    """The frames that changed most."""
    return [
        [c.name, f"{c.before_pct:.2f} %", f"{c.after_pct:.2f} %", f"{c.points:+.2f}"]
        for c in found[:limit]
    ]


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> Table:
    """A table for the terminal; names are text, never markup."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        made.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in body:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return made


def document(recording: FlameRecording, found: Profile) -> FlameGraph:
    """The document of a recording and of the profile that is shown of it."""
    known = {n: value for n, value in vars(recording).items() if n in FlameGraph.model_fields}
    return FlameGraph(
        **known,
        total_ns=profiles.total(found),
        runnable_ns=recording.samples.of(RUNNABLE).total_ns,
        frames=profiles.functions(found)[:_FRAMES],
        stacks=[FlameStack(frames=stack, total_ns=ns) for stack, ns in found.items()],
    )


def _duration(ns: float) -> str:
    return numbers.duration(ns / 1000)


@dataclass(frozen=True)
class Graph:
    """One flame graph: its tree as the page's script draws it."""

    id: str
    title: str
    note: str
    data: dict[str, Any]
    left_out: int

    @property
    def embedded(self) -> Markup:
        """The data for the page's script, safe within a page."""
        return Markup(page_frame.embeddable(self.data))  # noqa: S704


@dataclass
class _Node:
    """A frame below its callers. values: afterwards, and before."""

    values: list[float] = field(default_factory=lambda: [0.0, 0.0])
    children: dict[str, _Node] = field(default_factory=dict)


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
    narrowest = _NARROWEST * (sum(root.values) or 1.0)
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


def difference(before: Profile, after: Profile, names: tuple[str, str]) -> Graph:
    """The change between two profiles, each in % of its own total."""
    note = (
        "Red has a larger share of all time afterwards, blue a smaller one; each profile is taken "
        "as 100 %, and a frame is as wide as its mean share."
    )
    for name, found in zip(names, (before, after), strict=True):
        note += "" if found else f" {name} has no such time."
    return graph("change", f"Change from {names[0]} to {names[1]}", after, before, note=note)


def recording_page(recording: FlameRecording, found: Profile, *, idle: bool) -> str:
    """The page of a recording; time without a processor has a graph of its own."""
    title = TITLES[recording.mode]
    graphs = [graph("main", title, found)]
    if recording.mode != "on" and (runnable := profiles.profile(recording.samples.of(RUNNABLE))):
        note = "Under what the process had waited for, or where it was preempted."
        graphs.append(graph("runnable", "Ready, but without a processor", runnable, note=note))
    alarms = [note for note in recording.notes if "lost" in note or "ended" in note]
    return page(
        title,
        f"{recording.target}, {numbers.seconds(recording.duration_s)}",
        graphs,
        HEAD,
        rows(found, _PAGE_ROWS),
        alarms=alarms,
        notes=[note for note in recording.notes if note not in alarms],
        answers=lines(recording, found, idle=idle),
    )


def change_page(
    names: tuple[str, str],
    before: Profile,
    after: Profile,
    found: Sequence[FrameChange],
) -> str:
    """The page of the change between two profiles."""
    return page(
        "What changed",
        f"{names[0]} against {names[1]}",
        [difference(before, after, names)],
        CHANGE_HEAD,
        change_rows(found, _PAGE_ROWS),
    )


def page(
    title: str,
    subtitle: str,
    graphs: Sequence[Graph],
    head: Sequence[str],
    table: Sequence[Sequence[str]],
    **sentences: Sequence[str],
) -> str:
    """A page as a string. table: what the graphs show, for readers who cannot see them.

    sentences: its alarms, notes and answers.
    """
    return page_frame.render(
        _PACKAGE,
        "page.html.j2",
        (),
        scripts=[script()],
        title=title,
        subtitle=subtitle,
        graphs=graphs,
        table=table,
        table_head=head,
        version=pgtare.__version__,
        created=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S %Z}",
        **{"alarms": (), "notes": (), "answers": (), **sentences},
    )


def script() -> str:
    """The program that draws every graph of a page."""
    return (resources.files(_PACKAGE) / "templates" / "flame.js").read_text(encoding="utf-8")
