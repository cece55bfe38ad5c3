"""Percentiles of durations from histograms of 32 classes, whose ends are powers of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pgtare.keeping.live.live_charts import BOUNDS_NS

#: The percentiles that a page shows.
SHARES = (0.5, 0.9, 0.99, 0.999)


def summed(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """One histogram of all rows of query `histogram`."""
    return [sum(row[f"in_h{number:02d}"] or 0 for row in rows) for number in range(32)]


def percentile_class(counts: Sequence[int], share: float) -> int | None:
    """The class in which a percentile lies, exactly; None if nothing was counted.

    Counts may be negative, as differences are.
    """
    total = sum(counts)
    if total <= 0:
        return None
    seen = 0
    for number, count in enumerate(counts):
        seen += count
        if seen >= share * total:
            return number
    raise AssertionError


def bounds_ns(number: int) -> tuple[int, int | None]:
    """The ends of a class, ns; the last one has no upper end."""
    low = BOUNDS_NS[number - 1] if number else 0
    return low, BOUNDS_NS[number] if number < len(BOUNDS_NS) else None
