"""How fast pg_stat_statements evicts, from two looks: counted by the server, or inferred."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pgtare.doctor.read import Deallocations, Entries, Facts, Look, Samples
from pgtare.doctor.sweep import victims

#: A table whose entries fell below this share of its size did not lose them by evictions.
_EMPTIED = 0.8
#: Statements common to both looks below which circulation cannot be estimated.
_FEWEST_COMMON = 5


class StatisticsReset(Exception):
    """The statistics were reset between the two looks: they cannot be compared."""


@dataclass(frozen=True)
class Evictions:
    """What happened between two looks; rates a second, None where there is no way to know.

    distinct: statements in circulation, at least, where some were evicted; infinite where hardly
    any was there at both looks.
    """

    counted: bool
    deallocations_s: float | None
    evicted_s: float | None
    distinct: float | None


def between(facts: Facts, first: Look, last: Look, samples: Samples) -> Evictions:
    """Compare two looks. Raises StatisticsReset."""
    if first.entries is None or last.entries is None:
        return Evictions(False, None, None, None)
    if first.dealloc is not None and last.dealloc is not None:
        distinct = circulating(first.entries, last.entries)
        return _counted(facts.table_size, first.dealloc, last.dealloc, distinct)
    return _inferred(facts, first.entries, last.entries, samples)


def _counted(
    size: int, first: Deallocations, last: Deallocations, distinct: float | None
) -> Evictions:
    if first.reset != last.reset or last.count < first.count:
        raise StatisticsReset
    rate = (last.count - first.count) / (last.taken - first.taken).total_seconds()
    return Evictions(True, rate, rate * victims(size), distinct if rate else None)


def _inferred(facts: Facts, first: Entries, last: Entries, samples: Samples) -> Evictions:
    """Entries that vanished, or whose calls fell, were evicted: at least so many."""
    size = facts.table_size
    if last.count < min(first.count, _EMPTIED * size):
        raise StatisticsReset
    if first.hidden or last.hidden:
        # others' entries have no identifier: only a table that is not full shows anything
        full = last.count >= _EMPTIED * size
        return Evictions(False, None if full else 0.0, None if full else 0.0, None)
    rate = 0.0
    for one, other in [*samples.pairs, (first, last)]:
        seconds = (other.taken - one.taken).total_seconds()
        if seconds > 0:
            rate = max(rate, gone(one, other) / seconds)
    distinct = circulating(first, last) if rate else None
    return Evictions(False, rate / victims(size), rate, distinct)


def gone(first: Entries, last: Entries) -> int:
    """Entries that were evicted for certain between two looks."""
    return sum(1 for key, calls in first.calls.items() if last.calls.get(key, -1) < calls)


def circulating(first: Entries, last: Entries) -> float | None:
    """How many statements take turns in the table, at least: by capture and recapture.

    Chapman's estimate (1951), of statements that are as likely to be there at one look as at the
    other. Statements that are always there make it too small. None where entries are hidden.
    """
    common = len(first.calls.keys() & last.calls.keys())
    if first.hidden or last.hidden:
        return None
    if common < _FEWEST_COMMON:
        return math.inf
    return (len(first.calls) + 1) * (len(last.calls) + 1) / (common + 1) - 1
