"""What counters grew by between two readings: arrays in, rows out; no server, no clock.

Differences are signed and never clamped, so that within an epoch the sum of all rows is the last
reading minus the first, in every column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pgtare.watching.agent.counter_table import (
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
from pgtare.watching.agent.epoch import Baseline, Transition

#: Kinds of rows in table `statements`.
STATEMENT, REST, OUTSIDE = "statement", "rest", "outside"
#: Types of events that are waits for work.
IDLE_TYPES = ("Activity", "Client")
_STATEMENT_KEYS = ("role_oid", "database_oid", "query_id")
_EVENT_KEYS = ("type", "event")


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
    if transition.baseline is Baseline.ANEW:
        return empty(last.keys)
    first = _baseline(first, last, transition)
    in_first, in_last, gone = matched(first, last)
    sums, max_ns = last.sums.copy(), last.max_ns.copy()
    sums[in_last] -= first.sums[in_first]
    max_ns[in_last[max_ns[in_last] <= first.max_ns[in_first]]] = NO_MAXIMUM
    max_ns[max_ns <= 0] = NO_MAXIMUM
    grown = CounterTable(last.keys, sums, max_ns, last.running)
    if not evicts and len(gone):
        left = first.select(gone)
        none = np.zeros(len(gone), np.int64)
        grown = joined(grown, CounterTable(left.keys, -left.sums, none + NO_MAXIMUM, none))
    return grown.select(np.any(grown.sums != 0, axis=1))


def _baseline(
    first: CounterTable | None, last: CounterTable, transition: Transition
) -> CounterTable:
    """The counters that the last ones are compared with."""
    if first is None or transition.baseline is Baseline.ZERO:
        return empty(last.keys)
    if transition.baseline is Baseline.SAME:
        return first
    # All counters were reset, but a wait in progress has lasted since before that. What of it was
    # over by then is the baseline: if it goes on, or if it has ended since, which shows in a
    # maximum that is longer than the time since the reset. Else it ended before and left no trace.
    in_first, in_last, _ = matched(first, last)
    carried, now = first.select(in_first), last.select(in_last)
    lasted = _in_progress_ns(carried) + carried.running * transition.before_ns
    goes_on = (carried.running > 0) & (_in_progress_ns(now) >= lasted)
    ended = (carried.running > 0) & (now.max_ns > transition.covered_ns)
    sums = np.zeros_like(carried.sums)
    sums[:, ACTIVE_NS] = np.where(goes_on | ended, np.minimum(lasted, now.sums[:, ACTIVE_NS]), 0)
    none = np.zeros(len(carried), np.int64)
    return CounterTable(carried.keys, sums, none, none)


def _in_progress_ns(table: CounterTable) -> Array:
    in_progress: Array = table.sums[:, ACTIVE_NS] - table.sums[:, TOTAL_NS]
    return in_progress


def carried_over(first: CounterTable, last: CounterTable) -> CounterTable:
    """The last reading, with entries of the first that it lacks.

    A reading that skipped busy parts of the table lacks entries that are still there: as new ones
    they would count twice.
    """
    _, _, gone = matched(first, last)
    return joined(last, first.select(gone)) if len(gone) else last


def statement_rows(statements: CounterTable, waits: CounterTable, most: int) -> StatementRows:
    """The rows of one interval, from what statements and all waits grew by.

    The `most` statements that cost most are rows of their own. All others are one *rest* row an
    event, and what no statement has is one *outside* row an event; so the sum over all rows is
    that of `waits`, by event and in every column.
    """
    by_event = statements.grouped((*_STATEMENT_KEYS, *_EVENT_KEYS))
    chosen = _most_expensive(by_event, most)
    own = by_event.select(chosen)
    rest = by_event.select(~chosen).grouped(_EVENT_KEYS)
    outside = _outside(by_event.grouped(_EVENT_KEYS), waits.grouped(_EVENT_KEYS))
    parts = {STATEMENT: own, REST: _of_none(rest, own), OUTSIDE: _of_none(outside, own)}
    rows = joined(joined(parts[STATEMENT], parts[REST]), parts[OUTSIDE])
    return StatementRows(np.repeat(list(parts), [len(part) for part in parts.values()]), rows)


def _most_expensive(by_event: CounterTable, most: int) -> Array:
    """A mask of the rows of those statements that were active longest, idle waits left out."""
    if not len(by_event):
        return np.zeros(0, bool)
    codes = codes_of({name: by_event.keys[name] for name in _STATEMENT_KEYS})
    active = np.where(np.isin(by_event.keys["type"], IDLE_TYPES), 0, by_event.sums[:, ACTIVE_NS])
    cost = np.zeros(codes.max() + 1, np.int64)
    np.add.at(cost, codes, active)
    calls = np.zeros_like(cost)
    np.add.at(calls, codes, by_event.sums[:, CALLS])
    return np.isin(codes, np.lexsort((-calls, -cost))[:most])


def _outside(statements: CounterTable, waits: CounterTable) -> CounterTable:
    """All waits less those of statements, by event."""
    less = CounterTable(
        statements.keys, -statements.sums, statements.max_ns * 0, -statements.running
    )
    both = {name: waits.keys[name] for name in _EVENT_KEYS}
    found = joined(CounterTable(both, waits.sums, waits.max_ns, waits.running), less)
    summed = found.grouped(_EVENT_KEYS)
    summed = CounterTable(
        summed.keys, summed.sums, np.full(len(summed), NO_MAXIMUM, np.int64), summed.running
    )
    return summed.select(np.any(summed.sums != 0, axis=1))


def _of_none(events: CounterTable, like: CounterTable) -> CounterTable:
    """The same with the keys of a statement, which are zero."""
    keys: Mapping[str, Array] = {
        **{name: np.zeros(len(events), like.keys[name].dtype) for name in _STATEMENT_KEYS},
        **{name: events.keys[name] for name in _EVENT_KEYS},
    }
    return CounterTable(keys, events.sums, events.max_ns, events.running)
