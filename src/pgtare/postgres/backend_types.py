"""Kinds of processes: those whose time is load, and the server's own background."""

from __future__ import annotations

from collections.abc import Iterable

#: PostgreSQL's own processes, as its views name them, and senders of WAL. What they do is no load
#: of a client: they are shown apart. All others count: client sessions, their parallel workers,
#: and background workers, which apply changes of publishers or run scheduled jobs.
BACKGROUND = (
    "archiver",
    "autovacuum launcher",
    "autovacuum worker",
    "background writer",
    "checkpointer",
    "io worker",
    "logger",
    "logical replication launcher",
    "slotsync worker",
    "startup",
    "walreceiver",
    "walsender",
    "walsummarizer",
    "walwriter",
)

#: The same as a list for SQL.
BACKGROUND_SQL = "(" + ", ".join(f"'{name}'" for name in BACKGROUND) + ")"


def is_background(backend_type: str) -> bool:
    """Whether a kind of process is one of the server's own background."""
    return backend_type in BACKGROUND


def blockers(pids: Iterable[int]) -> str:
    """Processes as pg_blocking_pids() lists them, for people: 0 is a prepared transaction."""
    return ", ".join(str(pid) if pid else "prepared transaction" for pid in dict.fromkeys(pids))
