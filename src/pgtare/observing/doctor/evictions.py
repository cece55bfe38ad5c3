"""How fast pg_stat_statements evicts, as the server counts it, and what that costs.

The costs are measured figures, those of docs/questions.md, and what lies
between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pgtare.observing.doctor.observed import (
    ActivitySamples,
    DoctorFacts,
    Look,
    StatementEntries,
    elapsed_s,
)

#: A table with fewer entries, as a share of its size, does not have to evict.
_EMPTIED = 0.8
#: Statements common to both looks below which circulation cannot be estimated.
_FEWEST_COMMON = 5
#: pg_stat_statements.max → length of a sweep in µs: PostgreSQL 18.6, a shared 2-core machine.
MEASURED_US: dict[int, float] = {
    100: 6.0,
    400: 29.0,
    1_000: 60.0,
    5_000: 430.0,
    10_000: 1_652.0,
    50_000: 11_545.0,
}
#: Entries evicted a second that go with a loss of 1 % of throughput, by size (2 processors).
ONE_PERCENT_EVICTED_S: dict[int, float] = {
    100: 1_557.0,
    400: 1_204.0,
    1_000: 1_416.0,
    5_000: 574.0,
    10_000: 494.0,
    50_000: 606.0,
}


@dataclass(frozen=True)
class Evictions:
    """What happened between two looks; rates a second, None if there is no way to know.

    distinct: statements in circulation, at least, if some were evicted; infinite if hardly
    any was there at both looks. reset: whether the statistics were, so that nothing is known.
    """

    deallocations_per_s: float | None = None
    evicted_per_s: float | None = None
    distinct: float | None = None
    reset: bool = False


def between(facts: DoctorFacts, first: Look, last: Look, samples: ActivitySamples) -> Evictions:
    """Compare two looks."""
    if first.entries is None or last.entries is None:
        return Evictions()
    before, after = first.dealloc, last.dealloc
    if before is None or after is None:
        return Evictions()
    if before.reset != after.reset or after.count < before.count:
        return Evictions(reset=True)
    seconds = elapsed_s(before, after)
    if seconds <= 0:
        return Evictions()
    rate = (after.count - before.count) / seconds
    distinct = circulating(first.entries, last.entries, samples) if rate else None
    return Evictions(rate, rate * victims(facts.table_size), distinct)


def is_full(entries: StatementEntries, size: int) -> bool:
    """Whether a table of that size may have to evict: a sweep leaves 95 % of it."""
    return entries.count >= _EMPTIED * size


def circulating(
    first: StatementEntries, last: StatementEntries, samples: ActivitySamples
) -> float | None:
    """How many statements take turns in the table, at least: by capture and recapture.

    Chapman's estimate (1951), of statements that are as likely to be there at one look as at the
    other. Statements that are always there make it too small; those that were seen at any look are
    the least that there are. None if entries are hidden.
    """
    common = len(first.calls.keys() & last.calls.keys())
    if first.hidden or last.hidden:
        return None
    if common < _FEWEST_COMMON:
        return math.inf
    estimate = (len(first.calls) + 1) * (len(last.calls) + 1) / (common + 1) - 1
    seen = samples.statements | first.calls.keys() | last.calls.keys()
    return max(estimate, float(len(seen)))


def victims(size: int) -> int:
    """Entries that a sweep evicts of a table of `size`: 5 %, and at least 10."""
    return max(10, size * 5 // 100)


def sweep_s(size: int) -> float:
    """How long a sweep takes, during which no statement of any session can end."""
    return _between(MEASURED_US, size) / 1e6


def lost(size: int, evicted_per_s: float) -> float:
    """The share of throughput that a number of evictions a second takes, by the measured figures.

    Taken as proportional to the rate, and 1 at most; no more than 0.26 was ever measured.
    """
    return min(1.0, 0.01 * evicted_per_s / _between(ONE_PERCENT_EVICTED_S, size))


def _between(table: dict[int, float], size: int) -> float:
    """A power of the size between two sizes that were measured, and beyond the last."""
    sizes = sorted(table)
    upper = next((i for i, known in enumerate(sizes) if size <= known), len(sizes) - 1)
    low, high = sizes[max(upper - 1, 0)], sizes[max(upper, 1)]
    slope = math.log(table[high] / table[low]) / math.log(high / low)
    return float(table[low] * (max(size, sizes[0]) / low) ** slope)
