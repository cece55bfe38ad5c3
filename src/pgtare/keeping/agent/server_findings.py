"""Findings of one server, from what the agent sees every second."""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pgtare.keeping.agent import queries
from pgtare.keeping.agent.finding_traces import TracesAsked
from pgtare.keeping.agent.rows import Batch, RowInterval
from pgtare.keeping.agent.server_session import LookRefused, ServerSession
from pgtare.keeping.agent.texts import LIMIT_S as TEXTS_LIMIT_S
from pgtare.observing.doctor.checks import RepeatedChecks, server_kind
from pgtare.observing.doctor.queries import CAPTURED
from pgtare.observing.doctor.session import Session
from pgtare.observing.findings import compute, read
from pgtare.observing.findings.collector import CountedTotals, FindingInputs, LockTableLooks
from pgtare.observing.findings.episodes import Episode, EpisodeChange, Episodes, began
from pgtare.observing.findings.model import Finding, FindingTraces
from pgtare.observing.findings.observation import AwaitedLock, SessionsSample, moment
from pgtare.observing.findings.queries import Query
from pgtare.observing.findings.read import Unreadable
from pgtare.observing.findings.statement_texts import FindingTexts, TextFile

#: The window that findings are computed of, and how often, in s.
WINDOW_S, EVALUATION_S = 20.0, 10.0
#: A query for findings that takes longer is given up, s.
_LIMIT_S = 2.0
#: The locks of all sessions are read at most so often, s, and so many times their own duration.
_LOCKS_S, _LOCKS_TIMES = 5.0, 100.0
#: Tables are read so often, s, or if a statement may be a finding.
_TABLES_S = 60.0
#: The most sessions that are kept of one sample: the samples of WINDOW_S are in memory.
_MOST_SESSIONS = 2000
#: With many sessions some samples are passed over: findings are computed of about _ROWS rows, but
#: at least of every fifth sample.
_ROWS, _MOST_PASSED = 3000, 5
#: Sessions at work from which on their statements are looked up, counted if that is more: sampled,
#: those on a processor are too few, as our own session keeps them from it.
_BUSY = 0.2
PART = "findings"
#: Columns of the table that a finding has as they are, and as JSON.
_AS_THEY_ARE = (
    *("key", "kind", "level", "since", "share", "aas", "active_s", "limit_left_s", "object"),
    *("victims", "title", "why", "sure", "because"),
)
_AS_JSON = ("root", "gate", "remedy", "figures")
#: A query that the server gave up is not sent again for so long, s: at first, and at most.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20.0, 320.0


#: The queries that a server gave up: how long each waits, and until when.
_Pauses = dict[str, tuple[float, float]]


