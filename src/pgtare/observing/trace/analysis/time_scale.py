"""One scale for the times that rings hold: ns since 1970, and one zero of processor time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.file.reader import Ring, Trace, Waits
from pgtare.observing.trace.file.records import ESTIMATED, POSTGRES_EPOCH_US, CallKind, Stream

Integers = npt.NDArray[np.int64]

#: The server tells of arrivals, and estimates starts, in whole µs, cut off: ns.
_STEP = 1000
#: No two rings of one session are further apart, in ns.
_FAR = 1 << 59


def one_origin(readings: Integers, marked: Integers) -> Integers:
    """Both series of CPU readings as one: that of the ring of waits counts from another zero.

    CPU time never falls. So a reading of one series lies between its neighbours of the other,
    which bounds the difference of the two zeros from both sides, best if two are close.
    """
    if not len(readings) or not len(marked):
        return readings if len(readings) else marked
    after = np.searchsorted(marked[:, 0], readings[:, 0])
    before = after - 1
    low = (marked[np.maximum(before, 0), 1] - readings[:, 1])[before >= 0]
    high = (marked[np.minimum(after, len(marked) - 1), 1] - readings[:, 1])[after < len(marked)]
    if not len(low) or not len(high):
        return readings
    zero = (int(low.max()) + int(high.min())) // 2
    return rising(np.concatenate([readings, marked - np.array([0, zero])]))


def rising(readings: Integers) -> Integers:
    """In order of time; readings that fall below an earlier one are of no use."""
    readings = readings[np.argsort(readings[:, 0], kind="stable")]
    if not len(readings):
        return readings
    highest = np.maximum.accumulate(readings[:, 1])
    kept = readings[readings[:, 1] >= highest]
    return np.asarray(kept[np.concatenate([[True], np.diff(kept[:, 0]) > 0])])


def shift_of_waits(decoded: Stream, other: Ring, base: int) -> int | None:
    """What turns times of a ring of waits into those of the ring of calls; None: of another life.

    Both count from a wall clock read to the µs: the server's record ties them to the ns.
    """
    for _, started_us, zero in decoded.wait_rings:
        started_ns = (started_us + POSTGRES_EPOCH_US) * 1000
        shift = base + zero - other.started_ns
        if abs(started_ns - other.started_ns) < 1000 and abs(shift) < _FAR:
            return shift
    return None


def absolute_calls(calls: npt.NDArray[np.void], base: int) -> npt.NDArray[np.void]:
    """Calls with times since 1970. base: the zero of their ring, in ns since 1970."""
    moved = calls.copy()
    moved["start"] += base
    moved["end"] += base
    moved["start"] = np.minimum(moved["start"], moved["end"])
    _after_predecessors(moved)
    return moved


def _after_predecessors(calls: npt.NDArray[np.void]) -> None:
    """Move starts that are estimates (true to the µs) behind the end of the call before.

    Calls are in the order of their ends and are numbered in that of their beginnings: what
    ended before and has a lower number was over when this one began. A bind is numbered only when
    it has been answered: calls that began later, such as its plan, are within it. It closes the
    portal of the statement before it, whose execution had worked until its answer only.
    """
    number, start = calls["call"], calls["start"]
    end = np.where(calls["kind"] == CallKind.EXECUTE, worked_until(calls), calls["end"])
    for i in np.flatnonzero(calls["flags"] & ESTIMATED).tolist():
        for j in range(i - 1, max(i - 1000, -1), -1):
            if number[j] < number[i] and start[j] < start[i] + _STEP:
                start[i] = min(max(start[i], end[j]), calls["end"][i])
                break


def worked_until(calls: npt.NDArray[np.void]) -> Integers:
    """When each call was over, had it worked in one piece from its beginning on."""
    return np.asarray(np.minimum(calls["start"] + np.maximum(calls["busy"], 0), calls["end"]))


def ends_of_waits_for_clients(trace: Trace, waits: Waits) -> Integers:
    """When waits for the client ended, in order, ns."""
    ends: Integers = (waits.start + waits.length)[np.isin(waits.event, trace.client_events)]
    return np.sort(ends)


def sharpened(arrivals: Integers, ends: Integers) -> Integers:
    """Arrivals (ns, true to the µs) as the ends of the waits that they ended, if there are any.

    A message that was there already ended no wait.
    """
    if not len(ends):
        return arrivals
    following = ends[np.minimum(np.searchsorted(ends, arrivals, "left"), len(ends) - 1)]
    late = following - arrivals
    return np.asarray(np.where((late > 0) & (late < _STEP), following, arrivals))


def sharpen_calls(calls: npt.NDArray[np.void], ends: Integers) -> None:
    """The same for calls that begin with a message, whose arrival the server only estimates."""
    of = calls["flags"] & ESTIMATED != 0
    start = sharpened(calls["start"][of], ends)
    calls["start"][of] = np.minimum(start, calls["end"][of])


def within(spans: Integers, moments: Integers) -> Integers:
    """The index of the span in which each moment lies, -1: none. Spans do not overlap."""
    if not len(spans):
        return np.full(len(moments), -1, np.int64)
    i = np.searchsorted(spans[:, 0], moments, "right") - 1
    inside = (i >= 0) & (moments < spans[np.maximum(i, 0), 1])
    return np.where(inside, i, -1)
