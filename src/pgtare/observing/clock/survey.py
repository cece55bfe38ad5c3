"""One measurement of all clocks: reads them in turn and joins what was found into a report."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pgtare
from pgtare.errors import MeasurementError
from pgtare.kit import machine
from pgtare.observing.clock import clocks as catalogue
from pgtare.observing.clock import cores as across
from pgtare.observing.clock import counter_frequency as rates
from pgtare.observing.clock import gaps as clock_gaps
from pgtare.observing.clock import probe
from pgtare.observing.clock.clocks import Clock
from pgtare.observing.clock.consequences import meaning
from pgtare.observing.clock.diagnosis import Setup, clocksources, diagnose
from pgtare.observing.clock.distribution import NS, Cost, Distribution, cost_of
from pgtare.observing.clock.probe import Pair, ProbeRun
from pgtare.observing.clock.schema import Bucket, ClockReport, ClockResult, Cores, Exact, Frequency

#: Without --duration: all clocks within 3 s, most of it for the one that shows the gaps.
SHORT_S = 0.06
GAPS_S = 0.4
COST_GROUPS = 8
COST_BATCHES = 40
_BATCH_NS = 20_000
_LONG_BATCH_NS = 40_000_000
_MOST_READS = 10_000_000

#: Called with what is done, in s, and what goes on.
Tick = Callable[[float, str], None]


@dataclass
class _Read:
    """A clock that was read: what one reading costs, and the raw run."""

    clock: Clock
    cost: Cost
    recording: ProbeRun


@dataclass
class _Found:
    """What is known so far; a measurement may be interrupted at any point."""

    reads: list[_Read] = field(default_factory=list)
    first: Pair | None = None
    repeated: list[float] = field(default_factory=list)
    cores: Cores | None = None
    system_cores: Cores | None = None
    interrupted: bool = False


def survey(
    duration_s: float | None, command: Sequence[str], tick: Tick = lambda done, what: None
) -> ClockReport:
    """Measure every clock, each for so long; after Ctrl-C the report holds what there is by then.

    duration_s: None: short.
    """
    leaves = probe.leaves()
    # the first processor serves devices
    cpu = max(os.sched_getaffinity(0))
    current, available = clocksources()
    counter, trust = probe.counter_usable(), probe.counter_trust()
    setup = Setup(current, available, leaves, counter, platform.machine(), trust)
    found = _Found()
    try:
        _measure(duration_s, cpu, setup, found, tick)
    except KeyboardInterrupt:
        found.interrupted = True
    if not found.reads:
        raise KeyboardInterrupt
    return _report(setup, cpu, found, command)


def planned_s(duration_s: float | None) -> float:
    """How long the clocks will be read, all together."""
    clocks = catalogue.of_machine(probe.leaves())
    return sum(_seconds(duration_s, clocks, probe.counter_usable()).values())


def _measure(duration_s: float | None, cpu: int, setup: Setup, found: _Found, tick: Tick) -> None:
    clocks = catalogue.of_machine(setup.leaves)
    seconds = _seconds(duration_s, clocks, setup.counter)
    done = 0.0
    per_ns = 1.0
    if setup.counter or any(clock.counter for clock in clocks):
        with _pinned(cpu):
            found.first = probe.pair()
            found.repeated = rates.repeat()
        per_ns = statistics.median(found.repeated) / NS
    for clock in clocks:
        with _pinned(cpu):
            cost = weigh(clock)
        recording = probe.record(
            clock,
            seconds[clock.name],
            cpu,
            per_ns if clock.counter else 1.0,
            lambda now, done=done, clock=clock: tick(done + now, clock.name),  # type: ignore[misc]
        )
        found.reads.append(_Read(clock, cost, recording))
        done += seconds[clock.name]
        if recording.interrupted:
            raise KeyboardInterrupt
    hz = round(statistics.median(found.repeated)) if setup.counter else NS
    found.cores = across.compare(setup.counter, hz)
    if setup.system_apart:
        found.system_cores = across.compare(False, NS)


def _seconds(duration_s: float | None, clocks: Sequence[Clock], counter: bool) -> dict[str, float]:
    """How long each clock is read."""
    gaps_clock = _gaps_clock(clocks, counter)
    return {
        clock.name: duration_s or (GAPS_S if clock is gaps_clock else SHORT_S) for clock in clocks
    }


def _gaps_clock(clocks: Sequence[Clock], counter: bool) -> Clock:
    """The clock that shows gaps: the cheapest that every processor has in step."""
    by_name = {clock.name: clock for clock in clocks}
    order = [*(("tsc", "counter") if counter else ()), "monotonic"]
    return next(by_name[name] for name in order if name in by_name)


def weigh(clock: Clock, groups: int = COST_GROUPS) -> Cost:
    """What a reading costs, by itself and in the recording loop."""
    once, _ = probe.cost(clock, 1, 100)
    reads = min(1000, max(20, round(_BATCH_NS / max(float(once[0]), 1.0))))
    found = cost_of([probe.cost(clock, COST_BATCHES, reads) for _ in range(groups)])
    if found.read_ns:
        return found
    # CLOCK_MONOTONIC moves with the kernel's tick alone: batches of many ticks
    while found.read_ns * reads < _LONG_BATCH_NS:
        if reads > _MOST_READS:
            raise MeasurementError("CLOCK_MONOTONIC does not move: nothing can be measured by it")
        reads *= 4
        found = cost_of([probe.cost(clock, 1, reads) for _ in range(3)])
    return found


@contextlib.contextmanager
def _pinned(cpu: int) -> Iterator[None]:
    """This thread on one processor, for short measurements outside the probe's own thread."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as ex:
        raise MeasurementError(
            f"the measurement could not be pinned to processor {cpu}: {ex.strerror}"
        ) from ex
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _report(setup: Setup, cpu: int, found: _Found, command: Sequence[str]) -> ClockReport:
    frequency: Frequency | None = None
    hz = NS
    if found.first is not None:
        with _pinned(cpu):
            last = probe.pair()
        hz = round(rates.between(found.first, last))
        if hz <= 0:
            hz = round(statistics.median(found.repeated))
        if setup.counter:  # else its rate may change: good for this run's ticks alone
            frequency = rates.frequency(found.first, last, found.repeated)
            hz = frequency.hz
    results, gaps = [], None
    gaps_clock = _gaps_clock([read.clock for read in found.reads], setup.counter)
    for read in found.reads:
        seen = Distribution.of(read.recording, hz if read.clock.counter else NS)
        results.append(result(read.clock, read.cost, read.recording, seen))
        if read.clock is gaps_clock:
            hypervisor = setup.leaves.hypervisor is not None
            gaps = clock_gaps.gaps(read.clock.name, read.recording, seen, hypervisor)
    diagnosis = diagnose(setup, results, frequency, found.cores, found.system_cores)
    for one in results:
        if one.source == "vDSO or system call":
            one.source = "vDSO" if diagnosis.vdso is not False else "system call"
    return ClockReport(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pgtare_version=pgtare.__version__,
        command=list(command),
        machine=machine.describe(),
        cpu=cpu,
        stopped_by="interrupt" if found.interrupted else "time",
        diagnosis=diagnosis,
        clocks=results,
        frequency=frequency,
        cores=found.cores,
        system_cores=found.system_cores,
        gaps=gaps,
        meaning=meaning(results, diagnosis.postgres19, setup.trust.counter),
    )


