"""What samples of sessions on a processor tell of statements, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Of fewer samples nothing is said of a statement: one of 20 can as well be one of 100.
FEWEST = 8
_Z = 1.96


@dataclass(frozen=True)
class CpuSamples:
    """How often each statement (by query identifier, 0: none) was on a processor in `looks` looks.

    Each look takes in every captured process that works for a client.
    """

    looks: int
    hits: Mapping[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Processes on a processor, over all looks."""
        return sum(self.hits.values())


@dataclass(frozen=True)
class Share:
    """A part of the processor time, with its 95 % interval, from a number of samples."""

    samples: int
    estimate: float
    low: float
    high: float


def share(samples: int, of: int) -> Share:
    """The share of `samples` of `of` by Wilson's interval.

    As if samples were independent: those of one long run of a statement are not, and tell less.
    """
    p, z2 = samples / of, _Z * _Z / of
    middle = (p + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(p * (1 - p) / of + z2 / (4 * of)) / (1 + z2)
    return Share(samples, p, max(0.0, middle - half), min(1.0, middle + half))
