"""The ledger of a trace: every nanosecond of a process booked once, by call and by component.

Components are the wait events and what is left of the time besides them. docs/trace.md derives
the arithmetic; all profiles are sums over this one table, which is why they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgtare.kit.notes import alike, amounts
from pgtare.observing.trace.analysis import kernel_time
from pgtare.observing.trace.analysis.time_scale import within, worked_until
from pgtare.observing.trace.analysis.timeline import Process, processes
from pgtare.observing.trace.analysis.tracing_cost import Costs, of_recording
from pgtare.observing.trace.file.reader import Integers, Trace
from pgtare.observing.trace.file.records import CALL, SEVERAL, CallKind

Floats = npt.NDArray[np.float64]

#: Components other than wait events, whose numbers are not negative.
CPU, QUEUE, CLIENT, UNACCOUNTED, OWN, MISSING = -1, -2, -3, -4, -5, -6
NAMES = {
    CPU: "CPU outside waits",
    QUEUE: "waiting for a processor",
    CLIENT: "client",
    UNACCOUNTED: "unaccounted",
    OWN: "pgtare itself (estimated)",
    MISSING: "not recorded",
}
#: Types of wait events in which the kernel, or an extension, may work; in others processes sleep.
_WORKING = ("IO", "Extension")
_LEVELS = 256
#: The share of the work that is done when all streams are decoded.
_DECODING = 0.7


@dataclass
class LedgerEntries:
    """Bookings. process: index; call, top: indices into the ledger's calls, -1 if none is open.

    top: the outermost call. times: 0 for the later parts of a wait that was cut at the end of a
    call. whole: with all parts, uncut. begin: of the first piece, ns since 1970.
    """

    process: Integers
    call: Integers
    top: Integers
    component: Integers
    ns: Floats
    times: Integers
    whole: Floats
    begin: Integers

    def of(self, kept: npt.NDArray[np.bool_]) -> LedgerEntries:
        """Some of them."""
        return LedgerEntries(*(values[kept] for values in vars(self).values()))

    @staticmethod
    def joined(parts: Sequence[LedgerEntries]) -> LedgerEntries:
        """Those of all parts, in their order."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return LedgerEntries(*(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return len(self.ns)


_NONE = np.zeros(0, np.int64)
_NO_ENTRIES = LedgerEntries(*(_NONE,) * 4, np.zeros(0), _NONE, np.zeros(0), _NONE)


@dataclass(eq=False)  # compared by identity, so that what is derived from it can be kept by it
class Ledger:
    """All bookings of a trace. calls: of all processes, call_process: the process of each.

    kernel_share: by event, the share of its time in which the kernel worked (estimated).
    """

    trace: Trace
    processes: list[Process]
    calls: npt.NDArray[np.void]
    call_process: Integers
    entries: LedgerEntries
    kernel_share: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def fetches(self) -> Integers:
        """How many calls each record of a call represents: several fetches can share one."""
        return np.concatenate([_NONE, *(process.fetches() for process in self.processes)])

    def name(self, component: int) -> str:
        """What a component is called."""
        return NAMES[component] if component < 0 else self.trace.label(component)


def ledger(
    trace: Trace, costs: Costs | None = None, tell: Callable[[float], None] = lambda _: None
) -> Ledger:
    """Book the time of every process of a trace. tell: gets how much is done, from 0 to 1."""
    found = processes(trace, lambda share: tell(_DECODING * share))
    books = [_Book(process, trace) for process in found]
    asleep = {e for e, event in trace.events.items() if event.type not in _WORKING}
    shares = kernel_time.shares([book.sample for book in books], asleep)
    costs = costs or of_recording(trace.recording)
    parts, calls, owners, offset = [_NO_ENTRIES], [np.zeros(0, CALL)], [_NONE], 0
    for i, book in enumerate(books):
        tell(_DECODING + (1 - _DECODING) * i / len(books))
        entries = book.entries(shares, costs)
        entries.process = np.full(len(entries), i, np.int64)
        for column in (entries.call, entries.top):
            column[column >= 0] += offset
        parts.append(entries)
        calls.append(book.process.calls)
        owners.append(np.full(len(book.process.calls), i, np.int64))
        offset += len(book.process.calls)
    return Ledger(
        trace,
        found,
        np.concatenate(calls),
        np.concatenate(owners),
        LedgerEntries.joined(parts),
        shares.by_event,
        [*trace.notes(), *_notes(found)],
    )


