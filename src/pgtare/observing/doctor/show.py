"""A report as a terminal shows it: findings first, the worst of them on top."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.kit import labelled_text, numbers
from pgtare.kit.terminal_text import plain
from pgtare.observing.doctor.model import (
    FEWEST_HITS,
    Report,
    Statements,
    Waits,
    WaitShare,
)
from pgtare.observing.findings.model import Finding

_STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "cyan", "ok": "green"}
_EVENTS = 6
_TOO_FEW = "too few samples"


def view(report: Report) -> RenderableType:
    """All of a report."""
    parts: list[RenderableType] = [Text(plain(_heading(report)), style="dim")]
    parts += [Text(plain(f"note: {note}"), style="yellow") for note in report.notes]
    if not report.findings and not report.is_blind:
        parts.append(Text("No finding.", style=_STYLES["ok"]))
    elif report.is_blind:
        parts.append(
            Text(
                "Cannot see what sessions wait for: below is why, and what helps.",
                style=_STYLES["warning"],
            )
        )
    if report.findings:
        parts += [Text(""), _table(report.findings, report.taken)]
    for finding in report.findings:
        parts += [Text(""), _finding(finding)]
    if report.statements is not None:
        parts += [Text(""), Text("pg_stat_statements", style="bold"), _figures(report.statements)]
    if report.waits is not None:
        parts += [Text(""), *_waits(report.waits)]
    if report.observers:
        parts += [Text(""), Text("What observes", style="bold")]
        parts.append(
            labelled_text.rows(
                (f"{one.name} = {one.value}", f"`pgtare weigh {one.name} --dsn …` shows its cost")
                for one in report.observers
            )
        )
    if report.unseen:
        parts += [Text(""), Text("Not looked at", style="bold")]
        parts.append(
            labelled_text.rows(
                (one.what, ": ".join(filter(None, (one.why, one.remedy)))) for one in report.unseen
            )
        )
    return Group(*parts)


def _heading(report: Report) -> str:
    server = report.server
    what = "hot standby" if server.standby else "server"
    heading = f"PostgreSQL {server.version.split()[0]} {what}, database {server.database}, "
    heading += f"{report.duration_s:.1f} s to {report.taken.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    if report.transactions_per_s is not None:
        heading += f", {report.transactions_per_s:,.0f} transactions/s"
    if report.clock is not None:
        heading += f", a clock reading costs {report.clock.read_ns:.0f} ns"
    return heading


def _table(findings: list[Finding], taken: datetime) -> Table:
    """A line for each finding, the most urgent first."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("share", "sessions"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for finding in findings:
        since = "" if finding.since is None else numbers.time_of_day(finding.since, taken)
        table.add_row(
            "" if finding.share is None else numbers.percent(100 * finding.share),
            "" if finding.aas is None else f"{finding.aas:.1f}",
            since,
            Text.assemble(
                (finding.level.upper(), _STYLES[finding.level]), "  ", plain(finding.title)
            ),
        )
    return table


def _finding(finding: Finding) -> RenderableType:
    return labelled_text.finding(
        finding.title,
        finding.evidence,
        finding.why,
        [remedy.model_dump() for remedy in finding.remedy],
        [("sure", f"{finding.sure}: {finding.because}")],
    )


def _figures(found: Statements) -> Table:
    rows = [("entries", f"{found.entries:,} of {found.max:,}, version {found.version}")]
    if found.deallocations_per_s is None:
        now = "not known in this interval"
    elif not found.deallocations_per_s:
        now = "none"
    else:
        evicted = numbers.rate(found.evicted_per_s or 0.0)
        now = f"{numbers.rate(found.deallocations_per_s)}/s, {evicted} entries/s"
    rows.append(("evictions", now))
    if found.since_reset_per_s is not None and found.stats_reset is not None:
        reset = found.stats_reset.astimezone()
        rows.append(
            (
                "",
                f"{found.deallocations_since_reset:,} deallocations since the reset of "
                f"{reset:%Y-%m-%d %H:%M %Z}, {numbers.rate(found.since_reset_per_s)}/s",
            )
        )
    if found.live_text_bytes is not None:
        text = f"{found.live_text_bytes / 1e3:,.0f} kB"
        if found.text_file_bytes is not None:
            text += f" in a file of {found.text_file_bytes / 1e3:,.0f} kB"
        rows.append(("texts", text))
    return labelled_text.rows(rows)


def _waits(waits: Waits) -> list[RenderableType]:
    if waits.exact:
        least, how = "", "counted by wait_event_timing"
    else:
        least = "at least "
        how = f"a lower bound from {waits.samples} samples of pg_stat_activity"
    head = Text.assemble(
        ("Waits", "bold"), f": {least}{waits.active:.2f} sessions active on average ({how})"
    )
    if not waits.active:
        return [head]
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(2):
        table.add_column(justify="right")
    table.add_column()
    known = waits.on_cpu_exact or waits.hits >= FEWEST_HITS
    part = numbers.percent(100 * waits.on_cpu / waits.active) if known else _TOO_FEW
    sampled = "" if waits.on_cpu_exact or not waits.exact else " (sampled: a lower bound)"
    table.add_row(f"{waits.on_cpu:.2f}", part, f"CPU, or ready for it{sampled}")
    for wait in waits.events[:_EVENTS]:
        table.add_row(f"{wait.active:.2f}", _share(wait), Text(plain(wait.event)))
    return [head, table]


def _share(wait: WaitShare) -> str:
    if wait.share is None:
        return _TOO_FEW
    least = "" if wait.share_lo is None else f", at least {numbers.percent(100 * wait.share_lo)}"
    return numbers.percent(100 * wait.share) + least
