"""Who blocks whom at a moment, as a tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from textwrap import shorten

from pgtare.keeping.live import live_charts, time_window
from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageSection,
    PageTable,
    TreeNode,
    ViewPage,
    page_rows,
)
from pgtare.keeping.live.row_sources import SAMPLED
from pgtare.keeping.live.time_window import US, TimeWindow
from pgtare.keeping.live.views import breakdown
from pgtare.keeping.live.views.view_request import SESSION_COLUMNS, STATEMENT_COLUMN, ViewRequest
from pgtare.keeping.live.worker_process import LiveRow
from pgtare.kit import numbers
from pgtare.postgres import backend_types

#: Looks at most this long before a moment count for it, s.
_AROUND_S = 5
#: A tree shows this much of a statement's text; the table below has a link to it.
_LONGEST_TEXT = 120
_MOMENTS = (
    PageColumn("from_ts", "from", "time", of="bucket_us"),
    PageColumn("server", "server", of="host"),
    PageColumn("waiters", "sessions that waited", "count"),
    PageColumn("waited_ns", "waited, in total", "ns", of="spent_ns"),
)
_SESSIONS = (
    *SESSION_COLUMNS,
    PageColumn("state", "state", of="condition"),
    PageColumn(
        "event",
        "waits for",
        of=lambda row: f"{row['wait_class']}: {row['wait_event']}" if row["wait_event"] else "",
    ),
    STATEMENT_COLUMN,
    PageColumn("query_age_us", "since", "us", of="running_us"),
    PageColumn("xact_age_us", "transaction since", "us", of="open_us"),
    PageColumn(
        "blockers", "blocked by", of=lambda row: backend_types.blockers(row["waits_for"] or [])
    ),
)
_LOOKED_UP = (
    "Blockers are looked up for 20 sessions a second, of those that have waited for a lock for at "
    "least a second."
)
_NOTE = f"From samples of sessions, once a second, kept for two days. {_LOOKED_UP}"


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    step_us = request.window.step_us()
    only = request.of_server
    grain = request.window.grain
    part = await request.within(SAMPLED.rows)
    moments = await part.rows("lock_moments", only=only, grain=grain, step_us=step_us)
    series = [{**row, "member": row["host"]} for row in moments]
    shades = breakdown.cut_shades(request, part)
    chart = live_charts.activity_chart(
        "blocked", series, request.window, step_us, None, by_class=False, shades=shades
    )
    worst = sorted(moments, key=lambda row: (-row["waiters"], row["bucket_us"]))

    def href(row: LiveRow) -> str:
        return request.same(at=time_window.iso(row["longest_us"] + US - 1))

    table = PageTable(
        "moments",
        "Moments at which sessions waited for each other, the longest queues first",
        _MOMENTS,
        page_rows(_MOMENTS, worst[:50], href),
        empty="No session was seen waiting for another one in this window.",
    )
    notes = [_NOTE, *breakdown.cut_notes(request, SAMPLED, part, part if moments else request)]
    first = PageSection("When", notes, "sampled", chart if moments else None, table)
    at_us = _moment(request, worst)
    tree = [await sessions_at(request, at_us)] if at_us is not None else []
    return ViewPage("Who blocks whom", [first, *tree], request.alarms())


def _moment(request: ViewRequest, worst: Sequence[LiveRow]) -> int | None:
    """The moment that the address names; else that of the longest queue."""
    given = request.words.get("at")
    if given:
        return time_window.parse_time(given, "at")
    return worst[0]["longest_us"] + US - 1 if worst else None


async def sessions_at(
    request: ViewRequest, at_us: int, title: str = "", also: Collection[int] = ()
) -> PageSection:
    """Who waited for whom at a moment, and what they ran. also: processes to list anyway."""
    end = at_us // US * US
    around = TimeWindow(end - _AROUND_S * US, end, "tick")
    rows = await request.rows(
        "sessions_at", only=request.of_server, window=around, grain="tick", most=20_000
    )
    rows.sort(key=lambda row: (row["seen_us"], row["host"], row["process"]))
    newest: dict[str, int] = {}
    for row in rows:
        newest[row["host"]] = max(newest.get(row["host"], 0), row["seen_us"])
    now = [row for row in rows if row["seen_us"] == newest[row["host"]]]
    holders = {(row["host"], pid) for row in now for pid in row["waits_for"] or ()}

    def is_in_tree(row: LiveRow) -> bool:
        return bool(row["waits_for"]) or (row["host"], row["process"]) in holders

    involved = [row for row in now if is_in_tree(row) or row["process"] in also]
    texts = await breakdown.texts(request, involved)
    trees = [node for host in sorted(newest) for node in trees_of(host, now, texts)]
    lines = page_rows(_SESSIONS, involved, request.statement_href)
    caption = f"Sessions at {time_window.shown(end)} UTC"
    table = PageTable("sessions", caption, _SESSIONS, lines)
    cut = sum(row["wait_class"] == "Lock" and not is_in_tree(row) for row in now)
    if cut:
        notes = [f"Others that waited for locks: {cut}. {_LOOKED_UP}"]
    else:
        notes = [] if trees else ["No session waited for another one then."]
    title = title or f"At {time_window.shown(end)} UTC"
    return PageSection(title, notes, "sampled", table=table if lines else None, tree=trees)


def trees_of(
    host: str, rows: Sequence[LiveRow], texts: Mapping[tuple[str, int], str]
) -> list[TreeNode]:
    """A tree for each session of a server that blocks others and waits for none.

    texts: of statements, by server and identifier. In a deadlock all wait: one of them becomes the
    root, and those that were shown are not again.
    """
    sessions = {row["process"]: row for row in rows if row["host"] == host}
    waiters: dict[int, list[int]] = {}
    for pid, row in sessions.items():
        for blocker in row["waits_for"] or []:
            waiters.setdefault(blocker, []).append(pid)
    shown: set[int] = set()

    def node(pid: int) -> TreeNode:
        shown.add(pid)
        below = [one for one in sorted(waiters.get(pid, [])) if one not in shown]
        words, about = _words(host, pid, sessions.get(pid), texts)
        found = TreeNode(words, about)
        for one in below:
            if one not in shown:
                found.waiters.append(node(one))
        return found

    roots = [pid for pid in sorted(waiters) if not (sessions.get(pid, {}).get("waits_for"))]
    found = [node(pid) for pid in roots]
    found += [node(pid) for pid in sorted(waiters) if pid not in shown]
    return found


def _words(
    host: str, pid: int, row: LiveRow | None, texts: Mapping[tuple[str, int], str]
) -> tuple[str, str]:
    if pid == 0:
        return f"{host}: a prepared transaction", "it holds locks, but has no session"
    if row is None:
        return f"{host}: process {pid}", "it is not in the samples"
    who = row["user_role"] or "nobody"
    where = f" in {row['base']}" if row["base"] else ""
    waits = f", waits for {row['wait_class']} {row['wait_event']}" if row["wait_event"] else ""
    program = f", {row['program']}" if row["program"] else ""
    text = texts.get((host, row["statement"]), "")
    shown = f": {shorten(text, _LONGEST_TEXT, placeholder=' …')}" if text else ""
    statement = f", statement {row['statement']}{shown}" if row["statement"] else ""
    open_us = row["open_us"]
    since = f", transaction open for {numbers.duration(open_us)}" if open_us is not None else ""
    about = f"{row['condition'] or 'no state'}{since}{waits}{statement}"
    return f"{host}: process {pid}, {who}{where}{program}", about
