"""How long sessions have waited for a lock, the log or a standby."""

from __future__ import annotations

import math

from pgtare.observing.findings.observation import Observation, SampledSession, SessionsSample

#: Waits for the log: its buffers, its writing, its syncs.
LOG_EVENTS = frozenset(
    {
        "IO/WALSync",
        "IO/WalSync",
        "IO/WALWrite",
        "IO/WalWrite",
        "LWLock/WALWrite",
        "LWLock/WALInsert",
        "LWLock/WALBufMapping",
        "IO/WALSyncMethodAssign",
        "IO/WalSyncMethodAssign",
    }
)
SYNC_EVENT = "IPC/SyncRep"
#: Waits of what is written to the log, before there is a commit.
_INSERT_EVENTS = frozenset({"LWLock/WALInsert", "LWLock/WALBufMapping"})


class WaitAges:
    """How long sessions have waited, at most: a statement may run for hours and wait now and then.

    The server notes since when it waits for the locks that are waited for at the end. Of others:
    a procedure that commits is one statement, too. And where a statement waits for one lock after
    another, or goes on after it waited for the log or a standby and so was no commit, its wait
    counts from the first sample at most.
    """

    def __init__(self, observation: Observation) -> None:
        samples, until = observation.samples, observation.until
        self._since = {
            pid: (until if lock.read_at is None else lock.read_at) - lock.waited_s
            for pid, lock in observation.locks.items()
            if lock.waited_s is not None
        }
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

    def may_commit(self, one: SampledSession) -> bool:
        """Whether one that waits for the log or a standby may do so to commit."""
        return one.label not in _INSERT_EVENTS and (one.pid, one.query_us) not in self._works

    def waited_s(self, at: float, one: SampledSession) -> float:
        """How long one of the last sample's sessions has waited; its statement's age at most."""
        statement_s = one.query_age_s or 0.0
        process = one.pid, one.started_us
        if not self._seen[process][0]:
            return statement_s
        since = self._since.get(one.pid)
        if one.type == "Lock" and since is not None and since <= at:
            # locks that were read earlier may be of an earlier statement
            return min(at - since, math.inf if one.query_age_s is None else statement_s)
        other = self._other.get(process)
        # its statement waits more than once
        again = since is not None if one.type == "Lock" else (one.pid, one.query_us) in self._works
        if other is None and again:
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