def _notes(processes: list[Process]) -> list[str]:
    gone = ((process.ring.pid, process.gone_bytes) for process in processes)
    of_processes = (
        (process.ring.pid, note) for process in processes for note in process.stream.notes
    )
    return [*amounts(gone, "bytes of calls are missing"), *alike("process", of_processes)]


def _shares(ns: Floats, owner: Integers, cpu: Floats) -> Floats:
    """Of the CPU time of each piece, what its owner is to give up of all of its own. -1: none."""
    if not len(ns):
        return np.zeros(len(cpu))
    owned = owner >= 0
    room = np.bincount(owner[owned], cpu[owned], minlength=len(ns))
    share = np.divide(ns, room, out=np.zeros(len(ns)), where=room > 0)
    return np.where(owned, share[owner], 0.0)


class _Book:
    """The pieces of one process: between two neighbouring moments at which anything changes."""

    def __init__(self, process: Process, trace: Trace) -> None:
        self.process = process
        p = process
        self.shown = _shown(p.calls)
        moments = np.concatenate(
            [
                np.array([p.begin, p.end]),
                p.requests.ravel(),
                p.missing.ravel(),
                p.calls["start"][self.shown],
                ends_of_work(p.calls)[self.shown],
                p.cpu[:, 0],
            ]
        )
        self.bounds = np.unique(np.clip(moments, p.begin, p.end))
        self.length = np.diff(self.bounds)
        middle = self.bounds[:-1] + self.length // 2
        self.call, self.top = _owners(p.calls, self.shown, middle)
        self.request = within(p.requests, middle)
        self.missing = within(p.missing, middle) >= 0
        # a call is work, whatever the records of requests say
        self.busy = ((self.request >= 0) | (self.call >= 0)) & ~self.missing
        self.reading = np.searchsorted(p.cpu[:, 0], middle, "right") - 1
        self._cut_waits(trace)

    def _cut_waits(self, trace: Trace) -> None:
        """Waits cut at the bounds of pieces, without what is part of another line.

        This happens if records are missing (a ring of waits tells of requests that were not traced,
        too), and waits for the client between requests.
        """
        w = self.process.waits
        order = np.argsort(w.start, kind="stable")
        start, end, event = w.start[order], (w.start + w.length)[order], w.event[order]
        if len(start):
            # no two at a time: what a wait shares with an earlier one is the earlier one's
            reached = np.maximum.accumulate(end)
            start = np.maximum(start, np.concatenate([start[:1], reached[:-1]]))
        start = np.maximum(start, self.process.begin)
        end = np.minimum(end, self.process.end)
        kept = end > start
        start, end, event = start[kept], end[kept], event[kept]
        first = np.searchsorted(self.bounds, start, "right") - 1
        last = np.maximum(np.searchsorted(self.bounds, end, "left") - 1, first)
        parts = last - first + 1
        which = np.repeat(np.arange(len(start)), parts)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
        piece = first[which] + nth
        begin = np.maximum(start[which], self.bounds[piece])
        ns = np.minimum(end[which], self.bounds[piece + 1]) - begin
        clients = np.isin(event[which], trace.client_events)
        kept = ~self.missing[piece] & (self.busy[piece] | ~clients)
        self.wait_piece, self.wait_event = piece[kept], event[which][kept]
        self.wait_ns, self.wait_times = ns[kept], (nth[kept] == 0).astype(np.int64)
        self.wait_whole = (end - start)[which][kept].astype(float)
        pieces = len(self.length)
        self.waited = np.bincount(self.wait_piece, self.wait_ns, minlength=pieces)
        self.outside = np.maximum(self.length - self.waited, 0.0)

    @cached_property
    def sample(self) -> kernel_time.Sample:
        """Per interval between two readings: CPU beyond the time outside waits, and the waits."""
        n, known = self._between_readings
        spent = np.diff(self.process.cpu[:, 1])[:n] if n else np.zeros(0)
        outside = np.bincount(
            self.reading[known & self.busy], self.outside[known & self.busy], minlength=n
        )
        breaks = np.concatenate([[False], self.busy[:-1] & ~self.busy[1:]])
        idle = np.bincount(self.reading[known & breaks], minlength=n)
        of = known[self.wait_piece]
        blind = np.bincount(self.reading[known], minlength=n) == 0
        return kernel_time.Sample(
            np.where(blind, 0.0, spent - outside),
            spent.astype(float),
            idle.astype(float),
            self.reading[self.wait_piece][of],
            self.wait_event[of],
            self.wait_ns[of],
            self.wait_times[of],
        )

    @cached_property
    def _between_readings(self) -> tuple[int, npt.NDArray[np.bool_]]:
        """How many intervals between two readings there are, and the pieces in those of use.

        If records are missing nothing tells what spent the CPU time: not those that are there.
        """
        n = max(len(self.process.cpu) - 1, 0)
        within = (self.reading >= 0) & (self.reading < n)
        lacking = np.bincount(self.reading[within & self.missing], minlength=n) > 0
        return n, within & ~np.append(lacking, False)[np.clip(self.reading, 0, n)]

    def _cpu(self, shares: kernel_time.Shares) -> Floats:
        """CPU outside waits by piece; none if no two readings lie around it."""
        n, known = self._between_readings
        if not n:
            return np.zeros(len(self.length))
        s = self.sample
        within = np.bincount(s.interval, shares.of(s.event) * s.wait_ns, minlength=n)
        spent = np.diff(self.process.cpu[:, 1]) - within - shares.idle_ns * s.idle
        work = np.where(known & self.busy, self.outside, 0.0)
        room = np.bincount(self.reading[known], work[known], minlength=n)
        share = np.divide(np.clip(spent, 0.0, room), room, out=np.zeros(n), where=room > 0)
        return np.where(known, work * share[np.clip(self.reading, 0, n - 1)], 0.0)

    def entries(self, shares: kernel_time.Shares, costs: Costs) -> LedgerEntries:
        """Every booking of the process."""
        cpu = self._cpu(shares)
        rest = np.where(self.busy, self.outside - cpu, 0.0)
        queue = rest * self._queued(rest)
        own = self._own(costs, cpu)
        client = np.where(~self.busy & ~self.missing, self.outside, 0.0)
        lost = np.where(self.missing, self.outside, 0.0)
        parts = [
            self._booked(CPU, cpu - own),
            self._booked(QUEUE, queue),
            self._booked(UNACCOUNTED, rest - queue),
            self._booked(OWN, own),
            self._booked(CLIENT, client),
            self._booked(MISSING, lost),
        ]
        piece = self.wait_piece
        waits = LedgerEntries(
            piece,
            self.call[piece].copy(),
            self.top[piece].copy(),
            self.wait_event,
            self.wait_ns.astype(float),
            self.wait_times,
            self.wait_whole,
            self.bounds[piece],
        )
        parts.append(waits)
        return LedgerEntries.joined(parts)

    def _queued(self, rest: Floats) -> Floats:
        """The share of the unexplained time of each piece in which it waited for a processor.

        If no two readings of CPU time lie around a piece, it may have been CPU as well.
        """
        queue = self.process.queue
        if len(queue) < 2:
            return np.zeros(len(rest))
        window = np.searchsorted(queue[:, 0], self.bounds[:-1] + self.length // 2, "right") - 1
        known = (window >= 0) & (window < len(queue) - 1)
        sums = np.bincount(window[known], rest[known], minlength=len(queue) - 1)
        delays = np.diff(queue[:, 1]).astype(float)
        ratio = np.divide(delays, sums, out=np.zeros(len(delays)), where=sums > 0)
        known &= self._between_readings[1]
        return np.where(known, np.minimum(ratio, 1.0)[np.clip(window, 0, len(ratio) - 1)], 0.0)

    def _own(self, costs: Costs, cpu: Floats) -> Floats:
        """What the trace itself took of the CPU time of each piece."""
        calls = self.process.calls
        more = (self.process.fetches() - 1).astype(np.float64)
        waits = np.bincount(self.wait_piece, self.wait_times, minlength=len(cpu)).astype(np.float64)
        share = np.divide(costs.of_waits(waits), cpu, out=np.zeros(len(cpu)), where=cpu > 0)
        share += _shares(costs.of_calls(calls["kind"], more), self.call, cpu)
        share += _shares(np.full(len(self.process.requests), costs.request_ns), self.request, cpu)
        if self.process.stream.rowsources:
            share += self._own_of_row_sources(costs, cpu)
        return np.asarray(cpu * np.minimum(share, 1.0), np.float64)

    def _own_of_row_sources(self, costs: Costs, cpu: Floats) -> Floats:
        """The share of each piece; nodes of a cursor's plan work in its fetches."""
        calls = self.process.calls
        index = {number: i for i, number in enumerate(calls["call"].tolist())}
        ns = np.zeros(len(calls))
        for run in self.process.stream.rowsources:
            if run.call in index:
                ns[index[run.call]] += costs.of_row_sources(run)
        holder = [index.get(number, i) for i, number in enumerate(calls["execution"].tolist())]
        return _shares(ns, np.array([*holder, -1], np.int64)[self.call], cpu)

    def _booked(self, component: int, ns: Floats) -> LedgerEntries:
        """One booking for each call, or span outside of calls."""
        kept = np.flatnonzero(ns > 0)
        span = np.cumsum(np.concatenate([[0], self.busy[1:] != self.busy[:-1]]))
        owner = np.where(self.call >= 0, self.call, len(self.process.calls) + span)[kept]
        owners, first, inverse = np.unique(owner, return_index=True, return_inverse=True)
        n, of = len(owners), kept[first]
        sums = np.bincount(np.asarray(inverse).ravel(), ns[kept], n).astype(np.float64)
        return LedgerEntries(
            np.zeros(n, np.int64),
            self.call[of].copy(),
            self.top[of].copy(),
            np.full(n, component),
            sums,
            np.ones(n, np.int64),
            sums,
            self.bounds[of],
        )


def outermost(calls: npt.NDArray[np.void], moments: Integers) -> Integers:
    """The outermost call of a process open at each moment, by index; -1: none."""
    return _owners(calls, _shown(calls), moments)[1]


def _shown(calls: npt.NDArray[np.void]) -> Integers:
    """Calls that take time of their own."""
    return np.flatnonzero(ends_of_work(calls) > calls["start"])


def ends_of_work(calls: npt.NDArray[np.void]) -> Integers:
    """When each call was over for itself.

    An execution lasts until its portal is closed, but works in its first run only; each further
    one is a fetch, a call of its own. Several fetches in one record have no waits, and what their
    caller does between them is the caller's: they are booked in one piece, at their beginning.
    """
    several = (calls["kind"] == CallKind.FETCH) & (calls["flags"] & SEVERAL != 0)
    return np.where(
        (calls["kind"] == CallKind.EXECUTE) | several, worked_until(calls), calls["end"]
    )


def _owners(
    calls: npt.NDArray[np.void], shown: Integers, moments: Integers
) -> tuple[Integers, Integers]:
    """The innermost and the outermost call open at each moment, by index; -1: none.

    Calls of a process are nested: painted level by level, the innermost remains.
    """
    inner = np.full(len(moments), -1, np.int64)
    top = inner.copy()
    start, end = calls["start"][shown], ends_of_work(calls)[shown]
    order = np.lexsort((calls["call"][shown], -end, start))
    start, end, shown = start[order], end[order], shown[order]
    level = np.arange(len(start)) - np.searchsorted(np.sort(end), start, "right")
    for current in range(min(int(level.max(initial=-1)) + 1, _LEVELS)):
        of = level == current
        s, e, which = start[of], end[of], shown[of]
        i = np.searchsorted(s, moments, "right") - 1
        hit = (i >= 0) & (moments < e[np.maximum(i, 0)]) if len(e) else np.zeros(len(i), bool)
        inner[hit] = which[i[hit]]
        if current == 0:
            top = inner.copy()
    return inner, top
