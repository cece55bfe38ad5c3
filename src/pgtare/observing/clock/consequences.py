"""What the measured clock means for PostgreSQL: what timing a row, an I/O, a wait costs.

The costs are bounds with a likely value between them, added up as if all were wrong in the same
direction; they are no confidence intervals. PostgreSQL up to 18 reads CLOCK_MONOTONIC. If 19
chooses the counter, it reads RDTSC for rows and RDTSCP for I/O.

EXPLAIN ANALYZE reads the clock when a node is called and again when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pgtare.observing.clock.schema import Choice, ClockResult, Meaning, Span

#: The clock of PostgreSQL up to 18, and that of 19 if it takes the counter.
_SYSTEM = "monotonic"
_COUNTER = "tsc"
_COUNTER_IO = "tscp"
#: The counter, as the server modules read it where it can be trusted.
_COUNTERS = ("tsc", "counter")


def _between(lo: float, likely: float, hi: float) -> Span:
    return Span(lo=lo, likely=likely, hi=hi)


#: What InstrStartNode and InstrStopNode do under TIMING besides two readings, in ns. Until 15
#: an instr_time is a struct timespec, whose differences need carrying: that takes up to 12 ns.
#: Below zero if the processor does it along with other work. Measured on a 2.5 GHz Xeon (virtual
#: machine), as docs/questions.md says.
_PAIR_WORK_NS = _between(-1, 4, 10)
_PAIR_WORK_15_TO_18_NS = _between(-1, 4, 12)
#: How much more a reading costs amid other work than in a loop; measured by the same.
_IN_PLACE = _between(1, 1.05, 1.15)
#: What track_io_timing does besides reading the clock, for each I/O, in ns: assumed.
_IO_WORK_NS = _between(0, 10, 20)
#: What folding a captured wait into the counters costs besides two readings, in ns:
#: docs/wait-events.md.
_WAIT_WORK_NS = _between(6.5, 7.2, 8.5)

_ROW = "EXPLAIN (TIMING), row and node"
_IO = "track_io_timing, read or write"
_WAIT = "wait_event_timing, a wait"


@dataclass(frozen=True)
class _Timed:
    what: str
    server: str
    clocks: tuple[str, ...]
    """The first of these that was read."""
    cost: Callable[[float], Span]
    """Of what a reading costs, in ns."""


def _call(work_ns: Span) -> Callable[[float], Span]:
    """What TIMING adds to one call of a node: what a row costs in each node it passes."""
    return lambda read_ns: _IN_PLACE.scaled(2 * read_ns) + work_ns


def _io(most: int) -> Callable[[float], Span]:
    """Each I/O is timed by 2 readings, and from 18 on by up to 4 if it is waited for."""
    return lambda read_ns: _between(2, most, most).scaled(read_ns) + _IO_WORK_NS


def _wait(read_ns: float) -> Span:
    return _between(2 * read_ns, 2 * read_ns, 2 * read_ns) + _WAIT_WORK_NS


_TIMED = (
    _Timed(_ROW, "15-18", (_SYSTEM,), _call(_PAIR_WORK_15_TO_18_NS)),
    _Timed(_IO, "15-17", (_SYSTEM,), _io(2)),
    _Timed(_IO, "18", (_SYSTEM,), _io(4)),
    _Timed(_WAIT, "15-18", (*_COUNTERS, _SYSTEM), _wait),
)
_TIMED_19 = (
    _Timed(_ROW, "19", (_COUNTER,), _call(_PAIR_WORK_NS)),
    _Timed(_IO, "19", (_COUNTER_IO,), _io(4)),
)


def meaning(clocks: Iterable[ClockResult], choice: Choice, counter: bool = True) -> list[Meaning]:
    """One entry for each thing that PostgreSQL can time and each clock it takes for it.

    counter: whether the server modules take the processor's counter here.
    """
    by_name = {clock.name: clock for clock in clocks}
    found = []
    for one in (*_TIMED, *(_TIMED_19 if choice.clock == _COUNTER else ())):
        taken = [name for name in one.clocks if counter or name not in _COUNTERS]
        name = next((name for name in taken if name in by_name), None)
        if name is not None:
            cost = one.cost(by_name[name].read_ns)
            found.append(Meaning(what=one.what, server=one.server, clock=name, cost_ns=cost))
    return found
