"""What counters grew by between two readings: arrays in, rows out; no server, no clock.

Differences are signed and never clamped, so that within an epoch the sum of all rows is the last
reading minus the first, in every column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pgtare.postgres.wait_counters.active_sessions import CPU_EVENT, CPU_TYPE
from pgtare.postgres.wait_counters.counter_table import (
    ACTIVE_NS,
    CALLS,
    NO_MAXIMUM,
    TOTAL_NS,
    Array,
    CounterTable,
    codes_of,
    empty,
    joined,
    matched,
)
from pgtare.postgres.wait_counters.epoch import ReadingBaseline, Transition

#: Kinds of rows in table `statements`.
STATEMENT, REST, OUTSIDE = "statement", "rest", "outside"
_STATEMENT_KEYS = ("role_oid", "database_oid", "query_id")
_EVENT_KEYS = ("type", "event", "idle")
_WITHOUT_IDENTITY = (*_STATEMENT_KEYS, *_EVENT_KEYS)


@dataclass(frozen=True)
class StatementRows:
    """The rows of one interval: `kind` says of each what it is."""

    kind: Array
    rows: CounterTable


def difference(
    first: CounterTable | None,
    last: CounterTable,
    transition: Transition,
    *,
    evicts: bool = False,
) -> CounterTable:
    """What each entry grew by; entries that did not are left out.

    evicts: an entry that is gone was evicted, and what it had counted stays; else it is zero now,
    as one that only had waits in progress. `max_ns` is NO_MAXIMUM unless the maximum rose;
    `running` is how many waits are in progress now.
    """
    if transition.baseline is ReadingBaseline.ANEW:
        return empty(last.keys)
    first = _baseline(first, last, transition)
    in_first, in_last, gone = matched(first, last)
    sums, max_ns = last.sums.copy(), last.max_ns.copy()
    if evicts:  # one that fell was evicted and made again, and nothing else says so
        remained = last.sums[in_last, CALLS] >= first.sums[in_first, CALLS]
        in_first, in_last = in_first[remained], in_last[remained]
    sums[in_last] -= first.sums[in_first]
    max_ns[in_last[max_ns[in_last] <= first.max_ns[in_first]]] = NO_MAXIMUM
    max_ns[max_ns <= 0] = NO_MAXIMUM
    grown = CounterTable(last.keys, sums, max_ns, last.running, last.processes)
    if not evicts and len(gone):
        left = first.select(gone)
        none = np.zeros(len(gone), np.int64)
        grown = joined(grown, CounterTable(left.keys, -left.sums, none + NO_MAXIMUM, none, none))
    return grown.select(np.any(grown.sums != 0, axis=1))


def _baseline(
    first: CounterTable | None, last: CounterTable, transition: Transition
) -> CounterTable:
    """The counters that the last ones are compared with."""
    if first is None or transition.baseline is ReadingBaseline.ZERO:
        return empty(last.keys)
    if transition.baseline is ReadingBaseline.SAME:
        return first
    # All counters were reset, but a wait in progress has lasted since before that. What of it was
    # over by then is the baseline: if it goes on, or if it has ended since, as shown by a
    # maximum that is longer than the time since the reset. Else it ended before and left no trace.
    in_first, in_last, _ = matched(first, last)
    carried, now = first.select(in_first), last.select(in_last)
    lasted = _in_progress_ns(carried) + carried.running * transition.before_ns
    goes_on = (carried.running > 0) & (_in_progress_ns(now) >= lasted)
    ended = (carried.running > 0) & (now.max_ns > transition.covered_ns)
    sums = np.zeros_like(carried.sums)
    sums[:, ACTIVE_NS] = np.where(goes_on | ended, np.minimum(lasted, now.sums[:, ACTIVE_NS]), 0)
    # a reset leaves the time of processes as it was: what passed before it is taken to be its share
    times = carried.keys["type"] == ""
    then, since = carried.sums[times, TOTAL_NS], now.sums[times, TOTAL_NS]
    share = transition.before_ns / max(1, transition.before_ns + transition.covered_ns)
    sums[times, TOTAL_NS] = then + np.rint(share * (since - then)).astype(np.int64)
    none = np.zeros(len(carried), np.int64)
    return CounterTable(carried.keys, sums, none, none, none)


def _in_progress_ns(table: CounterTable) -> Array:
    in_progress: Array = table.sums[:, ACTIVE_NS] - table.sums[:, TOTAL_NS]
    return in_progress


def statement_difference(
    first: CounterTable | None,
    last: CounterTable,
    transition: Transition,
) -> CounterTable:
    """What statements grew by, in rows that still have to be grouped.

    The key `identity` is never given twice, so an entry that was evicted and made again is a new
    one.
    """
    if transition.baseline is ReadingBaseline.ANEW:
        return empty(last.keys)
    if first is None or transition.baseline is ReadingBaseline.ZERO:
        first = empty(last.keys)
    same = replace(transition, baseline=ReadingBaseline.SAME)
    counted = difference(_counted(first), _counted(last), same, evicts=True)
    before, now = _in_progress(first), _in_progress(last)
    if transition.baseline is ReadingBaseline.RESET:
        before = _baseline(first.grouped(_WITHOUT_IDENTITY), now, transition)
    under_way = difference(before, replace(now, max_ns=now.max_ns * 0), same)
    keys = {**under_way.keys, "identity": np.zeros(len(under_way), np.int64)}
    return joined(counted, replace(under_way, keys=keys))


def _counted(table: CounterTable) -> CounterTable:
    """The entries, without their waits in progress."""
    sums = table.sums.copy()
    sums[:, ACTIVE_NS] = sums[:, TOTAL_NS]
    return replace(table, sums=sums).select(np.any(sums != 0, axis=1))


def _in_progress(table: CounterTable) -> CounterTable:
    """Only the waits in progress: those of an entry may have had none in the last reading."""
    sums = np.zeros_like(table.sums)
    sums[:, ACTIVE_NS] = _in_progress_ns(table)
    return replace(table, sums=sums).grouped(_WITHOUT_IDENTITY)


def processor_rows(grown: CounterTable, transition: Transition) -> CounterTable:
    """The same rows; those without a type become time on a processor, or ready for one.

    In a reading they are the time that processes of a type were captured: what is left of it
    without their waits. After a reset of the waits that is an estimate, and never negative.
    """
    whole = grown.keys["type"] == ""
    waits, times = grown.select(~whole), grown.select(whole)
    if not len(times):
        return waits
    busy = waits.grouped(("backend_type",))
    in_busy, in_times, _ = matched(busy, times.grouped(("backend_type",)))
    order = np.argsort(times.keys["backend_type"], kind="stable")
    sums = np.zeros_like(times.sums)
    sums[:, TOTAL_NS] = times.sums[:, TOTAL_NS]
    sums[order[in_times], TOTAL_NS] -= busy.sums[in_busy, ACTIVE_NS]
    if transition.baseline is ReadingBaseline.RESET:
        sums = np.maximum(sums, 0)
    sums[:, ACTIVE_NS] = sums[:, TOTAL_NS]
    count = len(times)
    keys = {
        **times.keys,
        "type": np.full(count, CPU_TYPE),
        "event": np.full(count, CPU_EVENT),
    }
    left = replace(times, keys=keys, sums=sums, max_ns=np.full(count, NO_MAXIMUM, np.int64))
    return joined(waits, left.select(sums[:, TOTAL_NS] != 0))


def kept_types(first: CounterTable | None, last: CounterTable, unread: Array) -> CounterTable:
    """The last reading, with these types of processes as they were in the first.

    A process that was stopped in the midst of a change cannot be read, and its type lacks it.
    """
    if not len(unread):
        return last
    rest = last.select(~np.isin(last.keys["backend_type"], unread))
    if first is None:
        return rest
    return joined(rest, first.select(np.isin(first.keys["backend_type"], unread)))


def carried_over(first: CounterTable, last: CounterTable) -> CounterTable:
    """The last reading of statements, with entries of the first that it lacks.

    A reading that skipped busy parts of the table lacks entries that are still there: as new ones
    they would count twice. Their waits in progress are in the reading.
    """
    _, _, gone = matched(first, last)
    return joined(last, _counted(first.select(gone))) if len(gone) else last


def statement_rows(statements: CounterTable, waits: CounterTable, most: int) -> StatementRows:
    """The rows of one interval, from what statements and all waits grew by.

    The `most` statements that cost most are rows of their own. All others are one *rest* row an
    event, and what no statement has is one *outside* row an event; so the sum over all rows is
    that of `waits`, by event and in every column.
    """
    by_event = statements.grouped(_WITHOUT_IDENTITY)
    chosen = _most_expensive(by_event, most)
    own = by_event.select(chosen)
    rest = by_event.select(~chosen).grouped(_EVENT_KEYS)
    outside = _outside(by_event.grouped(_EVENT_KEYS), waits.grouped(_EVENT_KEYS))
    parts = {STATEMENT: own, REST: _of_none(rest, own), OUTSIDE: _of_none(outside, own)}
    rows = joined(joined(parts[STATEMENT], parts[REST]), parts[OUTSIDE])
    return StatementRows(np.repeat(list(parts), [len(part) for part in parts.values()]), rows)


def _most_expensive(by_event: CounterTable, most: int) -> Array:
    """A mask of the rows of those statements that were active longest."""
    if not len(by_event):
        return np.zeros(0, bool)
    codes = codes_of({name: by_event.keys[name] for name in _STATEMENT_KEYS})
    cost = np.zeros(codes.max() + 1, np.int64)
    np.add.at(cost, codes, by_event.sums[:, ACTIVE_NS])
    calls = np.zeros_like(cost)
    np.add.at(calls, codes, by_event.sums[:, CALLS])
    return np.isin(codes, np.lexsort((-calls, -cost))[:most])


def _outside(statements: CounterTable, waits: CounterTable) -> CounterTable:
    """All waits less those of statements, by event."""
    less = replace(statements, sums=-statements.sums)
    summed = joined(waits, less).grouped(_EVENT_KEYS)
    summed = replace(summed, max_ns=np.full(len(summed), NO_MAXIMUM, np.int64))
    return summed.select(np.any(summed.sums != 0, axis=1))


def _of_none(events: CounterTable, like: CounterTable) -> CounterTable:
    """The same with the keys of a statement, which are zero."""
    keys: Mapping[str, Array] = {
        **{name: np.zeros(len(events), like.keys[name].dtype) for name in _STATEMENT_KEYS},
        **{name: events.keys[name] for name in _EVENT_KEYS},
    }
    return replace(events, keys=keys)
