"""What is missing in a window."""

from __future__ import annotations

from dataclasses import replace

from pgtare.keeping.live.page_parts import PageColumn, PageRow, PageSection, PageTable
from pgtare.keeping.live.time_window import DAY_US
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
    window = request.window
    # gaps may end later than the newest row, if their server has not been reached since
    ended = replace(window, to_us=max(window.to_us, request.newest_us + DAY_US))
    rows = await request.rows("gaps", only=request.of_server, window=ended, until_us=window.to_us)
    if not rows:
        return []
    lines = [
        PageRow([row["host"], row["reason"], row["since_us"], row["until_us"], row["words"]])
        for row in rows
    ]
    return [PageSection("Gaps", table=PageTable("gaps", "What is missing", _COLUMNS, lines))]
