"""What is missing in a window."""

from __future__ import annotations

from pgtare.keeping.live.page_parts import PageColumn, PageRow, PageSection, PageTable
from pgtare.keeping.live.views.view_request import ViewRequest

_COLUMNS = (
    PageColumn("server", "server"),
    PageColumn("kind", "what happened"),
    PageColumn("from_ts", "from", "time"),
    PageColumn("ts", "to", "time"),
    PageColumn("detail", "what is missing, and why"),
)


async def sections(request: ViewRequest) -> list[PageSection]:
    """A section on gaps, if there are any."""
    rows = await request.rows("gaps", only=request.of_server, window=None)
    if not rows:
        return []
    lines = [
        PageRow([row["host"], row["reason"], row["since_us"], row["until_us"], row["words"]])
        for row in rows
    ]
    return [PageSection("Gaps", table=PageTable("gaps", "What is missing", _COLUMNS, lines))]
