"""A report on the clocks as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from pgtare.kit import files, numbers, page_frame
from pgtare.observing.clock import show
from pgtare.observing.clock.charts import charts
from pgtare.observing.clock.schema import ClockReport, ClockResult


def write_page(report: ClockReport, path: Path) -> None:
    """Write the page at `path`. Raises MeasurementError if it cannot be written."""
    files.write_text(path, page(report))


def page(report: ClockReport) -> str:
    """The page as a string."""
    cpu_model = report.machine.get("cpu_model") or "unknown processor"
    return page_frame.render(
        "pgtare.observing.clock",
        "clock.html.j2",
        charts(report),
        title="What reading the time costs",
        subtitle=f"{cpu_model}, {report.machine.get('host_os', '')}",
        diagnosis=report.diagnosis,
        interrupted=report.stopped_by == "interrupt",
        clocks=[_row(clock) for clock in report.clocks],
        lacking=sorted(report.lacking.items()),
        facts=_facts(report),
        meaning=[[m.what, m.server, m.clock, show.costs(m)] for m in report.meaning],
        plan=report.plan and show.plan(report.plan),
        gaps=[
            [f"{gap.at_ms:,.1f} ms", show.ns(gap.duration_ns), gap.cause]
            for gap in (report.gaps.longest if report.gaps else ())
        ],
        cores=[
            [
                f"{p.second} minus {p.first} ({found.clock})",
                numbers.signed(p.lo_ns, 0),
                numbers.signed(p.hi_ns, 0),
                numbers.count(p.backward),
                numbers.count(p.rounds),
            ]
            for found in (report.cores, report.system_cores)
            if found is not None
            for p in found.pairs
        ],
        command=" ".join(report.command),
        version=report.pgtare_version,
        created=report.created,
    )


def _row(clock: ClockResult) -> list[str]:
    return [
        clock.name,
        clock.source,
        show.ns(clock.read_ns),
        f"±{numbers.percent(clock.read_noise_pct)}",
        f"{clock.loop_ns:.1f} ns",
        show.ns(clock.step_ns),
        show.ns(clock.p50_ns),
        show.ns(clock.p99_ns),
        show.ns(clock.max_ns),
        numbers.count(clock.backward),
        numbers.count(clock.differences),
    ]


def _facts(report: ClockReport) -> list[tuple[str, list[str]]]:
    """Facts by name, lines that continue one joined to it."""
    found: list[tuple[str, list[str]]] = []
    for name, text in show.facts(report):
        if name:
            found.append((name, [text]))
        else:
            found[-1][1].append(text)
    return found
