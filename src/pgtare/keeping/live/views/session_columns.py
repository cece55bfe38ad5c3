"""The columns of a table of sessions that say which session a row is of, and where it leads."""

from __future__ import annotations

from pgtare.keeping.live.page_parts import PageColumn
from pgtare.keeping.live.views.view_request import ViewRequest
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


def href(request: ViewRequest, row: LiveRow) -> str | None:
    """The statement that the session ran, if it is known."""
    if not row["statement"]:
        return None
    return request.href("/statement", server=row["host"], query_id=row["statement"])
