"""Findings as a terminal shows them: a line each, then what to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.keeping.findings.history import ComparedFinding, FindingsHistory, KeptFinding
from pgtare.kit import labelled_text, numbers
from pgtare.kit.terminal_text import plain

_STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "cyan"}


def view(found: FindingsHistory) -> RenderableType:
    """All of them."""
    if not found.findings:
        return Text(f"No finding between {_time(found.from_)} and {_time(found.to)}.")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("share", "sessions"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("since", "until", "server"):
        table.add_column(name, no_wrap=True)
    table.add_column("finding", overflow="fold", min_width=30)
    for one in found.findings:
        table.add_row(
            "" if one.share is None else numbers.percent(100 * one.share),
            "" if one.aas is None else f"{one.aas:.1f}",
            _time(one.since),
            _until(one, found),
            Text(plain(one.server)),
            Text.assemble((one.level.upper(), _STYLES.get(one.level, "")), "  ", plain(one.title)),
        )
    return Group(table, *(_details(one) for one in found.findings if one.class_ < 4))


def _until(one: KeptFinding, found: FindingsHistory) -> str:
    if one.until is not None:
        return numbers.time_of_day(one.until, one.since)
    if found.is_stale(one):
        return f"not known after {numbers.time_of_day(one.written, one.since)}"
    return "open"


def _time(at: datetime) -> str:
    return f"{at.astimezone():%m-%d %H:%M:%S}"


def _details(one: KeptFinding) -> RenderableType:
    lines = one.traces.lines() if one.traces is not None else []
    traces = [("trace" if not n else "", line) for n, line in enumerate(lines)]
    more = [("sure", f"{one.sure}: {one.because}"), *traces]
    found = labelled_text.finding(one.title, one.evidence, one.why, one.remedy, more)
    return Group(Text(""), found)


def difference(
    found: Sequence[ComparedFinding], now: FindingsHistory, before: FindingsHistory
) -> Table:
    """Two stretches side by side: active time of each cause."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for history in (now, before):
        table.add_column(f"from {_time(history.from_)}", justify="right")
    table.add_column("server", no_wrap=True)
    table.add_column("finding", overflow="fold", min_width=30)
    for one in found:
        table.add_row(
            f"{one.now_s:,.0f} s",
            f"{one.before_s:,.0f} s",
            Text(plain(one.server)),
            Text(plain(one.title)),
        )
    return table
