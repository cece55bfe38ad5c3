"""How much a spool may take, and what goes first if that is too much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgtare.keeping.spool.tables import KEPT_S, Age

_GIB = 1 << 30


@dataclass(frozen=True)
class SpoolLimits:
    """What a spool keeps to.

    most_bytes: of all its files. reserve_bytes: of the disk, left free for others. held_s: how long
    rows are held in memory while there is no room for them. reader_s: how long a replaced file
    stays for those who read it. grace_s: how long after its end a bucket is rolled up. kept_s: the
    age at which rows are dropped.
    """

    most_bytes: int = 10 * _GIB
    reserve_bytes: int = _GIB
    held_s: float = 600
    reader_s: float = 600
    grace_s: float = 20
    kept_s: Mapping[Age, float] = field(default_factory=lambda: dict(KEPT_S))


#: The tables whose rows are dropped if room is short, in this order; the others stay.
PRESSURE_ORDER = (
    "sessions",
    "agent",
    "recordings",
    "findings",
    "statements",
    "activity",
    "statements_1h",
    "activity_1h",
    "texts",
    "waits",
    "ticks",
    "waits_1m",
    "ticks_1m",
    "waits_1h",
    "ticks_1h",
)

#: Of these, the tables that are not dropped to leave room for others: the hours and minutes, which
#: are small and the whole history, and the texts that belong to them.
KEPT_FROM_OTHERS = (*(name for name in PRESSURE_ORDER if name[-3:] in ("_1m", "_1h")), "texts")
