"""Words that all findings share."""

from __future__ import annotations

import re

from pgtare.kit import numbers
from pgtare.observing.findings.observation import SampledSession

_TEXT = 70
_BLANKS = re.compile(r"\s+")


def short(text: str, width: int = _TEXT) -> str:
    """A statement's beginning, on one line."""
    line = _BLANKS.sub(" ", text).strip().rstrip(";")
    return line if len(line) <= width else line[: width - 1] + "…"


def table_of(text: str) -> str | None:
    """The first table that a statement names."""
    found = re.search(
        r"\b(?:FROM|UPDATE|INTO)\s+(?:ONLY\s+)?([a-z_][\w.]*)(?![\w.(\"])", text, re.IGNORECASE
    )
    return found[1] if found else None


def named(one: SampledSession) -> str:
    """A session as people call it."""
    return f"{one.application or one.role or one.backend_type} (pid {one.pid})"


def spent(seconds: float) -> str:
    """A length of time as people say it."""
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    scaled, unit = (1000 * seconds, "ms") if seconds >= 0.001 else (1e6 * seconds, "µs")
    return f"{float(f'{scaled:.2g}'):g} {unit}"


def share_line(share: float, aas: float) -> str:
    """How much of the active time that is."""
    return f"{numbers.percent(100 * share)} of all sessions' time, {aas:.1f} sessions on average"
