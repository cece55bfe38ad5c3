"""The report of `pgtare clock`, schema `pgtare.clock/1`."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name

SCHEMA: Final = "pgtare.clock/1"

Verdict = Literal["good", "slow", "faulty"]


class Bucket(Model):
    """One bucket of a log2 histogram."""

    up_to_ns: int = Field(description="the longest duration of this bucket: 0, 1, 3, 7, 15, …")
    count: int = Field(description="readings in it")


class Exact(Model):
    """One duration that was seen, exactly."""

    ticks: int = Field(description="difference of two readings in the clock's own unit")
    duration_ns: float = Field(description="the same in ns; below 0 if the clock stepped back")
    count: int = Field(description="how often")


class ClockResult(Model):
    """One clock, read over and over on one processor."""

    name: str = Field(description="its name")
    title: str = Field(description="the call or instruction")
    source: str = Field(description="vDSO, system call, or processor")
    duration_s: float = Field(description="how long it was read")
    differences: int = Field(description="differences between two readings in succession")
    mean_ns: float = Field(description="average time of a loop, everything included")
    read_ns: float = Field(description="what a reading costs in a loop that does nothing else")
    loop_ns: float = Field(description="what the recording loop adds to a reading")
    step_ns: float | None = Field(description="the smallest difference above 0: its resolution")
    p50_ns: float | None = Field(description="median difference")
    p99_ns: float | None = Field(description="99th percentile")
    max_ns: float | None = Field(description="largest difference")
    still_longest: int = Field(description="most differences of 0 in a row")
    advanced_pct: float = Field(
        description="time that went by on this clock, of that on CLOCK_MONOTONIC, in percent"
    )
    backward: int = Field(description="steps back")
    backward_largest_ns: float = Field(description="the largest step back")
    histogram: list[Bucket] = Field(description="all differences not below 0, by powers of two")
    exact: list[Exact] = Field(description="every duration seen, with its count")


class Frequency(Model):
    """How fast the processor's counter runs."""

    hz: int = Field(description="ticks a second, in use for every conversion here")
    error_ppm: float = Field(description="its error is no larger than this")
    duration_s: float = Field(description="how far apart its two readings were")
    step_ns: float = Field(
        default=0.0, description="by how much the counter stepped in between; 0: it did not"
    )


class CoreOffset(Model):
    """Two processors' clocks against each other."""

    first: int = Field(description="a processor")
    second: int = Field(description="another")
    lo_ns: float = Field(description="lower bound of the second's clock minus the first's")
    hi_ns: float = Field(description="upper bound")
    rounds: int = Field(description="readings handed to and fro")
    backward: int = Field(description="readings below the other processor's earlier one")


class Cores(Model):
    """Every pair of processors, or a sample of the pairs."""

    clock: str | None = Field(description="the clock compared; null if nothing was")
    pairs: list[CoreOffset] = Field(description="the pairs that were compared")
    possible: int = Field(description="pairs that there are")
    note: str | None = Field(description="why there are no pairs, or not all")


class Cause(Model):
    """What took time from the reading thread."""

    cause: str = Field(description="in words")
    count: int = Field(description="gaps")
    lost_pct: float = Field(description="share of the time")


class Gap(Model):
    """One of the longest gaps."""

    at_ms: float = Field(description="when it began, in ms after the start")
    duration_ns: float = Field(description="its length")
    cause: str = Field(description="as far as the kernel tells")
    switches: int = Field(description="context switches since the gap before")
    waited_ns: int | None = Field(description="ready but waiting for a processor; null: not known")
    stolen_ms: int | None = Field(description="taken by other guests; null: not known")


class Gaps(Model):
    """Where the reading thread was held up."""

    clock: str = Field(description="the clock that showed it")
    duration_s: float = Field(description="time observed")
    threshold_ns: float = Field(description="differences from here on are gaps")
    count: int = Field(description="gaps")
    lost_pct: float = Field(description="time beyond an ordinary reading, as a share of all")
    causes: list[Cause] = Field(description="the share by cause")
    longest: list[Gap] = Field(description="the longest")


class Choice(Model):
    """What PostgreSQL 19 takes if timing_clock_source is left at auto."""

    clock: str = Field(description="tsc or system")
    why: str = Field(description="the reason")
    usable: bool = Field(description="whether tsc could be chosen at all")


class Trust(Model):
    """Whether the server modules take the processor's counter as a clock."""

    counter: bool = Field(description="whether they do; else they read CLOCK_MONOTONIC")
    reason: str = Field(description="why, or why not")


class Diagnosis(Model):
    """What the set-up is, and what to do about it."""

    verdict: Verdict = Field(description="good, slow or faulty")
    sentence: str = Field(description="the verdict in a sentence")
    remedies: list[str] = Field(description="what to do, one sentence each")
    clocksource: str | None = Field(description="the kernel's, null if it cannot be read")
    available: list[str] = Field(description="clock sources that the kernel could use")
    vdso: bool | None = Field(description="whether CLOCK_MONOTONIC is read without a system call")
    cpuid: bool = Field(description="whether there is CPUID")
    invariant: bool = Field(description="whether the counter runs at one rate in all states")
    tsc_adjust: bool = Field(description="whether the processor keeps its counters in step itself")
    hypervisor: str | None = Field(description="its name, null on bare metal")
    postgres19: Choice = Field(description="the default of PostgreSQL 19")
    modules: Trust = Field(description="the default of pgtare's server modules")


class Span(Model):
    """A likely value between two bounds, which are no confidence interval."""

    lo: float = Field(description="not below this")
    likely: float = Field(description="the likely value")
    hi: float = Field(description="not above this")

    def __add__(self, other: Span) -> Span:
        return Span(lo=self.lo + other.lo, likely=self.likely + other.likely, hi=self.hi + other.hi)

    def scaled(self, factor: float) -> Span:
        """This, times a number that is not negative."""
        return Span(lo=self.lo * factor, likely=self.likely * factor, hi=self.hi * factor)


class Meaning(Model):
    """What a clock of this cost means for one thing that PostgreSQL can time."""

    what: str = Field(description="what is timed")
    server: str = Field(description="the versions of PostgreSQL")
    clock: str = Field(description="the clock they read")
    cost_ns: Span = Field(description="its readings, and the work next to them")


class ClockReport(Document):
    """Everything that `pgtare clock` measured and concluded."""

    schema_: Literal["pgtare.clock/1"] = schema_name(SCHEMA)
    created: str = Field(description="when the measurement ended, ISO 8601")
    pgtare_version: str = Field(description="version of pgtare that wrote it")
    command: list[str] = Field(description="the command line, one word an element")
    machine: dict[str, Any] = Field(description="processor, kernel, memory")
    cpu: int = Field(description="the processor that was read on")
    stopped_by: Literal["time", "interrupt"] = Field(description="what ended the measurement")
    diagnosis: Diagnosis = Field(description="verdict and remedies")
    clocks: list[ClockResult] = Field(description="the clocks that were read")
    frequency: Frequency | None = Field(description="the counter's; null if there is none")
    cores: Cores | None = Field(description="across processors; null if it was not reached")
    system_cores: Cores | None = Field(
        default=None,
        description="the same by CLOCK_MONOTONIC, if the kernel reads it from another clock",
    )
    gaps: Gaps | None = Field(description="where time was lost; null if it was not reached")
    meaning: list[Meaning] = Field(description="what it means for PostgreSQL")
