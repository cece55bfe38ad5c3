"""A report as a terminal shows it: summary and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.kit import labelled_text, numbers
from pgtare.observing.clock.diagnosis import VAGUE_NS
from pgtare.observing.clock.schema import (
    ClockReport,
    ClockResult,
    Cores,
    Frequency,
    Gaps,
    Span,
)

_BAR = 24
_VERDICT = {"good": "green", "slow": "yellow", "faulty": "red"}


def ns(value: float | None) -> str:
    """A length given in ns, in the unit that suits it."""
    if value is None:
        return numbers.NONE
    for unit, scale in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        if abs(value) < 999.5 * scale or unit == "s":
            digits = 0 if abs(value) >= 99.95 * scale else 1
            sign = numbers.MINUS if value < 0 else ""
            return f"{sign}{abs(value) / scale:,.{digits}f} {unit}"
    raise AssertionError("unreachable")


def summary(report: ClockReport) -> RenderableType:
    """Verdict, clocks and set-up in at most 44 lines."""
    diagnosis = report.diagnosis
    parts: list[RenderableType] = [
        Text(diagnosis.sentence, style=f"bold {_VERDICT[diagnosis.verdict]}"),
        *(Text(remedy) for remedy in diagnosis.remedies),
        Text(""),
        _clocks(report.clocks),
        Text(""),
        labelled_text.rows(facts(report)),
    ]
    if report.meaning:
        parts += [Text(""), _meaning(report)]
    if report.stopped_by == "interrupt":
        parts += [Text(""), Text("Interrupted: this is what had been measured until then.")]
    return Group(*parts)


def _table(*columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def _clocks(clocks: Sequence[ClockResult]) -> Table:
    table = _table(
        "clock", "a reading", "+ loop", "step", "median", "longest", "back", left=("clock",)
    )
    for clock in clocks:
        table.add_row(
            clock.name,
            ns(clock.read_ns),
            f"{clock.loop_ns:.1f} ns",
            ns(clock.step_ns),
            ns(clock.p50_ns),
            ns(clock.max_ns),
            Text(numbers.count(clock.backward), style="bold red" if clock.backward else ""),
        )
    return table


def facts(report: ClockReport) -> Iterator[tuple[str, str]]:
    """What is known apart from the clocks, by name."""
    if report.frequency is not None:
        yield "frequency", frequency(report.frequency)
    elif not report.diagnosis.cpuid:
        yield "frequency", "no CPUID and no counter to be trusted here: the kernel's clocks alone"
    elif not report.diagnosis.invariant:
        rate = "its ticks are turned into ns by its average rate during this run"
        yield "frequency", f"the TSC is not invariant, so its rate may change: {rate}"
    if report.cores is not None:
        yield from (
            ("processors" if i == 0 else "", text) for i, text in enumerate(cores(report.cores))
        )
    if report.system_cores is not None:
        yield "", f"CLOCK_MONOTONIC: {next(cores(report.system_cores))}"
    if report.gaps is not None:
        yield "time lost", gaps(report.gaps, report.cpu)
        if report.gaps.longest:
            worst = report.gaps.longest[0]
            yield "", f"longest {ns(worst.duration_ns)}: {worst.cause}"
    yield "set-up", setup(report)
    choice = report.diagnosis.postgres19
    tsc = "timing_clock_source = tsc is possible" if choice.usable else "tsc cannot be chosen"
    other = "" if choice.clock == "tsc" else f"; {tsc}"
    yield "", f"PostgreSQL 19 would read the {choice.clock} clock by default: {choice.why}{other}"


def frequency(found: Frequency) -> str:
    """The counter's frequency with its error."""
    over = numbers.seconds(round(found.duration_s, 1))
    how = "short calibrations, as the counter stepped" if found.step_ns else over
    return f"{found.hz / 1e6:,.4f} MHz ± {found.error_ppm:.2g} ppm (calibration, {how})"