class _FindingSession(Session):
    """The agent's session, as what reads for findings sees it; it holds up no other look.

    between: called before each query, and makes the looks that are due. limit_s: after so long the
    server gives a query up; it is noted in pauses then, and not sent again for a while.
    """

    def __init__(
        self,
        session: ServerSession,
        limit_s: float,
        pauses: _Pauses,
        between: Callable[[], None],
    ) -> None:
        def count(seconds: float) -> None:
            session.seconds[PART] += seconds

        super().__init__(session.conn, limit_s, count)
        self._pauses, self._between = pauses, between

    def rows(
        self, query: Query, schema: str | None = None, values: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows of a query, its extension found in `schema`. Raises Unreadable."""
        self._between()
        pause_s, until_s = self._pauses.get(query.name, (_FIRST_PAUSE_S / 2, 0.0))
        if time.monotonic() < until_s:
            raise Unreadable("it took too long, so it is not read again for a while")
        self._pauses.pop(query.name, None)
        try:
            return super().rows(query, schema, values)
        except Unreadable as ex:
            if ex.slow:
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                self._pauses[query.name] = pause_s, time.monotonic() + pause_s
            raise


class ServerFindings:
    """Samples, locks and counters of the last seconds; open findings.

    stored: open findings of an earlier agent, as `reading` wrote them. text_file: of the server's
    statements, which others read as well.
    """

    def __init__(self, stored: pa.Table | None, text_file: TextFile) -> None:
        self.episodes = read_back(stored)
        self.samples: deque[SessionsSample] = deque()
        """those that findings are computed of"""
        self._seen_at: deque[float] = deque()
        self._group = self._chosen = self._weight = 0
        """samples that are left of a group, where in it the one is that counts, and for how many"""
        self._locks: dict[int, AwaitedLock] = {}
        self._locks_due = 0.0
        self._checks = RepeatedChecks()
        self._checked: list[Finding] = []
        self._totals: CountedTotals | None = None
        self._evaluated: float | None = None
        self._started: datetime | None = None
        self._tables_at = 0.0
        self._lock_table = LockTableLooks()
        self._texts = FindingTexts(text_file)
        self._waited: deque[tuple[float, float, Mapping[str, float]]] = deque()
        self._counts_all = False
        """whether all sessions are seen, and the waits of all are counted"""
        self._traces = TracesAsked()
        self._pauses: _Pauses = {}
        self.between: Callable[[], None] = lambda: None
        """makes the looks that are due, between two queries"""

    def begin(self) -> None:
        """A new session: what was sampled before may be of another server."""
        self.samples.clear()
        self._seen_at.clear()
        self._group = self._chosen = 0
        self._waited.clear()
        self._locks.clear()
        self._totals = self._evaluated = None
        self._lock_table = LockTableLooks()
        self._checks = RepeatedChecks()
        self._pauses = {}

    # every second

    def see(
        self, session: ServerSession, rows: Sequence[Sequence[Any]], at: float, weight_s: float
    ) -> None:
        """Take what a sample of sessions brought; look at those who hold others up.

        Of a group of samples one counts for all. Chance says which: chosen by what it shows, a
        short burst of sessions would never be the one, or always.
        """
        if not self._group:
            size = min(_MOST_PASSED, max(1, math.ceil(len(rows) * WINDOW_S / _ROWS)))
            self._group, self._chosen = size, random.randrange(size)
            self._weight = size
        self._group -= 1
        if self._group != self._chosen:
            return
        weight_s *= self._weight
        sample = SessionsSample(at, weight_s, tuple(map(read.session_of, rows[:_MOST_SESSIONS])))
        try:
            sample = read.with_blockers(sample, lambda pids: _blockers(session, pids))
            if any(one.type == "Lock" for one in sample.sessions):
                self._read_locks(session, at)
        except LookRefused:
            pass  # the next sample may bring it
        now = time.monotonic()
        if self.samples and at < self.samples[-1].at:
            self.samples.clear()  # the clock was set back
            self._seen_at.clear()
        self.samples.append(sample)
        self._seen_at.append(now)
        while self._seen_at[0] < now - WINDOW_S:
            self.samples.popleft()
            self._seen_at.popleft()

    def count(self, seconds: float, waited_s: Mapping[str, float]) -> None:
        """Take the time by event, as counted, of the last seconds."""
        now = time.monotonic()
        self._waited.append((now, seconds, waited_s))
        while self._waited[0][0] < now - WINDOW_S:
            self._waited.popleft()

    def _counted(self, seconds: float) -> dict[str, float] | None:
        """Time by event in a window of so many seconds; None if nobody counts all of it.

        Counters that are read once a minute, or were read before, say nothing about this window.
        """
        covered = sum(part for _, part, _ in self._waited)
        if not seconds / 2 <= covered <= 2 * max(seconds, WINDOW_S):
            return None
        if not self._waited or self._waited[-1][0] < time.monotonic() - WINDOW_S:
            return None
        found: dict[str, float] = {}
        for _, _, waited_s in self._waited:
            for label, spent in waited_s.items():
                found[label] = found.get(label, 0.0) + spent * seconds / covered
        return found

    def _read_locks(self, session: ServerSession, at: float) -> None:
        began_s = time.monotonic()
        if began_s < self._locks_due:
            return
        try:
            with session.look("locks", _LIMIT_S):
                rows = session.rows(queries.LOCKS)
        finally:
            took = time.monotonic() - began_s
            self._locks_due = began_s + max(_LOCKS_S, _LOCKS_TIMES * took)
        self._locks |= read.locks(rows, at)

    # now and then

    def _reader(self, session: ServerSession, limit_s: float) -> _FindingSession:
        return _FindingSession(session, limit_s, self._pauses, self.between)

    def check(self, session: ServerSession) -> None:
        """Look at settings, and at what observes."""
        reader = self._reader(session, _LIMIT_S)
        self._checked = self._checks.again(reader)
        self._counts_all = False
        if session.offer.sees_all and session.offer.waits is not None:
            with contextlib.suppress(Unreadable):
                ((self._counts_all,),) = reader.rows(CAPTURED, session.offer.waits)

    def evaluate(self, session: ServerSession) -> list[EpisodeChange]:
        """Compute the findings of the last seconds, and what changed since the last time.

        There are none before the settings are known.
        """
        facts = self._checks.facts
        if facts is None:
            return []
        now, elapsed = time.time(), time.monotonic()
        seconds = EVALUATION_S if self._evaluated is None else elapsed - self._evaluated
        self._evaluated = elapsed
        reader = self._reader(session, _LIMIT_S)
        collector = FindingInputs(reader, server_kind(facts, local=reader.is_local))
        collector.samples, collector.locks = list(self.samples), self._locks
        active = collector.active_statements()
        window_s = sum(sample.weight_s for sample in self.samples)
        counted = self._counted(window_s) if self._counts_all else None
        counted_active = sum(counted.values()) / window_s if counted and window_s else 0.0
        may_be_slow = max(sum(active.values()), counted_active) >= _BUSY
        tables = may_be_slow or time.monotonic() - self._tables_at >= _TABLES_S
        before = self._totals
        totals = collector.totals(list(active) if may_be_slow else [], tables=tables)
        if tables:
            self._tables_at = time.monotonic()
        elif before is not None:
            totals = replace(totals, tables=before.tables, tables_ns=before.tables_ns)
        self._totals = totals
        texts: dict[int, str] = {}
        if may_be_slow:
            texts = collector.texts(self._texts, self._reader(session, TEXTS_LIMIT_S))
        observation = collector.observation(
            facts.settings,
            before or CountedTotals(),
            totals,
            counted,
            sources=facts.sources,
            texts=texts,
            lock_table=self._lock_table.look(collector),
        )
        found = compute.findings(observation, self._checked, recent_s=EVALUATION_S)
        self._forget_locks()
        ended: list[EpisodeChange] = []
        if self._started is not None and self._started != facts.server.started:
            ended = self.episodes.end_all()
        self._started = facts.server.started
        changes = self.episodes.evaluate(found, now, seconds)
        for change in changes:
            if change.change == "open" and change.episode.traces is None:
                change.episode.traces = self._traces.keep(session, change.episode.finding)
        return [*ended, *changes]

    def _forget_locks(self) -> None:
        waiting = {
            one.pid for sample in self.samples for one in sample.sessions if one.type == "Lock"
        }
        self._locks = {pid: lock for pid, lock in self._locks.items() if pid in waiting}

    # for the spool

    def reading(self) -> pa.Table:
        """What is open, for the agent that comes after this one."""
        return pa.table(
            {
                "open": pa.array([True, False]),
                "episodes": pa.array(
                    [
                        json.dumps([_written(episode) for episode in these.values()])
                        for these in (self.episodes.open, self.episodes.closed)
                    ]
                ),
            }
        )


def _blockers(session: ServerSession, pids: list[int]) -> list[tuple[Any, ...]]:
    with session.look("blockers", _LIMIT_S):
        return session.rows(queries.BLOCKERS, pids)


def _written(episode: Episode) -> dict[str, Any]:
    finding = episode.finding.model_dump(mode="json", by_alias=True)
    traces = episode.traces.model_dump() if episode.traces is not None else None
    return {**vars(episode), "finding": finding, "traces": traces}


def read_back(stored: pa.Table | None) -> Episodes:
    """What `ServerFindings.reading` wrote, without what is of another version."""
    found = Episodes()
    if stored is None:
        return found
    for row in stored.to_pylist():
        these = found.open if row["open"] else found.closed
        for one in json.loads(row["episodes"]):
            try:
                finding = Finding.model_validate(one.pop("finding"))
                traces = one.pop("traces", None)
                traces = traces and FindingTraces.model_validate(traces)
            except ValidationError:  # of another version: it opens anew
                continue
            these[finding.key] = Episode(finding, traces=traces, **one)
    return found


def add(batch: Batch, interval: RowInterval, changes: Sequence[EpisodeChange]) -> None:
    """Add a row for each change."""
    rows = [_row(change) for change in changes]
    if not rows:
        return
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    for name in ("since", "until"):
        columns[name] = pa.array(columns[name], pa.timestamp("us", "UTC"))
    batch.add("findings", columns, interval, len(rows))


def _row(change: EpisodeChange) -> dict[str, Any]:
    one = began(change.episode)
    plain = json.loads(one.model_dump_json())  # what is no number becomes null

    row = {name: getattr(one, name) for name in _AS_THEY_ARE}
    row |= {n: None if plain[n] is None else json.dumps(plain[n]) for n in _AS_JSON}
    return row | {
        "event": change.change,
        "class": one.class_,
        "until": None if change.until is None else moment(change.until),
        "episodes": change.episode.episodes,
        "query_id": None if one.query_id is None else int(one.query_id),
        "evidence": "\n".join(" ".join(line.splitlines()) for line in one.evidence),
        "follows": change.episode.follows,
        "traces": change.episode.traces.model_dump_json() if change.episode.traces else None,
    }
