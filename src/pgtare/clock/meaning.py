"""What the measured clock means for PostgreSQL: readings that a thing takes, times their cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pgtare.clock.schema import Choice, ClockResult, Meaning

#: Everything that is timed is read before and after.
READS = 2

_ROW = "EXPLAIN (ANALYZE, TIMING), a row and plan node"
_IO = "track_io_timing, a read or write"
_WAIT = "wait_event_timing, the readings of a captured wait"


@dataclass(frozen=True)
class _Timed:
    what: str
    server: str
    clocks: tuple[str, ...]
    """The first of these that was read."""


def meaning(clocks: Iterable[ClockResult], choice: Choice) -> list[Meaning]:
    """One entry for each thing that PostgreSQL can time and each clock it takes for it."""
    cost = {clock.name: clock.read_ns for clock in clocks}
    timed = [
        _Timed(_ROW, "15-18", ("monotonic",)),
        _Timed(_IO, "15-18", ("monotonic",)),
        _Timed(_WAIT, "15-18", ("tsc", "counter", "monotonic")),
    ]
    if choice.clock == "tsc":
        timed += [_Timed(_ROW, "19", ("tsc",)), _Timed(_IO, "19", ("tscp",))]
    found = []
    for one in timed:
        name = next((name for name in one.clocks if name in cost), None)
        if name is not None:
            found.append(
                Meaning(what=one.what, server=one.server, clock=name, reads=READS,
                        ns=READS * cost[name])
            )  # fmt: skip
    return found
