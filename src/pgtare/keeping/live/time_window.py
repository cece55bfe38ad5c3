"""The window of time that a page shows, the rows that it reads, and how its charts divide it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgtare.errors import UsageError
from pgtare.keeping.live.spool_views import Grain

US = 1_000_000
DAY_US = 86_400 * US
#: Windows that end with the newest row, by their names in addresses, s.
LAST_S = {
    "15m": 900,
    "1h": 3600,
    "2h": 7200,
    "6h": 21_600,
    "24h": 86_400,
    "2d": 172_800,
    "7d": 604_800,
    "30d": 2_592_000,
}
DEFAULT = "15m"
#: Longer windows read minutes, and longer ones still hours, s.
MINUTES_FROM_S, HOURS_FROM_S = 7200, 172_800
#: Buckets of time of a chart, in s; the first that gives few enough of them is taken.
_STEPS_S = (
    *(10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600),
    *(7200, 10_800, 21_600, 43_200, 86_400, 604_800),
)
_MOST_BUCKETS = 100
_WIDTH_S = {"tick": 1, "minute": 60, "hour": 3600}
_LONGEST_S = 400 * 86_400
#: Years that an address may name. Links lead some hundred days further, and no calendar ends there.
_YEARS = range(1970, 3000)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?Z?")


@dataclass(frozen=True)
class TimeWindow:
    """Times after `after_us` and up to `to_us`, µs since 1970. last: its name if it moves on."""

    after_us: int
    to_us: int
    grain: Grain
    last: str | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Its ends."""
        return self.after_us, self.to_us

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.to_us - self.after_us) / US

    def step_us(self, finest_s: int = 10) -> int:
        """The length of a chart's buckets; at least `finest_s`, which rows have anyway."""
        least = max(finest_s, _WIDTH_S[self.grain])
        fitting = (
            step for step in _STEPS_S if step >= least and self.seconds / step <= _MOST_BUCKETS
        )
        return next(fitting, _STEPS_S[-1]) * US

    def before(self) -> TimeWindow:
        """The window of the same length that ends where this one begins."""
        length = self.to_us - self.after_us
        return replace(self, after_us=self.after_us - length, to_us=self.after_us, last=None)

    def address(self, suffix: str = "") -> dict[str, str]:
        """The words of an address that name it."""
        if self.last is not None:
            return {f"last{suffix}": self.last}
        return {f"from{suffix}": iso(self.after_us), f"to{suffix}": iso(self.to_us)}

    def shifted(self, share: float) -> TimeWindow:
        """The window later by a share of its length, earlier if it is negative.

        It does not move on with new rows.
        """
        by = round((self.to_us - self.after_us) * share)
        return aligned(self.after_us + by, self.to_us + by, self.grain)

    def widened(self) -> TimeWindow:
        """The window of twice its length with the same middle."""
        by = (self.to_us - self.after_us) // 2
        return aligned(self.after_us - by, self.to_us + by, self.grain)

    def words(self) -> str:
        """As a reader sees it."""
        start, end = shown(self.after_us), shown(self.to_us)
        if start[:10] == end[:10]:
            end = end[11:]
        return f"{start} to {end} UTC"


def iso(us: int) -> str:
    """A time in an address: UTC, whole seconds."""
    return f"{datetime.fromtimestamp(us // US, UTC):%Y-%m-%dT%H:%M:%S}"


def shown(us: int | None) -> str:
    """A time for a reader, in UTC."""
    return "" if us is None else iso(us).replace("T", " ")


def parse_time(text: str, name: str) -> int:
    """µs since 1970 of a time in an address. Raises UsageError."""
    found = _TIME.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
        if moment.year not in _YEARS:
            raise ValueError
    except ValueError as ex:
        raise UsageError(
            f"{name} is not a time: write it in UTC, as in 2026-11-02T14:00:00"
        ) from ex
    return int(moment.timestamp()) * US


def aligned(after_us: int, to_us: int, at_least: Grain = "tick") -> TimeWindow:
    """A window with its grain, and with ends on whole seconds, minutes or hours."""
    length_s = (to_us - after_us) / US
    grain: Grain = "tick"
    if length_s > HOURS_FROM_S or at_least == "hour":
        grain = "hour"
    elif length_s > MINUTES_FROM_S or at_least == "minute":
        grain = "minute"
    width = _WIDTH_S[grain] * US
    return TimeWindow(after_us // width * width, -(-to_us // width) * width, grain)


def window_of(
    address: Mapping[str, str], newest_us: int, spans: Mapping[str, list[int]]
) -> TimeWindow:
    """The window that an address names; the last 15 minutes if it names none.

    newest_us: where windows end that move on. spans: first and last time of each table, of which
    the finest are kept for a shorter time. Raises UsageError.
    """
    start, end = address.get("from"), address.get("to")
    last = address.get("last", DEFAULT)
    if bool(start) != bool(end):
        raise UsageError("give both ends of the window: from and to")
    if start and end:
        after_us, to_us = parse_time(start, "from"), parse_time(end, "to")
        if not 0 < to_us - after_us <= _LONGEST_S * US:
            raise UsageError("the window must end after it begins, and be at most 400 days long")
    else:
        if last not in LAST_S:
            raise UsageError(f"last is one of {', '.join(LAST_S)}")
        after_us, to_us = newest_us - LAST_S[last] * US, newest_us
    found = aligned(after_us, to_us, _kept(after_us, spans))
    return found if start else replace(found, last=last)


def _kept(after_us: int, spans: Mapping[str, list[int]]) -> Grain:
    """The finest grain of which rows are still there at a time."""
    grains: tuple[tuple[Grain, str], ...] = (("tick", "ticks"), ("minute", "ticks_1m"))
    coarser = {"ticks": "ticks_1m", "ticks_1m": "ticks_1h"}
    for grain, table in grains:
        rolled = spans.get(coarser[table])
        gone = table in spans and rolled is not None and rolled[0] < spans[table][0] - 3600 * US
        if not gone or after_us >= spans[table][0]:
            return grain
    return "hour"
