"""Profiles, sessions, statements and histograms as a terminal shows them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.terminal_text import plain
from pgtare.postgres.backend_types import blockers
from pgtare.postgres.wait_counters.model import Counters, Event, Session
from pgtare.postgres.wait_counters.rates import StatementRate, WaitsProfile
from pgtare.postgres.wait_counters.reader import Bucket

_BAR = 24
#: Less of a session is 0.00.
_LEAST = 0.005
_TEXT = 60
#: Most rows of a table that a terminal shows; --json lists all.
_ROWS, _SESSIONS = 15, 50


def length(ms: float | None) -> str:
    """A length of time given in ms; from 1 ms up in ms, from 10 s up in s."""
    if ms is not None and 1 <= ms < 10_000:
        return f"{numbers.signed_plain(ms)} ms"
    return numbers.duration(None if ms is None else ms * 1000)


def profile_view(profile: WaitsProfile) -> RenderableType:
    """Time by event and by statement."""
    parts: list[RenderableType] = [Text(line) for line in _heading(profile)]
    parts += [Text(plain(f"note: {note}")) for note in profile.notes]
    parts.append(_events(profile))
    if profile.statements:
        parts.append(_statements(profile))
    return Group(*parts)


def _heading(profile: WaitsProfile) -> Iterator[str]:
    """What is shown, over which span and of how many sessions; then what these did."""
    whose = "the sessions" if profile.sessions is None else f"{profile.sessions:.2f} sessions"
    yield f"Where the time of {whose} went, on average over {profile.duration_s:.1f} s:"
    did = f"{profile.active:.2f} sessions active"
    if profile.on_cpu is not None:
        did += f" ({profile.on_cpu:.2f} of these on CPU, {profile.on_cpu_by})"
    if profile.sessions is not None:
        did += f", {profile.idle:.2f} idle"
    if profile.run_queue is not None:
        did += _queued(profile.run_queue, profile.active)
    yield did


def _queued(queue: float, active: float) -> str:
    """Sessions that waited for a processor, also at a wait's end: an idle one ends only then."""
    if queue <= active:
        return f"; {queue:.2f} waited for a processor"
    return (
        f"; waited for a processor: up to {active:.2f} of the active ones, and at least "
        f"{queue - active:.2f} of the idle ones"
    )


