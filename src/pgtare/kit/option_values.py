"""Values of options that several commands take: a time, a percentage, a size, an address."""

from __future__ import annotations

import ipaddress
import math
import re

from pgtare.errors import UsageError

#: As in the module: this only catches slips of the pen.
LONGEST_S = 7 * 86400.0
#: Reached by this machine alone.
LOOPBACK = "127.0.0.1"

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)?\s*")
_DAYS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*d\s*")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)i?b?\s*", re.IGNORECASE)
_PERCENTAGE = re.compile(r"(\d*\.?\d+(?:e-?\d+)?)\s*%", re.ASCII)
_UNIT_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_UNIT_S = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(option: str, text: str) -> float:
    """Seconds from `90`, `90s`, `2m` or `1h`. Raises UsageError."""
    found = _DURATION.fullmatch(text)
    value = float(found[1]) * _UNIT_S[found[2]] if found else 0.0
    if not 0 < value <= LONGEST_S:
        raise UsageError(
            f"{option} {text}: give a time over 0 and at most a week, as in 90, 90s, 2m or 1h"
        )
    return value


def span(option: str, text: str) -> float:
    """Seconds of a stretch of the past, from `2h` or `7d`: at most 400 days. Raises UsageError."""
    days = _DAYS.fullmatch(text)
    if days is None:
        return seconds(option, text)
    value = float(days[1]) * 86400.0
    if not 0 < value <= 400 * 86400.0:
        raise UsageError(f"{option} {text}: give at most 400d, as in 2h or 7d")
    return value


def percentage(option: str, text: str, below: float = 100.0, *, whole: bool = False) -> float:
    """A share from `0.5%` or `0.5 %`: 0.005. Raises UsageError, also for `below` % and more.

    whole: 100 % is one, too.
    """
    found = _PERCENTAGE.fullmatch(text.strip())
    value = float(found[1]) if found else math.nan
    if not (0 < value < below or (whole and value == 100)):
        limit = "at most 100" if whole else f"below {below:g}"
        raise UsageError(
            f"{option} {text}: give a percentage over 0 and {limit}, as in {option} 5%"
        )
    return value / 100


def size(option: str, text: str) -> int:
    """Bytes from `512k`, `64M` or `2G`. Raises UsageError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text}: write a size, as 64M or 2G")
    return round(float(found[1]) * _UNIT_BYTES[found[2].lower()])


def address(option: str, text: str, example: int = 9187) -> tuple[str, int]:
    """Host and port from `9187` (of this machine alone), `HOST:9187` or `[::1]:9187`.

    example: a port that an error names. Raises UsageError.
    """
    host, _, port = text.strip().rpartition(":")
    host = host or LOOPBACK
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        port = ""
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"{option} {text}: give an address and a port, as in {option} {LOOPBACK}:{example}"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
