"""Findings of one window: causes of active time, limits and settings, each second told once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgtare.observing.findings import (
    limits,
    lock_findings,
    remedies,
    server_findings,
    statement_findings,
    work_findings,
)
from pgtare.observing.findings.causes import (
    CLIENT,
    HOT_LOCK,
    LOCK,
    LOG,
    OBSERVER,
    STATEMENT,
    SYNC,
    Cause,
)
from pgtare.observing.findings.model import ACTIVE, INFORMATION, OUTAGE, Finding, ranked
from pgtare.observing.findings.observation import Observation
from pgtare.observing.findings.partition import Partition, partition
from pgtare.observing.findings.statement_findings import is_of_table

#: A cause of less is a row of the profile, no finding.
LEAST_SHARE, LEAST_SESSIONS = 0.1, 0.5
#: If auto_explain times such a share of all statements, it explains the time that they take.
_TIMED_SHARE = 0.5
#: What adds rows and reads none.
_INSERTS = re.compile(r"\s*INSERT\b(?!.*\b(?:SELECT|FROM)\b)", re.IGNORECASE | re.DOTALL)


def findings(
    observation: Observation,
    checks: Sequence[Finding] = (),
    *,
    busy: bool = False,
    recent_s: float | None = None,
) -> list[Finding]:
    """What is wrong, the most urgent first. Shares add up to at most 1.

    checks: findings of settings, which may explain active time. busy: also what only works.
    recent_s: leave out what was not seen within so long; its time counts all the same.
    """
    whole = partition(observation)
    quick = {
        one.kind for one in whole.causes if one.handed_s and work_findings.is_quick(one, whole)
    }
    if quick:
        whole = partition(observation, quick)
    explaining = {
        one.key: one
        for one in (
            *limits.check(observation.state, observation.samples),
            *server_findings.check(observation),
            *checks,
        )
    }
    recent_at = 0.0 if recent_s is None else observation.until - recent_s

    def counts(cause: Cause) -> bool:
        few = whole.aas(cause) < LEAST_SESSIONS and not cause.is_outage
        return cause.last_at >= recent_at and whole.share(cause) >= LEAST_SHARE and not few

    own = [(one, _of(one, whole, busy=busy)) for one in whole.causes if counts(one)]
    # one of many statements is seen now and then only
    small = [
        cause
        for cause in whole.causes
        if cause.kind == STATEMENT and whole.share(cause) < LEAST_SHARE
    ]
    common = work_findings.resources(small, whole)
    found = []
    for cause, one in (*own, *(pair for pair in common if counts(pair[0]))):
        explained_by = _explained(cause, one, explaining, observation)
        if one is not None and (explained_by is None or one.class_ == OUTAGE):
            found.append(one)  # what only explains work does not say that all stands still
        elif explained_by is not None:
            explaining[explained_by] = _with_share(explaining[explained_by], cause, whole)
    all_of_them = [
        remedies.where_else(one, observation.state.sources)
        for one in ranked([*found, *explaining.values()])
    ]
    return list(map(remedies.of_standby, all_of_them)) if observation.state.standby else all_of_them


def _of(cause: Cause, whole: Partition, *, busy: bool) -> Finding | None:
    if cause.kind == LOCK:
        return lock_findings.lock(cause, whole)
    if cause.kind == HOT_LOCK:
        return lock_findings.hot_lock(cause, whole)
    if cause.kind == LOG:
        return work_findings.log(cause, whole, busy=busy)
    if cause.kind == SYNC:
        return work_findings.sync_rep(cause, whole, busy=busy)
    if cause.kind == CLIENT:
        return work_findings.client(cause, whole)
    if cause.kind == OBSERVER:
        return work_findings.observer(cause, whole)
    return statement_findings.statement(cause, whole, busy=busy)


def _explained(
    cause: Cause, own: Finding | None, explaining: dict[str, Finding], observation: Observation
) -> str | None:
    """The key of the limit or setting that a cause's time comes from. own: its own finding."""
    for key, one in explaining.items():
        if cause.kind == STATEMENT:
            statement = next(iter(cause.statements))
            dead = (
                one.kind == "horizon"
                and one.object
                and is_of_table(statement, one.object, observation)
                and not _INSERTS.match(observation.text(statement))
            )
            timed = (  # auto_explain times the plans of most statements: each of them is slower
                cause.event == "CPU"
                and one.kind == "plans"
                and one.figures.get("sample_rate", 1.0) >= _TIMED_SHARE
                and (own is None or own.class_ == INFORMATION)
            )
            if dead or timed:
                return key
        if cause.kind == LOG and one.kind == "checkpoints":
            return key
        if one.kind == "evictions" and cause.name == "pg_stat_statements":
            return key
    return None


def _with_share(one: Finding, cause: Cause, whole: Partition) -> Finding:
    """A setting or limit that explains active time, with the share of what it explains."""
    share = (one.share or 0.0) + whole.share(cause)
    aas = (one.aas or 0.0) + whole.aas(cause)
    explaining = one.model_copy(
        update={
            "class_": min(one.class_, ACTIVE),
            "share": min(1.0, share),
            "aas": aas,
            "active_s": (one.active_s or 0.0) + cause.seconds,
        }
    )
    return explaining.with_time(cause.seconds_at)
