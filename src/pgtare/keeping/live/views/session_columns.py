"""The columns of a table of sessions that say which session a row is of."""

from __future__ import annotations

from pgtare.keeping.live.page_parts import PageColumn
from pgtare.keeping.live.worker_process import LiveRow

COLUMNS = (
    PageColumn("pid", "process"),
    PageColumn("server", "server"),
    PageColumn("role", "role"),
    PageColumn("database", "database"),
    PageColumn("application", "application"),
)


def values(row: LiveRow) -> list[object]:
    """Their values, of a row of a query that calls them process, host, user_role, base, program."""
    return [str(row["process"]), row["host"], row["user_role"], row["base"], row["program"]]
