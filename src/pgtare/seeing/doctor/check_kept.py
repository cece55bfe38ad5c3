"""Checks whether sql_trace has kept traces of incidents that nobody has looked into yet."""

from __future__ import annotations

from collections.abc import Sequence

from pgtare.kit.numbers import counted
from pgtare.seeing.doctor.model import Finding
from pgtare.seeing.doctor.observed import KeptByCause

_WORDS = {
    "sqlstate": "an error of sql_trace.keep_sqlstates",
    "lock_wait": "a wait for a lock longer than sql_trace.keep_lock_wait",
    "request": "a request slower than sql_trace.keep_slower_than",
    "slower_than_usual": "a request slower than sql_trace.keep_slower_than_usual",
    "transaction": "a transaction slower than sql_trace.keep_transaction_slower_than",
    "blocker": "holding up a session that waited for a lock",
    "deadlock": "having been in a deadlock with its victim",
}


def check(kept: Sequence[KeptByCause]) -> list[Finding]:
    """One finding of all that is kept: how much, since when, and for which causes."""
    if not kept:
        return []
    traces = sum(one.traces for one in kept)
    first = min(one.first for one in kept)
    return [
        Finding(
            check="kept",
            level="warning",
            title=f"{counted(traces, 'trace')} of incidents kept since {first:%Y-%m-%d %H:%M} UTC",
            seen=[
                f"{counted(one.traces, 'trace')} because of {_WORDS.get(one.cause, one.cause)}, "
                f"the latest at {one.last:%Y-%m-%d %H:%M:%S} UTC"
                for one in kept
            ],
            why="a trigger that somebody has set fired, and the session's calls and waits before "
            "that can be read",
            remedy=[
                "pgtare trace kept --dsn …  -- lists them, and takes one by its ID",
                "SELECT sql_trace_kept_forget(id);  -- when it has been looked into",
            ],
            sure="certain",
            because="the server lists them",
            figures={"kept_traces": float(traces)},
        )
    ]