def result(clock: Clock, cost: Cost, recording: ProbeRun, seen: Distribution) -> ClockResult:
    """What a run says of a clock."""

    def ns(ticks: int | None) -> float | None:
        return None if ticks is None else seen.ns(ticks)

    return ClockResult(
        name=clock.name,
        title=clock.title,
        source=clock.source,
        duration_s=recording.elapsed_ns / NS,
        differences=recording.differences,
        mean_ns=recording.elapsed_ns / max(recording.differences, 1),
        read_ns=cost.read_ns,
        loop_ns=cost.loop_ns,
        step_ns=ns(seen.step()),
        p50_ns=ns(seen.quantile(0.5)),
        p99_ns=ns(seen.quantile(0.99)),
        max_ns=ns(seen.ticks[-1] if seen.ticks else None),
        still_longest=recording.still_longest,
        advanced_pct=advanced_pct(recording, seen),
        backward=recording.backward,
        backward_largest_ns=seen.ns(recording.backward_largest),
        histogram=[Bucket(up_to_ns=up_to, count=n) for up_to, n in seen.histogram()],
        exact=[
            Exact(ticks=t, duration_ns=round(seen.ns(t), 3), count=n)
            for t, n in zip(seen.ticks, seen.counts, strict=True)
        ],
    )


def advanced_pct(recording: ProbeRun, seen: Distribution) -> float:
    """Time that went by on the clock, in percent of that on CLOCK_MONOTONIC.

    A stall next to a look at the time is not the clock's fault: what lies between the inner and the
    outer readings agrees.
    """
    elapsed = max(recording.elapsed_ns, 1)
    inner = seen.ns(recording.last - recording.first)
    outer = seen.ns(recording.closed - recording.opened)
    return 100 * min(max(elapsed, inner), outer) / elapsed
