"""What made up the active time: by one dimension, filtered by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgtare.errors import UsageError
from pgtare.keeping.live import live_charts
from pgtare.keeping.live.live_charts import ChartShade
from pgtare.keeping.live.page_parts import (
    LiveChart,
    PageColumn,
    PageLink,
    PageRow,
    PageSection,
    PageTable,
    ViewPage,
    address,
)
from pgtare.keeping.live.row_sources import DIMENSION_WORDS, RowSource
from pgtare.keeping.live.spool_views import Grain
from pgtare.keeping.live.time_window import DAY_US
from pgtare.keeping.live.views.view_request import MOST, ViewRequest
from pgtare.keeping.live.worker_process import LiveRow

_FIGURES = (
    PageColumn("aas", "AAS", "aas"),
    PageColumn("share", "share", "share"),
    PageColumn("active_ns", "active", "ns"),
    PageColumn("calls", "waits", "count"),
    PageColumn("mean_ns", "mean wait", "ns"),
    PageColumn("max_ns", "longest", "ns"),
    PageColumn("active_ns_per_transaction", "per transaction", "ns"),
)
_SAMPLED_FIGURES = tuple(one for one in _FIGURES if one.name not in ("calls", "mean_ns", "max_ns"))
_KINDS = {"rest": "(rest: statements without rows of their own)", "outside": "(outside statements)"}
_MOST_TEXTS = 50_000
#: A total is the sum over all servers, of which a store may have many.
_MOST_SERVERS = 1_000_000
#: A chart over many hours reads hours if there are more rows of minutes than this.
_MOST_CHARTED = 8_000_000
#: Charts of statements show events instead: statements are too many.
_CHARTED = {"query_id": "event"}


async def view(request: ViewRequest) -> ViewPage:
    """The view."""
    by = dimension(request)
    source = request.source(by)
    active = await section(request, by, source, chart=True)
    filters = [
        PageLink(f"{DIMENSION_WORDS.get(name, name)}: {value} ✕", request.same(**{name: None}))
        for name, value in request.only.items()
    ]
    chosen = [PageSection("Filtered by", links=filters)] if filters else []
    return ViewPage(
        f"What sessions waited for: by {DIMENSION_WORDS[by]}",
        [dimension_links(request, by), *chosen, active, rows_links(request)],
        request.alarms(source),
    )


def dimension(request: ViewRequest) -> str:
    """What the address divides by; events if it does not say. Raises UsageError."""
    by = request.words.get("by", "event")
    if by not in DIMENSION_WORDS:
        raise UsageError(f"by is one of {', '.join(DIMENSION_WORDS)}")
    return by


def dimension_links(request: ViewRequest, by: str) -> PageSection:
    """Links to divide by something else, each with what its rows are worth."""
    links = [
        PageLink(words, request.same(by=name), name == by, request.source(name).quality)
        for name, words in DIMENSION_WORDS.items()
    ]
    return PageSection("By", links=links)


def rows_links(request: ViewRequest) -> PageSection:
    """Links to choose between what was counted and samples."""
    only_samples = bool(request.words.get("source"))
    links = [
        PageLink("counted if possible", request.same(source=None), not only_samples),
        PageLink("samples only", request.same(source="sampled"), only_samples),
    ]
    return PageSection("Rows", links=links)


async def section(
    request: ViewRequest,
    by: str,
    source: RowSource,
    title: str = "Active time",
    *,
    chart: bool = False,
) -> PageSection:
    """The table of one dimension, and its chart if that is wanted."""
    part = await request.within(source.rows)
    drawn, charted = await _chart(request, by, source) if chart else (None, request)
    rows, total = await members(part, by, source)
    quality = min((row["worst_quality"] for row in rows), default=source.quality)
    table = await _table(part, by, source, rows, total)
    notes = [source.note, *cut_notes(request, source, part, charted)]
    return PageSection(title, notes, quality, drawn, table)


async def series(
    part: ViewRequest, dimension: str, source: RowSource, grain: Grain, step_us: int
) -> list[LiveRow]:
    """What a chart of one dimension shows. part: the request for the time that has rows."""
    return await part.rows(
        "series",
        identifiers={"rows": source.rows, "dimension": dimension},
        only=part.only,
        grain=grain,
        step_us=step_us,
        source=source.ticks,
    )


def cut_notes(
    request: ViewRequest, source: RowSource, part: ViewRequest, charted: ViewRequest
) -> list[str]:
    """What a reader must know if only a part of the window has rows, for a table or a chart."""
    found = [] if part is request else [source.cut_note]
    if charted is not request:
        found.append("The chart is shaded where it lacks rows.")
    return found


def cut_shades(request: ViewRequest, part: ViewRequest) -> list[ChartShade]:
    """The time that has no rows, if there is some, to be marked in a chart of the window."""
    if part is request:
        return []
    whole, kept = request.window, part.window
    ends = (whole.after_us, kept.after_us), (kept.to_us, whole.to_us)
    words = "no rows of this time are kept"
    return [ChartShade(begin, end, "c0", words) for begin, end in ends if begin < end]


async def members(
    request: ViewRequest, by: str, source: RowSource, most: int = MOST
) -> tuple[list[LiveRow], LiveRow]:
    """The largest members of a dimension, and the sum of all."""

    async def ask(name: str, dimension: str, most: int) -> list[LiveRow]:
        return await request.rows(
            name,
            identifiers={"rows": source.rows, "dimension": dimension},
            only=request.only,
            source=source.ticks,
            most=most,
        )

    totals = rows = await ask("statement_breakdown" if by == "query_id" else "breakdown", by, most)
    if len(rows) >= most:
        totals = await ask("breakdown", "server", _MOST_SERVERS)
    names = ("aas", "spent_ns", "waits_ended", "waited_ns")
    total = {name: sum(row[name] for row in totals) for name in names}
    total["most_ns"] = max((row["most_ns"] or 0 for row in totals), default=0) or None
    return rows, total


async def transactions(request: ViewRequest, ticks: str) -> tuple[int, float]:
    """Transactions in the window of the servers that these ticks are of, and how many a second.

    They are read less often than waits, so in a short window they cover less time.
    """
    part = await request.within("activity")
    rows = await part.rows("transactions", only=request.of_server)
    shown = set(request.watched(ticks))
    watched = {
        row["host"]: row["watched_ns"] for row in part.coverage if row["origin"] == "activity"
    }
    counts = {
        row["host"]: row["committed"] + row["rolled_back"] for row in rows if row["host"] in shown
    }
    each_s = sum(count / watched[host] * 1e9 for host, count in counts.items() if watched.get(host))
    return sum(counts.values()), each_s


def per_transaction_ns(aas: float, transactions_s: float) -> float | None:
    """Active time for each transaction, from rates: the two are not watched for the same time."""
    return aas / transactions_s * 1e9 if transactions_s else None


async def texts(request: ViewRequest, rows: Sequence[LiveRow]) -> Mapping[tuple[str, int], str]:
    """Texts of statements by server and identifier, as far as they are known."""
    known = request.worker.texts
    if len(known) > _MOST_TEXTS:
        known.clear()
    wanted = {
        (row.get("host", request.server), row["statement"]) for row in rows if row["statement"]
    }
    unknown = sorted({statement for host, statement in wanted if (host, statement) not in known})
    if unknown:
        # a statement may have been seen counting at another time than sampling
        window = replace(request.window, after_us=request.window.after_us - DAY_US)
        found = await request.rows(
            "statement_texts",
            identifiers={"rows": "statements"},
            only=request.of_server,
            window=window,
            statements=unknown,
        )
        known.update({(row["host"], row["statement"]): row["words"] for row in found})
    return known


def member_link(request: ViewRequest, by: str, value: str) -> str:
    """Where a member of a dimension leads: events to their view, others to a filter."""
    if by == "event":
        source = request.words.get("source")
        return request.href("/event", **{**request.only, "event": value, "source": source})
    if by in request.only:
        return request.same(**{by: None})
    return address("/breakdown", {**_kept(request), by: value, "by": "event"})


def _kept(request: ViewRequest) -> dict[str, object]:
    source = request.words.get("source")
    return {**request.window.address(), **request.only, "source": source}


async def _table(
    request: ViewRequest, by: str, source: RowSource, rows: list[LiveRow], total: LiveRow
) -> PageTable:
    count, each_s = await transactions(request, source.ticks)
    figures = _FIGURES if source.exact else _SAMPLED_FIGURES
    several = by == "query_id" and len({row["host"] for row in rows}) > 1
    columns = [PageColumn(by, DIMENSION_WORDS[by])]
    if by == "query_id":
        columns.append(PageColumn("text", "text"))
    if several:
        columns.append(PageColumn("server", "server"))
    known = await texts(request, rows) if by == "query_id" else {}
    lines = []
    for row in rows:
        values = figures_of(row, total["aas"], each_s)
        shown = [values[one.name] for one in figures]
        if by != "query_id":
            name = row["member"] or "(none)"
            href = member_link(request, by, row["member"]) if row["member"] else None
            lines.append(PageRow([name, *shown], href))
            continue
        lines.append(_statement_row(request, row, known, several, shown))
    values = figures_of(total, total["aas"], each_s)
    blank = [""] * (len(columns) - 1)
    last = PageRow(["all", *blank, *(values[one.name] for one in figures)])
    caption = f"By {DIMENSION_WORDS[by]}, {request.window.words()}"
    if len(rows) >= MOST:
        caption += f"; the largest {MOST}"
    caption += (
        f". {count:,} transactions." if count else ". The number of transactions is not known."
    )
    return PageTable(f"by_{by}", caption, [*columns, *figures], lines, last if rows else None)


def _statement_row(
    request: ViewRequest,
    row: LiveRow,
    known: Mapping[tuple[str, int], str],
    several: bool,
    shown: list[object],
) -> PageRow:
    where = [row["host"]] if several else []
    if row["sort"] != "statement":
        words = _KINDS.get(row["sort"], row["sort"])
        href = address("/breakdown", {**_kept(request), "kind": row["sort"], "by": "event"})
        return PageRow([row["sort"], words, *where, *shown], href)
    text = known.get((row["host"], row["statement"]), "")
    return PageRow([str(row["statement"]), text, *where, *shown], request.statement_href(row))


def figures_of(row: LiveRow, all_aas: float, transactions_s: float) -> dict[str, object]:
    """Figures of a member by the names of their columns."""
    ended = row["waits_ended"]
    return {
        "aas": row["aas"],
        "share": row["aas"] / all_aas if all_aas else None,
        "active_ns": row["spent_ns"],
        "calls": ended,
        "mean_ns": row["waited_ns"] / ended if ended else None,
        "max_ns": row["most_ns"],
        "active_ns_per_transaction": per_transaction_ns(row["aas"], transactions_s),
    }


async def _chart(request: ViewRequest, by: str, source: RowSource) -> tuple[LiveChart, ViewRequest]:
    """The chart, and the request for the time that has rows for it."""
    charted = _CHARTED.get(by, by)
    grain, step_us = request.buckets(source, _MOST_CHARTED)
    part = await request.within(source.rows, grain)
    rows = await series(part, charted, source, grain, step_us)
    shades = cut_shades(request, part)
    chart = live_charts.activity_chart(
        "activity", rows, request.window, step_us, None, charted == "type", shades
    )
    return chart, part
