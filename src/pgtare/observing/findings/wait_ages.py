"""How long sessions have waited for a lock, the log or a standby."""

from __future__ import annotations

from collections.abc import Sequence

from pgtare.observing.findings.observation import SampledSession, SessionsSample

#: Waits for the log: its buffers, its writing, its syncs.
LOG_EVENTS = frozenset(
    f"{kind}/{event}"
    for kind, event in (
        ("IO", "WALSync"),
        ("IO", "WalSync"),
        ("IO", "WALWrite"),
        ("IO", "WalWrite"),
        ("LWLock", "WALWrite"),
        ("LWLock", "WALInsert"),
        ("LWLock", "WALBufMapping"),
        ("IO", "WALSyncMethodAssign"),
        ("IO", "WalSyncMethodAssign"),
    )
)
SYNC_EVENT = "IPC/SyncRep"


class WaitAges:
    """How long sessions have waited, at most: a statement may run for hours and wait now and then.

    A procedure that commits is one statement, too. And what goes on after it waited for the log or
    a standby was no commit: how long that wait is counts from the first sample at most.
    """

    def __init__(self, samples: Sequence[SessionsSample]) -> None:
        self._first_at = samples[0].at if samples else 0.0
        self._works = {
            (one.pid, one.query_us)
            for sample in samples
            for one in sample.sessions
            if one.is_active and not _sort_of_wait(one)
        }
        self._seen: dict[tuple[int, int], tuple[str, float]] = {}
        self._other: dict[tuple[int, int], float] = {}

    def look(self, sample: SessionsSample) -> None:
        """Take a sample, after those before it."""
        for one in sample.sessions:
            process, sort = (one.pid, one.started_us), _sort_of_wait(one)
            was, at = self._seen.get(process, (sort, sample.at))
            if was != sort:
                self._other[process] = at
            self._seen[process] = sort, sample.at

    def waited_s(self, at: float, one: SampledSession) -> float:
        """How long one of the last sample's sessions has waited; its statement's age at most."""
        statement_s = one.query_age_s or 0.0
        process = one.pid, one.started_us
        if not self._seen[process][0]:
            return statement_s
        other = self._other.get(process)
        if other is None and one.type != "Lock" and (one.pid, one.query_us) in self._works:
            other = self._first_at
        waited_s = statement_s if one.xact_age_s is None else min(statement_s, one.xact_age_s)
        return waited_s if other is None else min(waited_s, at - other)


def _sort_of_wait(one: SampledSession) -> str:
    """What it waits for, if how long it has waited tells an outage from work."""
    if one.type == "Lock":
        return "Lock"
    if one.label == SYNC_EVENT:
        return SYNC_EVENT
    return "log" if one.label in LOG_EVENTS else ""
