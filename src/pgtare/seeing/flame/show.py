"""A recording, or the change between two, in words, tables, graphs and as a document."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.terminal_text import plain
from pgtare.seeing.flame import profile as profiles
from pgtare.seeing.flame.documents import FlameGraph, FlameStack, FrameChange
from pgtare.seeing.flame.page import Graph, graph, page
from pgtare.seeing.flame.profile import Profile
from pgtare.seeing.flame.recording import FlameRecording
from pgtare.seeing.flame.samples import BLOCKED, RUNNABLE

TITLES = {
    "on": "On the processor",
    "off": "Blocked",
    "wake": "Blocked, and what ended it",
}
HEAD = ["frame", "with callees", "share", "in itself"]
CHANGE_HEAD = ["frame", "before", "after", "points"]
#: Rows of a table in the terminal, and on a page.
_ROWS, PAGE_ROWS = 15, 60
#: Most functions that a document lists.
_FRAMES = 200


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
    return [
        [
            f.name,
            _duration(f.total_ns),
            numbers.percent(100 * f.total_ns / whole),
            _duration(f.own_ns),
        ]
        for f in profiles.functions(found)[:limit]
    ]


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


def alone(found: Profile, id: str, title: str, seconds: float) -> Graph:
    """The graph of a profile, and how much time it is, of how many seconds."""
    spent = f"{_duration(profiles.total(found))} in {numbers.seconds(seconds)}."
    return graph(id, title, found, note=spent if found else "No such time was seen.")


def difference(
    before: Profile, after: Profile, *, id: str, names: tuple[str, str], what: str = ""
) -> Graph:
    """The change between two profiles, each in % of its own total. what: they are profiles of."""
    title = f"change from {names[0]} to {names[1]}"
    note = (
        "Red has a larger share of all time afterwards, blue a smaller one; each profile is taken "
        "as 100 %, and a frame is as wide as its mean share."
    )
    for name, found in zip(names, (before, after), strict=True):
        note += "" if found else f" {name} has no such time."
    return graph(id, f"{what}: {title}" if what else f"C{title[1:]}", after, before, note=note)


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
        alarms=alarms,
        notes=[note for note in recording.notes if note not in alarms],
        answers=lines(recording, found, idle=idle),
        table=rows(found, PAGE_ROWS),
        table_head=HEAD,
    )


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
