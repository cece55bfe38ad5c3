"""What findings have in common: those of a cause, those of a limit, and the words of all."""

from __future__ import annotations

import re
from typing import Any

from pgtare.kit import numbers
from pgtare.observing.findings.causes import Cause
from pgtare.observing.findings.model import ACTIVE, LIMIT, OUTAGE, Finding, Who
from pgtare.observing.findings.observation import SampledSession, moment
from pgtare.observing.findings.partition import Partition

_BLANKS = re.compile(r"\s+")
#: A word behind these may be none: FOR UPDATE SKIP LOCKED, ON CONFLICT DO UPDATE SET.
_TABLE = re.compile(
    r"\b(?:FROM|(?<!FOR )(?<!KEY )(?<!DO )UPDATE|INTO)\s+(?:ONLY\s+)?(?!ONLY\b)"
    r"""((?:[a-z_]\w*|"[^"]+")(?:\.(?:[a-z_]\w*|"[^"]+"))*)(?![\w.("])""",
    re.IGNORECASE,
)
#: What has FROM before a value: extract(year FROM day).
_NO_TABLE = re.compile(
    r"\b(?:extract|overlay|substring|trim)\s*\([^()]*\)|\bDISTINCT\s+FROM\b", re.IGNORECASE
)
#: A limit that is reached sooner is an outage, s.
_HOUR_S = 3600.0


def of_cause(cause: Cause, whole: Partition, *, outage: bool = False, **more: Any) -> Finding:
    """A finding of what active time goes to; `more` adds to its fields, or replaces them."""
    fields: dict[str, Any] = {
        "key": cause.key,
        "kind": cause.kind,
        "class_": OUTAGE if outage else ACTIVE,
        "level": "critical" if outage else "warning",
        "since": moment(cause.first_at),
        "share": whole.share(cause),
        "aas": whole.aas(cause),
        "active_s": cause.seconds,
        "quality": "sampled" if whole.observation.waited_s is None else "exact",
    }
    return Finding(**fields | more).with_time(cause.seconds_at)


def of_limit(
    name: str, *, reached: bool, left_s: float | None = None, kind: str = "limit", **more: Any
) -> Finding:
    """A finding of a limit that is reached, or comes near. left_s: until it is reached."""
    outage = reached or (left_s is not None and left_s < _HOUR_S)
    return Finding(
        key=f"limit/{name}",
        kind=kind,
        class_=OUTAGE if outage else LIMIT,
        level="critical" if outage else "warning",
        limit_left_s=left_s,
        **more,
    )


def who(one: SampledSession | None) -> Who | None:
    """A session as a document has it."""
    if one is None:
        return None
    return Who(
        pid=one.pid,
        started=moment(one.started_us / 1e6),
        role=one.role,
        application=one.application,
        database=one.database,
        client=one.client,
        state=one.state,
        transaction_age_s=one.xact_age_s,
    )


def short(text: str, width: int = 70) -> str:
    """A statement's beginning, on one line."""
    line = _BLANKS.sub(" ", text).strip().rstrip(";")
    return line if len(line) <= width else line[: width - 1] + "…"


def table_of(text: str) -> str | None:
    """The first table that a statement names."""
    found = _TABLE.search(_NO_TABLE.sub(" ", text))
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
