"""Asks a server's flight recorder to keep the traces of the sessions in a finding that opens."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable

from pgtare.keeping.agent import queries
from pgtare.keeping.agent.server_session import LookRefused, ServerGone, ServerSession
from pgtare.observing.findings.model import ACTIVE, Finding, FindingTrace, FindingTraces

#: The server answers at once.
_LIMIT_S = 2.0
#: So many findings of a server in an hour; it has a limit of its own, in traces.
_MOST_FINDINGS, _HOUR_S = 3, 3600.0
#: There is no trace then, but what opened and closed must be written. The next look says why.
_UNANSWERED = (LookRefused, ServerGone)
#: The most waiters whose traces are asked for, those that wait longest first.
_MOST_VICTIMS = 4


class TracesAsked:
    """Whether traces may be asked for, by how often they were."""

    def __init__(self) -> None:
        self._asked: deque[float] = deque()

    def keep(self, session: ServerSession, finding: Finding) -> FindingTraces | None:
        """What is kept of a finding's root and its victims; None: there is no recorder for it."""
        root = finding.root.pid if finding.root is not None else None
        if finding.class_ > ACTIVE or root is None:
            return None
        if session.offer.keep is None:
            return _may_not(session)
        now = time.monotonic()
        while self._asked and self._asked[0] <= now - _HOUR_S:
            self._asked.popleft()
        if len(self._asked) >= _MOST_FINDINGS:
            return FindingTraces(
                missing=f"no trace: those of {_MOST_FINDINGS} findings were kept in this hour"
            )
        pids = [root, *_gate(finding), *finding.victims[:_MOST_VICTIMS]]
        try:
            with session.look("traces", _LIMIT_S):
                rows = session.rows(queries.KEEP, pids, _label(finding, root))
        except _UNANSWERED:
            return None  # the extension is there, but not loaded, or its right was taken away
        found = _of_rows(rows)
        if found.kept:
            self._asked.append(now)
        return found


def _may_not(session: ServerSession) -> FindingTraces | None:
    """How to allow it, if the server writes kept traces at all."""
    grant = session.offer.keep_grant
    if grant is None or session.offer.trace is None:
        return None
    try:
        with session.look("traces", _LIMIT_S):
            ((keeps,),) = session.rows(queries.KEEPS)
    except _UNANSWERED:
        return None
    if not keeps:
        return None
    return FindingTraces(missing=f"no trace, as the role may not have any kept: {grant}")


def _gate(finding: Finding) -> list[int]:
    return [finding.gate.pid] if finding.gate is not None and finding.gate.pid is not None else []


def _label(finding: Finding, root: int) -> str:
    """Names the finding, without anything that a client chose."""
    started = finding.root.started if finding.root is not None else None
    since = f"@{started.timestamp():.0f}" if started is not None else ""
    return f"{re.sub('[^a-z]', '_', finding.kind)[:30]}:{root}{since}"


def _of_rows(rows: Iterable[tuple[int, int | None, str | None, str | None]]) -> FindingTraces:
    kept = []
    missing: dict[str, list[str]] = {}
    for pid, number, file, why in rows:
        if number is not None:
            kept.append(FindingTrace(pid=pid, id=number, file=file or ""))
        else:
            missing.setdefault(why or "", []).append(str(pid))
    said = [f"no trace of {', '.join(pids)}: {why}" for why, pids in missing.items()]
    return FindingTraces(kept=kept, missing="; ".join(said))