def _table(*columns: str, text: Sequence[str] = ()) -> Table:
    """A table whose text makes room for its numbers if a terminal is narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        left = name in text
        table.add_column(
            _cell(name),
            justify="left" if left else "right",
            overflow="ellipsis",
            no_wrap=not left,
        )
    return table


def percentiles(histogram: Sequence[int]) -> dict[int, int]:
    """For each of 50, 95 and 99 % the bucket, from 0, that holds the wait of that rank."""
    total = sum(histogram)
    sums = list(itertools.accumulate(histogram))
    return {p: next(i for i, n in enumerate(sums) if 100 * n >= p * total) for p in (50, 95, 99)}


def _cell(text: str, style: str = "") -> Text:
    """Text in one line, cut if there is no room."""
    return Text(plain(text), style=style, no_wrap=True, overflow="ellipsis")


def _events(profile: WaitsProfile) -> Table:
    table = _table("event", "active", "share", "", "waits/s", "mean", text=("event", ""))
    if profile.on_cpu is not None:
        known = profile.active and not profile.hides_much
        share = profile.on_cpu / profile.active if known else None
        table.add_row(
            "CPU", f"{profile.on_cpu:.2f}", _percent(share), _cell(bar(share or 0.0)), "", ""
        )
    # what rounds to nothing is worth no row, but an idle event was requested
    shown = [rate for rate in profile.events if rate.event.idle or rate.active >= 0.005]
    for rate in shown[:_ROWS]:
        table.add_row(
            _cell(rate.event.label, style="dim" if rate.event.idle else ""),
            f"{rate.active:.2f}",
            "idle" if rate.event.idle else _percent(rate.share),
            _cell(bar(rate.share or 0.0)),
            f"{rate.waits_per_s:,.0f}",
            length(rate.mean_ms),
        )
    return table


def _percent(share: float | None) -> str:
    return numbers.percent(None if share is None else 100 * share)


def _statements(profile: WaitsProfile) -> Table:
    table = _table(
        "statement",
        "active",
        "share",
        "CPU by samples",
        "waits for",
        text=("statement", "waits for"),
    )
    for rate in profile.statements[:_ROWS]:
        table.add_row(
            _cell(one_line(rate.text, rate.statement.query_id)),
            f"{rate.active:.2f}",
            _percent(rate.share),
            "" if profile.on_cpu is None else cpu_by_samples(rate),
            _cell(", ".join(f"{one.event.label} {one.active:.2f}" for one in rate.events[:3])),
        )
    others = profile.statements[_ROWS:]
    rest = [
        (f"{len(others):,} more", sum(rate.active for rate in others)),
        ("waits of no statement", profile.waits_elsewhere),
        ("CPU of no statement, or of too few samples", profile.cpu_elsewhere or 0.0),
    ]
    known = profile.active and not profile.hides_much
    for name, active in rest:
        if abs(active) >= _LEAST:
            share = active / profile.active if known else None
            table.add_row(name, f"{active:.2f}", _percent(share), "", "")
    return table


def cpu_by_samples(rate: StatementRate) -> str:
    """The CPU time of a statement with its interval and samples, or that these are too few."""
    if rate.on_cpu is None or rate.on_cpu_lo is None or rate.on_cpu_hi is None:
        return f"too few samples ({rate.cpu_samples})"
    interval = f"[{rate.on_cpu_lo:.2f}, {rate.on_cpu_hi:.2f}]"
    return f"{rate.on_cpu:.2f} {interval}, {rate.cpu_samples} samples"


def totals_view(totals: Mapping[int, Mapping[Event, Counters]], texts: Mapping[int, str]) -> Table:
    """Statements by the time they waited since the reset, with their main events."""
    table = _table("statement", "waited", "waits", "waits for", text=("statement", "waits for"))
    for query_id, events in itertools.islice(totals.items(), _ROWS):
        summed = sum(events.values(), Counters())
        main = sorted(events.items(), key=lambda item: -item[1].spent_ms)[:3]
        table.add_row(
            _cell(one_line(texts.get(query_id), query_id)),
            length(summed.spent_ms),
            numbers.count(summed.waits),
            _cell(", ".join(f"{event.label} {length(c.spent_ms)}" for event, c in main)),
        )
    return table


def sessions_view(
    sessions: Iterable[Session], events: Mapping[int, Mapping[Event, Counters]]
) -> Table:
    """Sessions by the time they waited, and what each waits for now."""
    columns = ("pid", "session", "waited", "most for", "now", "for", "blocked by", "capture")
    table = _table(*columns, text=("session", "most for", "now", "blocked by", "capture"))
    for session in itertools.islice(sessions, _SESSIONS):
        own = events.get(session.pid, {})
        most = max(own.items(), key=lambda item: item[1].spent_ms, default=None)
        table.add_row(
            str(session.pid),
            _cell(who(session)),
            length(sum(c.spent_ms for c in own.values())),
            _cell(most[0].label if most else ""),
            _cell(session.wait.label if session.wait else (session.state or "")),
            length(session.wait_ms) if session.wait_ms is not None else "",
            _cell(blockers(session.blocked_by)),
            _cell(session.capture),
        )
    return table


def who(session: Session) -> str:
    """A client session by its user, database and application, another process by its type."""
    if session.backend_type != "client backend":
        return session.backend_type
    name = f"{session.user or '?'}@{session.database or '?'}"
    return f"{name} {session.application}".strip()


def histogram_view(event: Event, counters: Counters, buckets: Sequence[Bucket]) -> RenderableType:
    """The buckets of an event that hold waits, with a bar each."""
    mean = counters.total_ms / counters.waits if counters.waits else None
    head = plain(
        f"{event.label}: {numbers.count(counters.waits)} waits, {length(counters.total_ms)} in "
        f"all, {length(mean)} on average, {length(counters.max_ms)} at most"
    )
    table = _table("from", "to", "waits", "share", "", text=("",))
    most = max(counters.histogram)
    total = sum(counters.histogram)
    used = [i for i, n in enumerate(counters.histogram) if n]
    for i in range(used[0], used[-1] + 1) if used else ():
        n, bucket = counters.histogram[i], buckets[i]
        table.add_row(
            length(bucket.from_ms),
            length(bucket.to_ms) if bucket.to_ms else "∞",
            numbers.count(n),
            numbers.percent(100 * n / total),
            bar(n / most),
        )
    if not used:
        return Text(head)
    ranks = ", ".join(
        f"{p} % of waits under {length(buckets[i].to_ms) if buckets[i].to_ms else '∞'}"
        for p, i in percentiles(counters.histogram).items()
    )
    return Group(Text(head), Text(ranks), table)


def bar(share: float) -> str:
    """A bar of at most _BAR cells, in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    partial = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return "█" * (eighths // 8) + partial


def one_line(text: str | None, query_id: int) -> str:
    """A statement in one line, cut if it is long; its identifier if the text is not known."""
    if text is None:
        return f"query identifier {query_id}" if query_id else "(no query identifier)"
    short = plain(" ".join(text.split()))
    return short if len(short) <= _TEXT else short[: _TEXT - 1] + "…"
