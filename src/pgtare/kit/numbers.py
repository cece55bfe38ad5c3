"""Numbers as a person reads them: digits decided by the interval, units and signs always shown."""

from __future__ import annotations

import math
from datetime import datetime

from pgtare.kit.interval import Interval

MINUS = "\u2212"
#: Beyond this many decimals a number is what arithmetic leaves of nothing.
_MOST_PLACES = 12
NONE = "\u2013"  # printed if there is no number


def decimals(half_width: float | None, estimate: float | None = None) -> int:
    """Decimals worth printing: two significant digits of a half-width led by 1 or 2, else one.

    Without a usable half-width the estimate gets three significant digits. Never more than 3.
    """
    if half_width is not None and math.isfinite(half_width) and half_width > 0:
        exponent = math.floor(math.log10(half_width))
        places = -exponent + (1 if half_width / 10.0**exponent < 3 else 0)
    elif estimate is not None and math.isfinite(estimate) and estimate != 0:
        places = 2 - math.floor(math.log10(abs(estimate)))
    else:
        places = 2
    return min(max(places, 0), 3)


def half_width(interval: Interval) -> float | None:
    """Half the width of an interval, None if an end is missing."""
    if interval.lo is None or interval.hi is None:
        return None
    return (interval.hi - interval.lo) / 2


def signed(value: float | None, places: int) -> str:
    """A difference: +2.93, −0.10, and 0.00 without a sign."""
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{abs(value):,.{places}f}"
    if not text.strip("0.,"):
        return text
    return ("+" if value > 0 else MINUS) + text


def plain(value: float | None, places: int) -> str:
    """The size of a value, without its sign."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{abs(value):,.{places}f}"


def places(interval: Interval) -> int:
    """Decimals for an interval and its estimate: no end but 0 may be shown as 0.

    So an interval that misses 0 never looks as if it began there, nor the other way round.
    """
    found = decimals(half_width(interval), interval.estimate)
    for end in (interval.lo, interval.hi):
        if end is not None and math.isfinite(end) and end != 0 and not round(end, found):
            found = -math.floor(math.log10(abs(end)))
    return apart(interval.lo, interval.hi, found)


def apart(lo: float | None, hi: float | None, places: int) -> int:
    """So many decimals, or as many more as it takes for both ends not to look alike."""
    if lo is None or hi is None or not (lo < hi and math.isfinite(hi - lo)):
        return places
    while places < _MOST_PLACES and round(lo, places) == round(hi, places):
        places += 1
    return places


def estimate(interval: Interval | None) -> str:
    """The signed estimate, with the digits its interval supports."""
    if interval is None:
        return NONE
    return signed(interval.estimate, places(interval))


def size(interval: Interval) -> str:
    """The estimate without a sign, with the digits its interval supports."""
    return plain(interval.estimate, places(interval))


def bounds(interval: Interval | None) -> str:
    """The interval alone: [+2.77, +3.09]."""
    if interval is None or interval.lo is None or interval.hi is None:
        return NONE
    digits = places(interval)
    return f"[{signed(interval.lo, digits)}, {signed(interval.hi, digits)}]"


def with_bounds(interval: Interval, unit: str) -> str:
    """The estimate with its interval: +2.93 µs [+2.77, +3.09]."""
    return f"{estimate(interval)} {unit} {bounds(interval)}"


def plus_minus(interval: Interval | None) -> str:
    """The signed estimate and half of its interval's width: +2.9 ± 0.2."""
    if interval is None or (half := half_width(interval)) is None:
        return NONE
    digits = places(interval)
    return f"{signed(interval.estimate, digits)} ± {plain(half, digits)}"


def bounded(interval: Interval) -> bool:
    """Whether both ends of the interval are known."""
    return interval.lo is not None and interval.hi is not None


def covers_zero(interval: Interval) -> bool:
    """Whether 0 lies in the interval; true if the interval is unknown."""
    return interval.lo is None or interval.hi is None or interval.lo <= 0 <= interval.hi


def duration(us: float | None) -> str:
    """A length of time given in microseconds, in the unit that suits it."""
    if us is None or not math.isfinite(us):
        return NONE
    for unit, scale in (("µs", 1.0), ("ms", 1e3), ("s", 1e6)):
        if abs(us) < 1e4 * scale or unit == "s":
            value = us / scale
            return f"{signed_plain(value)} {unit}"
    raise AssertionError("unreachable")


def signed_plain(value: float) -> str:
    """Three significant digits, at most two decimals, a minus sign only if it is one."""
    text = plain(value, min(decimals(None, value), 2) if value else 0)
    return (MINUS if value < 0 else "") + text


def seconds(value: float) -> str:
    """A span of the trial: 12.3 s, 60 s, 95 min, 5 h."""
    if value >= 4 * 3600:
        return f"{value / 3600:,.0f} h"
    if value >= 600:
        return f"{value / 60:,.0f} min"
    return f"{value:.0f} s" if value >= 100 or value == round(value) else f"{value:.1f} s"


def percent(value: float | None) -> str:
    """A share in percent, two significant digits and no more than two decimals."""
    if value is None or not math.isfinite(value):
        return NONE
    if 99 < value < 100:
        value = math.floor(value * 10) / 10  # nearly all must not read as all
        return f"{value:.1f} %"
    places = 2 if abs(value) < 0.1 else 1 if abs(value) < 10 else 0
    return f"{(MINUS if value < 0 else '')}{plain(value, places)} %"


def chance(p: float) -> str:
    """A probability in percent: 4.1 %, 0.23 %, and less than 0.01 % as such."""
    if p >= 0.1:
        return percent(100 * p)
    return f"{100 * p:.2g} %" if p >= 1e-4 else "less than 0.01 %"


def counted(value: int, one: str, many: str | None = None) -> str:
    """A number of things: 1 round, 2 rounds. many: if it is not one with an s."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def count(value: int) -> str:
    """A count with thousands apart."""
    return f"{value:,}"


def rate(per_s: float) -> str:
    """How many a second: 20,535 or 2.5."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"


def span(least: str, most: str) -> str:
    """Both ends, or the one if they read alike: 3 to 12, 1.2 s."""
    return least if least == most else f"{least} to {most}"


def time_of_day(at: datetime, near: datetime) -> str:
    """A time by the local clock; with its day if that is not the day of the time near it."""
    here = at.astimezone()
    same_day = here.date() == near.astimezone().date()
    return f"{here:%H:%M:%S}" if same_day else f"{here:%m-%d %H:%M:%S}"


def volume(size: float) -> str:
    """A number of bytes in the unit that suits it: 512 bytes, 200 KiB, 1.5 GiB."""
    if abs(size) < 1024:
        return f"{size:.0f} {'byte' if size == 1 else 'bytes'}"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 1000 or unit == "TiB":
            return f"{size:.1f} {unit}".replace(".0 ", " ")
    raise AssertionError("unreachable")
