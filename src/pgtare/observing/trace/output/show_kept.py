"""Kept traces for a terminal: all as a table, or one with what fired and who was in it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.numbers import counted, duration, percent, volume
from pgtare.kit.terminal_text import plain
from pgtare.observing.trace.documents import (
    IncidentSession,
    InSameWait,
    KeptTrace,
    TraceIncident,
    TraceKept,
)
from pgtare.observing.trace.output.show import one_line

#: Components that are named.
_LINES = 5
_FIRED = {
    "sqlstate": "an error",
    "lock_wait": "a long wait for locks",
    "request": "a slow request",
    "slower_than_usual": "a request slower than is usual for its statement",
    "transaction": "a slow transaction",
    "blocker": "it held up another session",
    "deadlock": "it was in a deadlock with another session",
    "finding": "it is in a finding",
}
#: What the other sessions of an incident are to the one that is shown.
_ROLES = {
    "blocker": "held up by",
    "deadlock": "in a deadlock with",
    "finding": "in the same finding",
}


def kept_view(found: TraceKept) -> RenderableType:
    """The traces, the latest last, and what is not among them."""
    parts: list[RenderableType] = [_table(found)] if found.traces else [Text("no trace is kept")]
    parts += [Text(plain(line)) for line in _lines(found)]
    parts += [Text(plain(f"note: left out: {note}")) for note in found.notes]
    return Group(*parts)


def _table(found: TraceKept) -> RenderableType:
    table = Fitted(
        "id",
        "at",
        "cause",
        "how much",
        "incident",
        "session",
        "role",
        "database",
        "application",
        "query identifier",
        "size",
        "file",
        spare=("query identifier", "database", "incident", "application", "size", "file", "role"),
    )
    for kept in found.traces:
        table.add_row(
            str(kept.id),
            f"{kept.at.astimezone():%Y-%m-%d %H:%M:%S}",
            kept.cause,
            kept.detail,
            str(kept.incident) if kept.incident is not None else numbers.NONE,
            str(kept.pid),
            kept.user or numbers.NONE,
            kept.database or numbers.NONE,
            kept.application,
            str(kept.query_id) if kept.query_id is not None else numbers.NONE,
            volume(kept.bytes) if kept.bytes else numbers.NONE,
            kept.file or "in memory",
        )
    return table


def _lines(found: TraceKept) -> list[str]:
    if found.started is None:
        return []
    lines = [
        f"{counted(found.ever or 0, 'trace')} kept since the server started, "
        f"{found.started.astimezone():%Y-%m-%d %H:%M:%S}"
    ]
    if found.skipped:
        lines.append(
            f"{counted(found.skipped, 'trigger')} fired in vain: no more are kept than "
            "sql_trace.keep_most in an hour, half of them of one role, and one of a cause, "
            "statement and role in sql_trace.keep_interval; sql_trace_kept_forget(id) makes room"
        )
    if found.refused:
        lines.append(
            f"{counted(found.refused, 'trace')} found no memory: raise sql_trace.ring_memory"
        )
    lines.append(
        f"the server writes them to {found.directory}"
        if found.directory
        else "they are in memory alone, and lost when the server restarts: "
        "sql_trace.keep_directory has them written"
    )
    return lines


def incident_view(found: TraceIncident) -> RenderableType:
    """What was kept, and what else was kept in the same incident."""
    victim = found.session
    lines = [
        f"kept trace {victim.id}: {_FIRED.get(victim.cause, victim.cause)} ({victim.detail}), "
        f"{victim.at.astimezone():%Y-%m-%d %H:%M:%S}",
        f"session {_who(victim)}",
        *_doing(victim),
        *_in_same_wait(victim.same_wait),
    ]
    for other in found.others:
        role = _ROLES.get(other.cause, "in the same incident")
        lines.append(f"{role}: session {_who(other)}, kept trace {other.id}")
        lines += _doing(other)
    return Group(*(Text(plain(line)) for line in lines))


def _who(kept: KeptTrace) -> str:
    return f"{kept.pid} ({kept.user or '?'}@{kept.database or '?'} {kept.application})".replace(
        " )", ")"
    )


def _in_same_wait(found: InSameWait | None) -> list[str]:
    if found is None:
        return []
    others = counted(found.sessions, "other process", "other processes")
    pids = ", ".join(map(str, found.pids)) + (", ..." if found.sessions > len(found.pids) else "")
    return [
        f"in the same wait, {found.event}, as it ended at {found.at.astimezone():%H:%M:%S.%f}: "
        f"{others}{f' ({pids})' if pids else ''}; who held the lock is not known"
    ]


def _doing(found: IncidentSession) -> list[str]:
    if found.goes_on is None:
        return ["  the trace tells nothing of what it did then"]
    lines = [f"  {one_line(found.statement)}"] if found.statement else []
    total = sum(part.total_ns for part in found.time)
    lines += [
        f"  {duration(part.total_ns / 1000):>9}  {percent(100 * part.total_ns / total):>6}  "
        f"{part.name}"
        for part in found.time[:_LINES]
        if total and part.total_ns >= 0.001 * total
    ]
    if found.state is not None and found.goes_on:
        what = "this" if found.statement else "a statement that is not traced"
        waiting = f", at that moment in {found.state.event}" if found.state.event else ""
        lines.append(f"  it was running {what} for {duration(found.state.for_ns / 1000)}{waiting}")
    if found.transaction_ns is not None and found.idle_ns:
        lines.append(
            f"  then idle for {duration(found.idle_ns / 1000)} in a transaction that was open for "
            f"{duration(found.transaction_ns / 1000)}"
        )
    return lines
