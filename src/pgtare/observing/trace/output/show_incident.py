"""A kept trace for a terminal: what fired, whom it hit, what the time went to, who held it up."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pgtare.kit.numbers import counted, duration, percent
from pgtare.kit.terminal_text import plain
from pgtare.observing.trace.documents import (
    IncidentSession,
    InSameWait,
    KeptTrace,
    TraceIncident,
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
        lines.append(f"{_role(other)}: session {_who(other)}, kept trace {other.id}")
        lines += _doing(other)
    return Group(*(Text(plain(line)) for line in lines))


def _role(kept: KeptTrace) -> str:
    if kept.cause == "blocker":
        return "held up by"
    if kept.cause == "finding":
        return "in the same finding"
    return "in a deadlock with" if kept.cause == "deadlock" else "in the same incident"


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
