"""Waterfalls: calls, waits and parallel workers over time, as drawings that need no script."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgtare.kit import numbers
from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.analysis.texts import StatementLabels
from pgtare.observing.trace.analysis.timeline import Process
from pgtare.observing.trace.file.records import call_name

WIDTH = 1000.0
ROW = 18
#: Bars of a row at most; what is shorter than others is left out, and counted.
_BARS = 400
_DEPTH = 8


@dataclass(frozen=True)
class Bar:
    """A bar: place and width in WIDTH, a colour class, and what it says when pointed at."""

    x: float
    width: float
    y: int
    color: str
    title: str


@dataclass(frozen=True)
class Waterfall:
    """A drawing. rows: (name, y); left_out: bars too short to be drawn."""

    title: str
    span: str
    bars: list[Bar]
    rows: list[tuple[str, int]]
    height: int
    left_out: int


_COLORS = {"IO": "c1", "Lock": "c7", "LWLock": "c2", "IPC": "c4", "Timeout": "c6", "Client": "c0"}
_OTHERS = "c5"
#: What the colours of bars mean: class and words.
OF_CALLS = (
    ("k1", "parse, bind"),
    ("k3", "plan"),
    ("k4", "execute; a worker's work"),
    ("k5", "fetch"),
    ("k6", "commit, rollback"),
    ("k8", "utility"),
)
OF_WAITS = (*((color, name) for name, color in _COLORS.items()), (_OTHERS, "other events"))


def draw(
    ledger: Ledger, labels: StatementLabels, index: int, begin: int, end: int, title: str
) -> Waterfall:
    """One process (by index) from begin to end: calls by depth, its waits, its workers."""
    process = ledger.processes[index]
    scale = WIDTH / max(end - begin, 1)
    y = 0
    bars: list[Bar] = []
    rows: list[tuple[str, int]] = []
    left_out = 0
    own = np.flatnonzero(ledger.call_process == index)
    calls = ledger.calls[own]
    inside = (calls["end"] > begin) & (calls["start"] < end)
    own, calls = own[inside], calls[inside]
    level = _levels(calls)

    def draw_bar(start: int, stop: int, color: str, title: str) -> None:
        x = round((max(start, begin) - begin) * scale, 2)
        width = round((min(stop, end) - max(start, begin)) * scale, 2)
        bars.append(Bar(x, max(width, 0.3), y, color, title))

    for depth in range(min(int(level.max(initial=-1)) + 1, _DEPTH)):
        rows.append(("calls" if not depth else f"within, {depth}", y))
        which = np.flatnonzero(level == depth)
        kept = _longest(calls["end"][which] - calls["start"][which])
        left_out += len(which) - len(kept)
        for i in which[kept].tolist():
            kind = int(calls["kind"][i])
            length = numbers.duration(int(calls["end"][i] - calls["start"][i]) / 1000)
            text = labels.names[int(labels.of_call[own[i]])][:500]
            start, stop = int(calls["start"][i]), int(calls["end"][i])
            hint = f"{call_name(kind)}, {length}: {text}"
            draw_bar(start, stop, f"k{kind}", hint)
        y += ROW
    for who, name in [(process, "waits"), *_workers(ledger, process, begin, end)]:
        rows.append((name, y))
        w = who.waits
        near = np.flatnonzero((w.start < end) & (w.start + w.length > begin))
        kept = near[_longest(w.length[near])]
        left_out += len(near) - len(kept)
        if name != "waits":
            draw_bar(who.begin, who.end, "k4", f"{name} works")
        for i in kept.tolist():
            label = ledger.name(int(w.event[i]))
            color = _COLORS.get(label.partition("/")[0], _OTHERS)
            hint = f"{label}, {numbers.duration(int(w.length[i]) / 1000)}"
            draw_bar(int(w.start[i]), int(w.start[i] + w.length[i]), color, hint)
        y += ROW
    return Waterfall(title, numbers.duration((end - begin) / 1000), bars, rows, y, left_out)


def _workers(ledger: Ledger, leader: Process, begin: int, end: int) -> list[tuple[Process, str]]:
    return [
        (p, f"worker {p.ring.pid}")
        for p in ledger.processes
        if p.leader_pid == leader.ring.pid and p.begin < end and p.end > begin
    ][:16]


def _longest(length: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The indices of those that are drawn, in their order."""
    if len(length) <= _BARS:
        return np.arange(len(length))
    return np.sort(np.argpartition(-length, _BARS)[:_BARS])


def _levels(calls: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """How many calls are open when each begins: the row in which it is drawn."""
    order = np.lexsort((calls["call"], -calls["end"], calls["start"]))
    start, end = calls["start"][order], np.sort(calls["end"])
    open_calls = np.arange(len(calls)) - np.searchsorted(end, start, "right")
    found = np.zeros(len(calls), np.int64)
    found[order] = np.maximum(open_calls, 0)
    return found