def cores(found: Cores) -> Iterator[str]:
    """The processors that may be furthest apart, and what was not compared."""
    pairs = sorted(found.pairs, key=lambda p: -max(p.lo_ns, -p.hi_ns, p.hi_ns - p.lo_ns))
    for pair in pairs[:1]:
        steps = numbers.counted(pair.backward, "step back", "steps back")
        back = steps if pair.backward else "no step back"
        yield (
            f"{pair.second} minus {pair.first}: {numbers.signed(pair.lo_ns, 0)} to "
            f"{numbers.signed(pair.hi_ns, 0)} ns, {back} in {numbers.counted(pair.rounds, 'round')}"
            + ("; too busy to tell more" if pair.hi_ns - pair.lo_ns > VAGUE_NS else "")
        )
    more = f"{numbers.counted(len(pairs) - 1, 'more pair')} within these" if pairs[1:] else None
    if rest := [text for text in (more, found.note) if text]:
        yield "; ".join(rest)


def gaps(found: Gaps, cpu: int) -> str:
    """Share of time lost, by cause."""
    causes = ", ".join(
        f"{cause.cause} {numbers.percent(cause.lost_pct)} ({numbers.count(cause.count)})"
        for cause in found.causes
    )
    return (
        f"{numbers.percent(found.lost_pct)} of {found.duration_s:.2g} s on processor {cpu} in "
        f"{numbers.counted(found.count, 'gap')} over {ns(found.threshold_ns)}: {causes}"
    )


def setup(report: ClockReport) -> str:
    """Clock source, vDSO, counter, hypervisor in a line."""
    found = report.diagnosis
    parts = [
        f"clock source {found.clocksource} (of {', '.join(found.available)})"
        if found.clocksource
        else "clock source unknown (/sys is not readable)"
    ]
    if found.vdso is not None:
        parts.append("read by vDSO" if found.vdso else "read by system call")
    if found.cpuid:
        parts.append("invariant TSC" if found.invariant else "TSC not invariant")
        parts.append("TSC_ADJUST" if found.tsc_adjust else "no TSC_ADJUST")
        parts.append(f"hypervisor {found.hypervisor}" if found.hypervisor else "bare metal")
    else:
        parts.append("no CPUID, so neither invariance nor hypervisor are known")
    clock = "the counter" if found.modules.counter else "CLOCK_MONOTONIC"
    parts.append(f"pgtare's modules read {clock} ({found.modules.reason})")
    return ", ".join(parts)


def _meaning(report: ClockReport) -> Table:
    table = _table(
        "what it means for PostgreSQL",
        "server",
        "clock",
        "costs",
        left=("what it means for PostgreSQL", "server", "clock"),
    )
    for one in report.meaning:
        table.add_row(one.what, one.server, one.clock, _ns_span(one.cost_ns))
    return table


def _ns_span(value: Span) -> str:
    """Nanoseconds with their bounds, in the unit that suits the likely value."""
    scale, unit = (1e3, "µs") if value.likely >= 9999.5 else (1.0, "ns")
    likely, low, high = (v / scale for v in (value.likely, max(value.lo, 0), value.hi))
    digits = 0 if likely >= 99.95 else 1
    return f"{likely:,.{digits}f} {unit} [{low:,.{digits}f}, {high:,.{digits}f}]"


def histogram(clock: ClockResult) -> RenderableType:
    """All differences of a clock by powers of two."""
    total = sum(bucket.count for bucket in clock.histogram) or 1
    most = max((bucket.count for bucket in clock.histogram), default=1) or 1
    table = _table("<= ns", "count", "share", "running", "", left=("",))
    running = 0
    first = next((i for i, bucket in enumerate(clock.histogram) if bucket.count), 0)
    for bucket in clock.histogram[first:]:
        running += bucket.count
        table.add_row(
            numbers.count(bucket.up_to_ns),
            numbers.count(bucket.count),
            f"{100 * bucket.count / total:.4f} %",
            f"{100 * running / total:.4f} %",
            "█" * round(_BAR * bucket.count / most),
        )
    heading = f"{clock.name}: {numbers.counted(clock.differences, 'reading')} in "
    return Group(Text(f"\n{heading}{clock.duration_s:.2f} s", style="bold"), table)
