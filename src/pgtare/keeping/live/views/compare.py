"""Two times side by side: what grew, as active sessions and for each transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgtare.keeping.live import live_charts, time_window
from pgtare.keeping.live.page_parts import (
    PageColumn,
    PageLink,
    PageRow,
    PageSection,
    PageTable,
    ViewPage,
)
from pgtare.keeping.live.row_sources import DIMENSION_WORDS
from pgtare.keeping.live.time_window import TimeWindow
from pgtare.keeping.live.views import breakdown
from pgtare.keeping.live.views.view_request import MOST, ViewRequest
from pgtare.keeping.live.worker_process import LiveRow

_FIGURES = (
    PageColumn("aas_before", "AAS before", "aas"),
    PageColumn("aas_after", "AAS after", "aas"),
    PageColumn("aas_change", "change", "change"),
    PageColumn("per_transaction_before_ns", "per transaction before", "ns"),
    PageColumn("per_transaction_after_ns", "after", "ns"),
    PageColumn("per_transaction_change_ns", "change", "ns_change"),
)
_CHARTED = 12
#: Members of each window that are compared; a table has the largest changes of all.
_MOST_COMPARED = 20_000
#: Active sessions, None in a window in which nothing was watched, and transactions a second.
_Sum = tuple[float | None, float]
_UNSEEN: _Sum = (None, 0.0)
#: Earlier windows to compare with, by how long before they are, s; None: they end where it begins.
_EARLIER: dict[str, int | None] = {
    "just before": None,
    "an hour before": 3600,
    "a day before": 86_400,
    "a week before": 7 * 86_400,
}


async def view(request: ViewRequest) -> ViewPage:
    """The view: the window of the page is the later one, `from2` and `to2` are the earlier one."""
    by = breakdown.dimension(request)
    after, before = request.window, earlier(request)
    source = request.source(by)
    keys, watched = [], []
    sums: list[_Sum] = []
    parts = [replace(request, window=window) for window in (before, after)]
    for number, whole in enumerate(parts):
        whole.coverage = await whole.rows("coverage")
        part = parts[number] = await whole.within(source.rows)
        rows, total = await breakdown.members(part, by, source, _MOST_COMPARED)
        keys.append({_key(row, by): row for row in rows})
        watched.append(set(part.watched(source.ticks)))
        each_s = (await breakdown.transactions(part, source.ticks))[1]
        sums.append((total["aas"] if watched[-1] else None, each_s))
    found = {}
    for key in {**keys[0], **keys[1]}:
        server = {"query_id": key[0], "server": key[1]}.get(by)
        found[key] = _values(
            [
                (one[key]["aas"] if key in one else 0.0, each_s)
                if _is_in(server, seen)
                else _UNSEEN
                for one, seen, (_, each_s) in zip(keys, watched, sums, strict=True)
            ]
        )
    largest = sorted(found, key=lambda key: -abs(found[key][2] or 0.0))[:MOST]
    known: Mapping[tuple[str, int], str] = {}
    if by == "query_id":
        for part, of_part in zip(parts, keys, strict=True):
            wanted = [of_part[key] for key in largest if key in of_part]
            known = await breakdown.texts(part, wanted)
    lines, changes = [], list[tuple[str, float]]()
    for key in largest:
        name, href, text = _name(request, by, key, known)
        words = [name, text] if by == "query_id" else [name]
        lines.append(PageRow([*words, *found[key]], href))
        label = text if key[1] == "statement" and text else f"{name} {text}".strip()
        changes.append((label, found[key][2] or 0.0))
    columns = [PageColumn(by, DIMENSION_WORDS[by])]
    columns += [PageColumn("text", "text")] if by == "query_id" else []
    caption = f"Before: {before.words()}. After: {after.words()}."
    if len(found) > MOST:
        caption += f" The {MOST} largest changes."
    table = PageTable(
        "compare",
        caption,
        [*columns, *_FIGURES],
        lines,
        PageRow(["all", *[""] * (len(columns) - 1), *_values(sums)]) if lines else None,
    )
    chart = None
    if drawn := [one for one in changes[:_CHARTED] if one[1]]:
        about = "What grew and what shrank; the table has the figures."
        names, values = zip(*drawn, strict=True)
        chart = live_charts.bar_chart(names, values, "change of active sessions", about)
    qualities = (row["worst_quality"] for rows in keys for row in rows.values())
    quality = min(qualities, default=source.quality)
    is_cut = [part.window for part in parts] != [before, after]
    kept = [source.cut_note] if is_cut else []
    notes = (source.note, *kept, caption, *_unwatched(*watched))
    return ViewPage(
        "Compare two times",
        [
            breakdown.dimension_links(request, by),
            _earlier_links(request, before),
            PageSection("What changed", notes, quality, chart, table),
        ],
        request.alarms(source),
    )


def earlier(request: ViewRequest) -> TimeWindow:
    """The earlier window; without one in the address, the one just before."""
    words = {name: request.words.get(f"{name}2", "") for name in ("from", "to")}
    if not any(words.values()):
        return request.window.before()
    return time_window.window_of(words, request.newest_us, request.spans)


def _earlier_links(request: ViewRequest, before: TimeWindow) -> PageSection:
    """Links to compare with usual windows."""
    links = []
    for words, by_s in _EARLIER.items():
        window = request.window
        window = window.before() if by_s is None else window.shifted(-by_s / window.seconds)
        named = {} if by_s is None else window.address("2")
        ends = {"from2": None, "to2": None, **named}
        links.append(PageLink(words, request.same(**ends), window.span == before.span))
    return PageSection("Compared with", links=links)


def _key(row: LiveRow, by: str) -> tuple[str, str, int]:
    if by == "query_id":
        return row["host"], row["sort"], row["statement"]
    return "", row["member"], 0


def _name(
    request: ViewRequest,
    by: str,
    key: tuple[str, str, int],
    known: Mapping[tuple[str, int], str],
) -> tuple[str, str | None, str]:
    host, member, statement = key
    if by != "query_id":
        href = breakdown.member_link(request, by, member) if member else None
        return member or "(none)", href, ""
    if member != "statement":
        return f"({member})", None, f"on {host}"
    href = request.href("/statement", server=host, query_id=statement)
    return str(statement), href, known.get((host, statement), "")


def _is_in(server: str | None, watched: set[str]) -> bool:
    """Whether a server was watched; None: whether any was."""
    return server in watched if server is not None else bool(watched)


def _unwatched(before: set[str], after: set[str]) -> list[str]:
    """What a reader must know of servers that were not watched in both windows."""
    notes = []
    for name, seen, other in (("earlier", before, after), ("later", after, before)):
        if not seen:
            notes.append(f"Nothing was watched in the {name} window: its columns are blank.")
        elif other - seen:
            notes.append(
                f"Not watched in the {name} window, and not in its figures: "
                f"{', '.join(sorted(other - seen))}."
            )
    return notes


def _values(sums: Sequence[_Sum]) -> list[float | None]:
    """Active sessions before, after, and their change; then the same for each transaction."""
    aas = [one for one, _ in sums]
    each = [
        None if one is None else breakdown.per_transaction_ns(one, each_s) for one, each_s in sums
    ]
    return [*aas, _change(aas), *each, _change(each)]


def _change(values: Sequence[float | None]) -> float | None:
    before, after = values
    return None if before is None or after is None else after - before
