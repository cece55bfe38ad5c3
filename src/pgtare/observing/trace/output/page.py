"""The page of a trace: profile, time line, and statements with all that they did; one file."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import pgtare
from pgtare.errors import UsageError
from pgtare.kit import files, numbers, page_frame
from pgtare.observing.trace.analysis import moment as moments
from pgtare.observing.trace.analysis import profile as profiles
from pgtare.observing.trace.analysis.kept_state import kept_at, kept_because
from pgtare.observing.trace.analysis.ledger import Ledger, ends_of_work
from pgtare.observing.trace.analysis.profile import Scope
from pgtare.observing.trace.analysis.statements import report
from pgtare.observing.trace.analysis.texts import StatementLabels, statement_labels
from pgtare.observing.trace.documents import TracedStatement, TraceProfile
from pgtare.observing.trace.file import reader
from pgtare.observing.trace.file.blocks import SUFFIX
from pgtare.observing.trace.file.records import CallKind
from pgtare.observing.trace.output import active_sessions, show, waterfall
from pgtare.observing.trace.output.active_sessions import OverTime
from pgtare.observing.trace.output.waterfall import Waterfall

_LINES = 40
_STATEMENTS = 50
_SESSIONS = 8
_LEVELS = {
    1: "calls and SQL",
    4: "calls, SQL and values",
    8: "calls, SQL and waits",
    12: "calls, SQL, values and waits",
}
#: Characters of a statement that the page shows; an export has all that was kept.
_TEXT = 20_000


def write_page(ledger: Ledger, path: Path, others: Sequence[Ledger] = ()) -> None:
    """Write the page. Raises MeasurementError if it cannot be written."""
    files.write_text(path, page(ledger, others))


def page(ledger: Ledger, others: Sequence[Ledger] = ()) -> str:
    """The page as a string. others: what was kept in the same incident as this trace."""
    labels = statement_labels(ledger)
    found = _profiles(ledger)
    first = found[0] if found else None
    times = active_sessions.over_time(ledger)
    chart = active_sessions.chart(times)
    began = _began(ledger)
    version = str(ledger.trace.recording.get("server", ""))
    return page_frame.render(
        "pgtare.observing.trace.output",
        "trace.html.j2",
        [chart] if chart else [],
        title=f"Where the time of {ledger.trace.path.name.removesuffix(SUFFIX)} went",
        subtitle=f"PostgreSQL {_version(version)} · {_processes(ledger)} · {_span(ledger, began)}",
        alarms=ledger.notes,
        answers=_answers(first, times) if first else ["Nothing was traced."],
        moment=_moment(ledger, others),
        profiles=[_rows(p) for p in found],
        sessions=_sessions(ledger, labels),
        statements=_statements(ledger, labels),
        facts=_facts(ledger),
        of_calls=waterfall.OF_CALLS,
        of_waits=waterfall.OF_WAITS,
        version=pgtare.__version__,
        created=began,
    )


def _moment(ledger: Ledger, others: Sequence[Ledger]) -> list[Waterfall]:
    """Of a kept trace: what fired, and the other sessions of the incident at the same time."""
    fired = moments.moment(ledger)
    if fired is None:
        return []
    before = (fired.end - fired.begin) // 10
    begin, end = fired.begin - before, max(fired.end, kept_at(ledger.trace) or 0) + before // 10
    found = []
    for book, doing in [(ledger, fired), *((other, moments.moment(other)) for other in others)]:
        kept = kept_because(book.trace) or {}
        if doing is not None:
            who = profiles.who(book.processes[doing.process].ring)
            why = f"{kept.get('cause')}, {kept.get('detail')}: session {who}"
            labels = statement_labels(book)
            found.append(waterfall.draw(book, labels, doing.process, begin, end, why))
    return found


def _processes(ledger: Ledger) -> str:
    workers = sum(p.leader_pid is not None for p in ledger.processes)
    sessions = len(ledger.processes) - workers
    text = numbers.counted(sessions, "session")
    return f"{text} and {numbers.counted(workers, 'parallel worker')}" if workers else text


def _began(ledger: Ledger) -> str:
    began = reader.moment(ledger.trace.recording.get("began"))
    if not began:
        return "time unknown"
    return f"{datetime.fromtimestamp(began // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _span(ledger: Ledger, began: str) -> str:
    if not ledger.processes:
        return began
    first = min(p.begin for p in ledger.processes)
    return f"{show.ns(max(p.end for p in ledger.processes) - first)} from {began}"


def _facts(ledger: Ledger) -> list[tuple[str, str]]:
    """How it was recorded, as far as the file says so."""
    recording, end = ledger.trace.recording, ledger.trace.end
    command, level = recording.get("command"), recording.get("level")
    facts = []
    if isinstance(command, list) and command:
        facts.append(("recorded by", shlex.join(map(str, command))))
    if recording.get("calls") is False:
        facts.append(("level", "waits and statements alone, without sql_trace"))
    elif isinstance(level, int) and level in _LEVELS:
        facts.append(("level", f"{level}: {_LEVELS[level]}"))
    if end and end.get("stopped_by"):
        facts.append(("ended by", str(end["stopped_by"])))
    facts.append(("recorder", str(recording.get("pgtare", "unknown"))))
    return facts


def _version(number: str) -> str:
    return f"{int(number) // 10_000}.{int(number) % 10_000}" if number.isdecimal() else "?"


def _profiles(ledger: Ledger) -> list[TraceProfile]:
    found: list[TraceProfile] = []
    for scope in (Scope(), Scope(workers=True, words="parallel workers")):
        groupings = ("event",) if scope.workers else profiles.GROUPINGS
        with contextlib.suppress(UsageError):  # no sessions, or no workers
            found += profiles.profiles(ledger, groupings, scope)
    return found


def _answers(profile: TraceProfile, times: OverTime) -> list[str]:
    facts = [
        f"{show.ns(profile.total_ns)} of {numbers.counted(profile.sessions, 'session')} are "
        f"accounted for; {times.mean:.2f} were active on average, parallel workers included."
    ]
    return facts + [
        f"{line.name}: {numbers.percent(line.share_pct)}, {show.ns(line.total_ns)}."
        for line in profile.lines[:6]
    ]


def _rows(profile: TraceProfile) -> dict[str, Any]:
    """A profile as a table whose lines add up to its last one."""
    return {
        "title": f"By {profile.by}" + (", parallel workers" if profile.workers else ""),
        "total": show.ns(profile.total_ns),
        "head": ["", *show.head(profile)],
        "lines": show.rows(profile, _LINES, 200),
    }


def _sessions(ledger: Ledger, labels: StatementLabels) -> list[Waterfall]:
    """The time line of the sessions that did most."""
    busy = [(len(p.calls), i) for i, p in enumerate(ledger.processes) if p.leader_pid is None]
    return [
        waterfall.draw(
            ledger,
            labels,
            i,
            ledger.processes[i].begin,
            ledger.processes[i].end,
            f"Session {profiles.who(ledger.processes[i].ring)}",
        )
        for _, i in sorted(busy, reverse=True)[:_SESSIONS]
    ]


def _statements(ledger: Ledger, labels: StatementLabels) -> list[dict[str, Any]]:
    found = report(ledger)
    total = sum(s.sum("elapsed_ns") for s in found if not s.recursive) or 1.0
    numbered = {
        (name, q): i for i, (name, q) in enumerate(zip(labels.names, labels.query_ids, strict=True))
    }
    return [
        {
            "text": _beginning(s.text),
            "short": show.one_line(s.text),
            "recursive": s.recursive,
            "query_id": s.query_id,
            "share": numbers.percent(100 * s.sum("elapsed_ns") / total),
            "elapsed": show.ns(s.sum("elapsed_ns")),
            "calls": [[kind, *show.cells(call)] for kind, call in s.calls.items()],
            "waits": [
                [w.event, numbers.count(w.waits), show.ns(w.total_ns), show.ns(w.max_ns)]
                for w in s.waits[:20]
            ],
            "errors": ", ".join(f"{state} × {n}" for state, n in s.errors.items()),
            "plans": [
                [show.node_cells(node, "\N{NO-BREAK SPACE}" * 4) for node in plan.nodes]
                for plan in s.plans[:3]
            ],
            "slowest": _slowest(ledger, labels, numbered.get((s.text, s.query_id)), s),
        }
        for s in found[:_STATEMENTS]
    ]


def _beginning(text: str) -> str:
    left_out = len(text) - _TEXT
    return text if left_out <= 0 else f"{text[:_TEXT]} … ({left_out:,} characters more)"


def _slowest(
    ledger: Ledger, labels: StatementLabels, label: int | None, statement: TracedStatement
) -> Waterfall | None:
    """The waterfall of the longest execution of a statement."""
    if label is None:
        return None
    c = ledger.calls
    of = np.flatnonzero(
        (labels.of_call == label)
        & ((c["depth"] > 0) == statement.recursive)
        & np.isin(c["kind"], [CallKind.EXECUTE, CallKind.UTILITY])
    )
    if not len(of):
        return None
    ends = ends_of_work(c[of])
    longest = int(np.argmax(ends - c["start"][of]))
    start, end = int(c["start"][of[longest]]), int(ends[longest])
    if end <= start:
        return None
    return waterfall.draw(
        ledger, labels, int(ledger.call_process[of[longest]]), start, end, "Its longest execution"
    )
