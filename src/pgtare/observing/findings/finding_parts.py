"""What findings of one sort have in common: those of a cause, those of a limit."""

from __future__ import annotations

from typing import Any

from pgtare.observing.findings.causes import Cause
from pgtare.observing.findings.model import ACTIVE, LIMIT, OUTAGE, Finding, Who
from pgtare.observing.findings.observation import SampledSession, moment
from pgtare.observing.findings.partition import Partition

#: A limit that is reached sooner is an outage, s.
_HOUR_S = 3600.0


def of_cause(
    cause: Cause, whole: Partition, *, outage: bool = False, **more: Any
) -> Finding:
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
