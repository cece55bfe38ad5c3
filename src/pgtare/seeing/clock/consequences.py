"""What the measured clock means for PostgreSQL: a row, an I/O, a wait, and a given plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pgtare.errors import UsageError
from pgtare.seeing.clock.node_calls import Range
from pgtare.seeing.clock.plan import Plan
from pgtare.seeing.clock.predict import Clock, call_cost, explain_cost, io_cost, io_reads, wait_cost
from pgtare.seeing.clock.schema import Choice, ClockReport, ClockResult, Meaning, PlanTiming, Span

#: The clock of PostgreSQL up to 18, and that of 19 if it takes the counter.
SYSTEM = "monotonic"
_COUNTER = "tsc"
_COUNTER_IO = "tscp"
_UNREAD_COUNTER = (
    f"this server times by the processor's counter, which was not read here: the clock {SYSTEM} was"
    f" taken instead (add --clock {_COUNTER})"
)
#: Readings that do not wait for earlier loads.
_UNFENCED = ("tsc", "counter")

_ROW = "EXPLAIN (TIMING), row and node"
_IO = "track_io_timing, read or write"
_WAIT = "wait_event_timing, a wait"


@dataclass(frozen=True)
class _Timed:
    what: str
    server: str
    clocks: tuple[str, ...]
    """The first of these that was read."""
    cost: Callable[[Clock], Range]
    reads: int = 2


_TIMED = (
    _Timed(_ROW, "15-18", (SYSTEM,), lambda clock: _either(call_cost(clock, 18), clock)),
    _Timed(_IO, "15-17", (SYSTEM,), lambda clock: io_cost(clock, 17).io_ns),
    _Timed(_IO, "18", (SYSTEM,), lambda clock: io_cost(clock, 18).io_ns, int(io_reads(18).hi)),
    _Timed(_WAIT, "15-18", (*_UNFENCED, SYSTEM), lambda clock: wait_cost(clock)["stats"]),
)
_TIMED_19 = (
    _Timed(_ROW, "19", (_COUNTER,), lambda clock: call_cost(clock, 19)),
    _Timed(_IO, "19", (_COUNTER_IO,), lambda clock: io_cost(clock, 19).io_ns, int(io_reads(19).hi)),
)


def meaning(clocks: Iterable[ClockResult], choice: Choice, counter: bool = True) -> list[Meaning]:
    """One entry for each thing that PostgreSQL can time and each clock it takes for it.

    counter: whether the server modules take the processor's counter here.
    """
    by_name = {clock.name: clock for clock in clocks}
    found = []
    for one in (*_TIMED, *(_TIMED_19 if choice.clock == _COUNTER else ())):
        taken = [name for name in one.clocks if counter or name not in _UNFENCED]
        name = next((name for name in taken if name in by_name), None)
        if name is not None:
            clock = measured_clock(by_name[name])
            found.append(
                Meaning(
                    what=one.what,
                    server=one.server,
                    clock=name,
                    reads=one.reads,
                    readings_ns=one.reads * clock.read_ns,
                    cost_ns=span(one.cost(clock)),
                )
            )
    return found


def measured_clock(clock: ClockResult) -> Clock:
    """A clock as predictions take it."""
    return Clock(clock.read_ns, clock.name, fenced=clock.name not in _UNFENCED)


def plan_timing(
    report: ClockReport,
    plan: Plan,
    major: int,
    source: str,
    notes: Iterable[str] = (),
    by_counter: bool | None = None,
) -> PlanTiming:
    """What timing this plan costs PostgreSQL `major` by the clock that it takes here.

    `by_counter` says whether a server of version 19 was seen to time by the counter; None takes
    what such a server would choose here. Raises UsageError if that clock was not read.
    """
    counter = report.clock(_COUNTER)
    if by_counter is None:
        by_counter = report.diagnosis.postgres19.clock == _COUNTER
    if not by_counter:
        counter = None
    taken = counter if major >= 19 and counter is not None else report.clock(SYSTEM)
    if taken is None:
        raise UsageError(f"the clock {SYSTEM} was not read, and PostgreSQL {major} reads it")
    clock = measured_clock(taken)
    cost = explain_cost(plan, clock, major)
    # 19 reads RDTSC for rows, and RDTSCP for I/O
    io_clock = report.clock(_COUNTER_IO) if taken is counter else None
    on_19 = None
    if counter is not None and major < 19:
        on_19 = span(explain_cost(plan, measured_clock(counter), 19).wall_ms)
    found: dict[str, Any] = {
        **cost.as_json(),
        **io_cost(measured_clock(io_clock) if io_clock else clock, major, plan).as_json(),
        "source": source,
        "clock": taken.name,
        "read_ns": taken.read_ns,
        "postgresql19_wall_ms": on_19,
        "measured": None,
    }
    if major >= 19 and by_counter and counter is None:
        found["notes"].insert(0, _UNREAD_COUNTER)
    found["notes"] = [*notes, *found["notes"]]
    return PlanTiming.model_validate(found)


def _either(newer: Range, clock: Clock) -> Range:
    """The cost of a call from 16 on, its bounds wide enough for 15."""
    older = call_cost(clock, 15)
    return Range(min(newer.lo, older.lo), newer.likely, max(newer.hi, older.hi))


def span(value: Range) -> Span:
    """A range as reports hold it."""
    return Span(**dataclasses.asdict(value))
