"""What an eviction sweep costs by the size of the table: measured figures, and those between.

The figures are those of docs/questions.md.
"""

from __future__ import annotations

import math

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
