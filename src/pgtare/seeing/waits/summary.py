"""Sums up a recording part by part: sessions over time, durations, time by event and statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.seeing.waits.recorded_cpu import CpuTime, Shares
from pgtare.seeing.waits.recording import Columns, OpenWait, Recording
from pgtare.server.wait_ring import RingRecordKind, bucket, epoch_ns

BINS = 180
BUCKETS = 32
CPU = "CPU"

Floats = npt.NDArray[np.float64]

# The first byte of an event's number, as PostgreSQL assigns them (wait_classes.h).
_CLASSES = {
    0x01: "LWLock",
    0x03: "Lock",
    0x04: "BufferPin",
    0x05: "Activity",
    0x06: "Client",
    0x07: "Extension",
    0x08: "IPC",
    0x09: "Timeout",
    0x0A: "IO",
    0x0B: "InjectionPoint",
}
_BUFFER = 0x04
_IDLE = frozenset({"Activity", "Client"})


@dataclass
class Sum:
    """Waits of one event that ended: how many, and the histogram of their lengths in ns.

    total_ns: their time within the recording, and that of the waits under way at its end (open).
    lengths_ns: from beginning to end, of those that ended.
    """

    waits: int = 0
    open: int = 0
    total_ns: float = 0.0
    lengths_ns: float = 0.0
    max_ns: int = 0
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))


@dataclass
class StatementSum:
    """One query identifier: runs, CPU time, and waits by event (number)."""

    runs: int = 0
    cpu_ns: float = 0.0
    events: dict[int, Sum] = field(default_factory=lambda: defaultdict(Sum))

    @property
    def waited_ns(self) -> float:
        """Time waited for anything but the client."""
        return sum(s.total_ns for event, s in self.events.items() if not is_idle(event))


@dataclass
class Summary:
    """Sums over the time of a recording; edges_s are the bounds of the bins of time.

    active: by class and for CPU, the sessions on average in each bin. heat: waits by bin of the
    time they ended and bucket of their length, without idle ones.
    """

    recording: Recording
    edges_s: Floats
    active: dict[str, Floats] = field(default_factory=dict)
    heat: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    events: dict[int, Sum] = field(default_factory=lambda: defaultdict(Sum))
    statements: dict[int, StatementSum] = field(default_factory=lambda: defaultdict(StatementSum))

    def label(self, event: int) -> str:
        """An event as its users write it; its number if the name was not learned."""
        names = self.recording.events.get(str(event))
        return "/".join(names) if names else f"{self.class_of(event)}/0x{event:08X}"

    def class_of(self, event: int) -> str:
        """The class of an event by its number, as the recorded server calls it."""
        if event >> 24 == _BUFFER and int(self.recording.server) >= 190000:
            return "Buffer"  # since 19 it has the locks on a buffer's content as well
        return _CLASSES.get(event >> 24, "Other")


def is_idle(event: int) -> bool:
    """Whether it is a wait for something to do."""
    return _CLASSES.get(event >> 24) in _IDLE


def summarise(recording: Recording, parts: Iterable[Columns]) -> Summary:
    """Read the parts once; what ended before the recording began is left out."""
    found = Summary(recording, np.linspace(0.0, max(recording.duration_s, 1e-3), BINS + 1))
    found.heat = np.zeros((BINS, BUCKETS), np.int64)
    began_ns = epoch_ns(recording.started)
    end_ns = round(max(recording.duration_s, 1e-3) * 1e9)
    workers = [s.number for s in recording.sessions if s.leader_pid is not None]
    cpu = CpuTime()
    for part in parts:
        start = np.asarray(part["start_ns"], np.int64) - began_ns
        waits = part["kind"] == RingRecordKind.WAIT
        _add_waits(found, part, start, waits & (start + part["value"] > 0))
        begins = (
            (part["kind"] == RingRecordKind.STATEMENT_BEGIN) & (part["depth"] == 0) & (start > 0)
        )
        begins &= ~np.isin(part["session"], workers)  # they run a part of their leader's
        for query_id, n in zip(
            *np.unique(part["query_id"][begins], return_counts=True), strict=True
        ):
            found.statements[int(query_id)].runs += int(n)
        for shared in cpu.add(part, start):
            _add_cpu(found, shared)
    _add_open_waits(found, began_ns, end_ns)
    return found


def throughout(recording: Recording) -> list[OpenWait]:
    """Waits for something other than work that lasted from before the recording to its end."""
    return [w for w in recording.waiting_at_end if not w.idle and w.started <= recording.started]


def _add_open_waits(found: Summary, began_ns: int, end_ns: int) -> None:
    """Waits under way at the end, up to the end: no trace has them."""
    numbers = {tuple(names): int(number) for number, names in found.recording.events.items()}
    for wait in found.recording.waiting_at_end:
        name = wait.type, wait.event
        if name not in numbers:  # no record has this event: it needs no more than its class
            numbers[name] = _number(wait.type, len(numbers))
            found.recording.events[str(numbers[name])] = list(name)
        start = epoch_ns(wait.started) - began_ns
        ns = end_ns - max(start, 0)
        if ns <= 0:
            continue
        event = numbers[name]
        for sums in (found.events[event], found.statements[wait.query_id].events[event]):
            sums.open += 1
            sums.total_ns += ns
            sums.max_ns = max(sums.max_ns, end_ns - start)
        _add_active(found, found.class_of(event), np.array([max(start, 0)]), np.array([end_ns]))


def _number(kind: str, index: int) -> int:
    """A number of the class, that no record has: events of the server have small ones."""
    names = _CLASSES | {_BUFFER: "Buffer"} if kind == "Buffer" else _CLASSES
    code = next((code for code, name in names.items() if name == kind), 0xFF)
    return code << 24 | 0xF00000 | index


def occupancy(
    start: npt.NDArray[Any], end: npt.NDArray[Any], edges: Floats, weight: Floats | None = None
) -> Floats:
    """How many of the intervals [start, end) cover each bin on average, each with its weight.

    All in one unit. The time before t that intervals cover is a difference of two sums of ramps,
    one from the starts and one from the ends, so that sorting is all the work.
    """

    def ramps(at: npt.NDArray[Any]) -> Floats:
        order = np.argsort(at)
        ordered = at[order].astype(np.float64)
        each = np.ones(len(at)) if weight is None else weight[order]
        n = np.concatenate([[0.0], np.cumsum(each)])
        s = np.concatenate([[0.0], np.cumsum(each * ordered)])
        k = np.searchsorted(ordered, edges)
        return np.asarray(n[k] * edges - s[k], dtype=np.float64)

    covered = np.diff(ramps(start) - ramps(end))
    return np.asarray(np.maximum(covered, 0.0) / np.diff(edges), dtype=np.float64)


def _add_waits(
    found: Summary, part: Columns, start: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_]
) -> None:
    event, value, query_id = part["event"][kept], part["value"][kept], part["query_id"][kept]
    begin = start[kept]
    where = bucket(value)
    inside = np.minimum(begin + value, round(found.edges_s[-1] * 1e9)) - np.maximum(begin, 0)
    inside = np.maximum(inside, 0)
    # Sorted once: events times statements can be many.
    order = np.lexsort((query_id, event))
    changes = (np.diff(event[order]) != 0) | (np.diff(query_id[order]) != 0)
    for group in np.split(order, np.flatnonzero(changes) + 1):
        if len(group):
            number, statement = int(event[group[0]]), int(query_id[group[0]])
            for sums in (found.events[number], found.statements[statement].events[number]):
                _sum_up(sums, value[group], inside[group], where[group])
    classes = event >> 24
    for code in np.unique(classes):
        name = found.class_of(int(code) << 24)
        of = classes == code
        _add_active(found, name, begin[of], begin[of] + value[of])
        if name not in _IDLE:
            end_s = (begin[of] + value[of]) / 1e9
            bins = np.clip(np.searchsorted(found.edges_s, end_s, "right") - 1, 0, BINS - 1)
            flat = np.bincount(bins * BUCKETS + where[of], minlength=BINS * BUCKETS)
            found.heat += flat.reshape(BINS, BUCKETS)


def _sum_up(
    into: Sum,
    value: npt.NDArray[Any],
    inside: npt.NDArray[Any],
    where: npt.NDArray[np.int64],
) -> None:
    into.waits += len(value)
    into.total_ns += float(inside.sum())
    into.lengths_ns += float(value.sum())
    into.max_ns = max(into.max_ns, int(value.max()))
    into.histogram += np.bincount(where, minlength=BUCKETS)


def _add_active(
    found: Summary,
    name: str,
    start_ns: npt.NDArray[Any],
    end_ns: npt.NDArray[Any],
    weight: Floats | None = None,
) -> None:
    some = occupancy(start_ns / 1e9, end_ns / 1e9, found.edges_s, weight)
    found.active[name] = found.active.get(name, np.zeros(BINS)) + some


def _add_cpu(found: Summary, shared: Shares) -> None:
    _add_active(found, CPU, shared.begin, shared.end, shared.rate)
    last = round(found.edges_s[-1] * 1e9)
    inside = np.minimum(shared.end, last) - np.maximum(shared.begin, 0)
    own_ns = shared.rate * np.maximum(inside, 0)
    for number in np.unique(shared.query_id):
        found.statements[int(number)].cpu_ns += float(own_ns[shared.query_id == number].sum())
