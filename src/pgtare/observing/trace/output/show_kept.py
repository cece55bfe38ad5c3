"""Traces that a server kept, as a table and sentences for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.numbers import counted, volume
from pgtare.kit.terminal_text import plain
from pgtare.observing.trace.documents import TraceKept


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
