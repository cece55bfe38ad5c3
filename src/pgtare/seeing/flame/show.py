"""A recording, or the change between two, in words, tables and graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.terminal_text import plain
from pgtare.seeing.flame import frames
from pgtare.seeing.flame import profile as profiles
from pgtare.seeing.flame.graph import Graph, graph
from pgtare.seeing.flame.page import page
from pgtare.seeing.flame.profile import Change, Profile
from pgtare.seeing.flame.record import FlameRecording
from pgtare.seeing.flame.samples import BLOCKED, RUNNABLE, RUNNING, StackSamples

TITLES = {
    "on": "On the processor",
    "off": "Blocked",
    "wake": "Blocked, and what ended it",
}
_ROWS = 15


def main_profile(mode: str, samples: StackSamples, *, idle: bool) -> Profile:
    """What a recording is about: running time, or blocked time."""
    return profiles.profile(samples.of(RUNNING if mode == "on" else BLOCKED), idle=idle)


def main_samples(mode: str, samples: StackSamples, *, idle: bool) -> StackSamples:
    """Those that a recording is about."""
    wanted = np.array([idle or not frames.is_idle(stack) for stack in samples.stacks], np.bool_)
    chosen = samples.of(RUNNING if mode == "on" else BLOCKED)
    return chosen.where(wanted[chosen.stack]) if len(chosen) else chosen


def lines(recording: FlameRecording, found: Profile, *, idle: bool) -> list[str]:
    """The result in sentences."""
    spent = numbers.duration(profiles.total(found) / 1000)
    walk = "frame pointers" if recording.walk == "fp" else "DWARF"
    sentences = [
        f"{TITLES[recording.mode]}: {spent} in {numbers.seconds(recording.duration_s)}, "
        f"{recording.target}; {numbers.count(recording.events)} events, "
        f"{numbers.count(recording.lost)} lost; stacks by {walk}"
    ]
    if recording.mode != "on":
        runnable = profiles.total(profiles.profile(recording.samples.of(RUNNABLE)))
        sentences.append(f"Ready, but without a processor: {numbers.duration(runnable / 1000)}")
        if not idle:
            waited = profiles.total(profiles.profile(recording.samples.of(BLOCKED)))
            rest = numbers.duration((waited - profiles.total(found)) / 1000)
            sentences.append(f"Left out, waiting for something to do: {rest} (--idle shows it)")
    return sentences


def rows(found: Profile, limit: int = _ROWS) -> list[list[str]]:
    """The widest frames: name, time with callees, share, time in itself."""
    whole = profiles.total(found) or 1
    return [
        [
            f.name,
            numbers.duration(f.total_ns / 1000),
            numbers.percent(100 * f.total_ns / whole),
            numbers.duration(f.own_ns / 1000),
        ]
        for f in profiles.functions(found)[:limit]
    ]


HEAD = ["frame", "with callees", "share", "in itself"]


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> Table:
    """A table for the terminal; names are text, never markup."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        made.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in body:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return made


def graphs(recording: FlameRecording, found: Profile, *, idle: bool) -> list[Graph]:
    """The graphs of a recording: what it is about, and time without a processor apart."""
    made = [graph("main", TITLES[recording.mode], _ms(found))]
    if recording.mode != "on":
        runnable = profiles.profile(recording.samples.of(RUNNABLE), idle=True)
        if runnable:
            made.append(
                graph(
                    "runnable",
                    "Ready, but without a processor",
                    _ms(runnable),
                    note="Under what the process had waited for, or where it was preempted.",
                )
            )
    return made


def alone(found: Profile, id: str, title: str, seconds: float) -> Graph:
    """The graph of a profile, and how much time it is, of how many seconds."""
    spent = numbers.duration(profiles.total(found) / 1000)
    note = f"{spent} in {numbers.seconds(seconds)}." if found else "No such time was seen."
    return graph(id, title, _ms(found), note=note)


def difference(
    before: Profile,
    after: Profile,
    *,
    id: str = "change",
    names: tuple[str, str] = ("", ""),
    what: str = "",
) -> Graph:
    """The change between two profiles, each in % of its own total. what: they are profiles of."""
    title = f"change from {names[0]} to {names[1]}" if all(names) else "change"
    return graph(
        id,
        f"{what}: {title}" if what else f"C{title[1:]}",
        _shares(after),
        _shares(before),
        note="Red has a larger share of all time afterwards, blue a smaller one; each profile is "
        "taken as 100 %, and a frame is as wide as its mean share."
        + "".join(
            f" {name} has no such time."
            for name, p in zip(names, (before, after), strict=True)
            if not p and name
        ),
        unit="%",
    )


def change_rows(found: Sequence[Change], limit: int = _ROWS) -> list[list[str]]:
    """The frames that changed most."""
    return [
        [c.name, f"{c.before_pct:.2f} %", f"{c.after_pct:.2f} %", f"{c.change_pct:+.2f}"]
        for c in found[:limit]
    ]


CHANGE_HEAD = ["frame", "before", "after", "points"]


def recording_page(recording: FlameRecording, found: Profile, *, idle: bool) -> str:
    """The page of a recording."""
    sentences = lines(recording, found, idle=idle)
    alarms = [note for note in recording.notes if "lost" in note or "ended" in note]
    return page(
        TITLES[recording.mode],
        f"{recording.target}, {numbers.seconds(recording.duration_s)}",
        graphs(recording, found, idle=idle),
        alarms=alarms,
        notes=[note for note in recording.notes if note not in alarms],
        answers=sentences,
        table=rows(found, 60),
        table_head=HEAD,
    )


def _ms(found: Profile) -> dict[tuple[str, ...], float]:
    return {stack: ns / 1e6 for stack, ns in found.items()}


def _shares(found: Profile) -> dict[tuple[str, ...], float]:
    whole = profiles.total(found) or 1
    return {stack: 100 * ns / whole for stack, ns in found.items()}
