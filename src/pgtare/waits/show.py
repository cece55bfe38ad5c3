"""Profiles, sessions, statements and histograms as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.report import numbers
from pgtare.waits.model import Counters, Event, Session
from pgtare.waits.rates import Profile, StatementRate
from pgtare.waits.reader import Bucket

_BAR = 24
_TEXT = 60


def length(ms: float | None) -> str:
    """A length of time given in ms."""
    return numbers.duration(None if ms is None else ms * 1000)


def profile_view(profile: Profile, limit: int = 20) -> RenderableType:
    """Time by event and by statement."""
    head = f"{profile.active:.2f} sessions active on average over {profile.seconds:.1f} s"
    if profile.on_cpu is not None:
        head += f", {profile.on_cpu:.2f} of them on CPU (sampled)"
    parts: list[RenderableType] = [Text(head), _events(profile, limit)]
    if profile.statements:
        parts.append(_statements(profile.statements[:limit]))
    return Group(*parts)


def _table(*columns: str, text: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        left = name in text
        table.add_column(
            name, justify="left" if left else "right", overflow="fold" if left else "ellipsis",
            no_wrap=not left,
        )  # fmt: skip
    return table


def _events(profile: Profile, limit: int) -> Table:
    table = _table("event", "active", "share", "", "waits/s", "mean", text=("event", ""))
    if profile.on_cpu is not None:
        share = profile.on_cpu / profile.active if profile.active else 0.0
        table.add_row(
            "CPU", f"{profile.on_cpu:.2f}", numbers.percent(100 * share), bar(share), "", ""
        )
    for rate in profile.events[:limit]:
        table.add_row(
            Text(rate.event.label, style="dim" if rate.event.idle else ""),
            f"{rate.active:.2f}",
            "idle" if rate.event.idle else numbers.percent(100 * rate.share),
            bar(rate.share),
            f"{rate.waits_per_s:,.0f}",
            length(rate.mean_ms),
        )
    return table


def _statements(rates: Sequence[StatementRate]) -> Table:
    table = _table("statement", "active", "share", "CPU", "waits for",
                   text=("statement", "waits for"))  # fmt: skip
    for rate in rates:
        table.add_row(
            Text(one_line(rate.text, rate.statement.queryid)),
            f"{rate.active:.2f}",
            numbers.percent(100 * rate.share),
            f"{rate.on_cpu:.2f}",
            Text(", ".join(f"{event.label} {active:.2f}" for event, active in rate.events[:3])),
        )
    return table


def totals_view(totals: Mapping[int, Mapping[Event, Counters]], texts: Mapping[int, str]) -> Table:
    """Statements by the time they waited since the reset, with their main events."""
    table = _table("statement", "waited", "waits", "waits for", text=("statement", "waits for"))
    for queryid, events in totals.items():
        summed = sum(events.values(), Counters())
        main = sorted(events.items(), key=lambda item: -item[1].spent_ms)[:3]
        table.add_row(
            Text(one_line(texts.get(queryid), queryid)),
            length(summed.spent_ms),
            numbers.count(summed.waits),
            Text(", ".join(f"{event.label} {length(c.spent_ms)}" for event, c in main)),
        )
    return table


def sessions_view(
    sessions: Iterable[Session], events: Mapping[int, Mapping[Event, Counters]]
) -> Table:
    """Sessions by the time they waited, and what each waits for now."""
    columns = ("pid", "who", "waited", "most for", "now", "for", "blocked by", "capture")
    table = _table(*columns, text=("who", "most for", "now", "blocked by", "capture"))
    for session in sessions:
        own = events.get(session.pid, {})
        most = max(own.items(), key=lambda item: item[1].spent_ms, default=None)
        table.add_row(
            str(session.pid),
            Text(who(session)),
            length(sum(c.spent_ms for c in own.values())),
            Text(most[0].label if most else ""),
            Text(session.wait.label if session.wait else (session.state or "")),
            length(session.wait_ms) if session.wait_ms is not None else "",
            ", ".join(map(str, session.blocked_by)),
            session.capture,
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
    head = (
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
            length(bucket.from_ms), length(bucket.to_ms) if bucket.to_ms else "∞",
            numbers.count(n), numbers.percent(100 * n / total), bar(n / most),
        )  # fmt: skip
    return Group(Text(head), table)


def bar(share: float) -> str:
    """A bar of at most _BAR cells, in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    partial = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return "█" * (eighths // 8) + partial


def one_line(text: str | None, queryid: int) -> str:
    """A statement in one line, cut where it is long; its identifier where the text is not known."""
    if text is None:
        return f"query identifier {queryid}" if queryid else "(no query identifier)"
    short = " ".join(text.split())
    return short if len(short) <= _TEXT else short[: _TEXT - 1] + "…"
