"""The looks at one server: each reads it once, and turns what changed into rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pgtare.keeping.agent import queries, reading, server_findings, texts
from pgtare.keeping.agent.baseline import (
    Stored,
    StoredReading,
    counter_columns,
    counters,
    moment_table,
    stored_activity,
    stored_reading,
    stored_recordings,
)
from pgtare.keeping.agent.description import ServerDescription
from pgtare.keeping.agent.reading import UnsteadyReading, WaitsReading
from pgtare.keeping.agent.rows import APPROXIMATE, EXACT, SAMPLED, Batch, RowInterval
from pgtare.keeping.agent.server_findings import EVALUATION_S, ServerFindings
from pgtare.keeping.agent.server_session import LookRefused, ServerGone, ServerSession
from pgtare.keeping.agent.texts import StatementTexts
from pgtare.keeping.agent_log import shortened
from pgtare.keeping.spool.tables import TABLES
from pgtare.kit import numbers
from pgtare.observing.findings import read
from pgtare.observing.findings.statement_texts import MOST_BYTES, TextFile, new_file
from pgtare.postgres.backend_types import BACKGROUND
from pgtare.postgres.wait_counters import difference as differences
from pgtare.postgres.wait_counters import epoch, steady_clock
from pgtare.postgres.wait_counters.active_sessions import CPU_TYPE
from pgtare.postgres.wait_counters.counter_table import (
    ACTIVE_NS,
    CALLS,
    Array,
    CounterTable,
    codes_of,
)
from pgtare.postgres.wait_counters.epoch import Origin, ReadingBaseline, WatchGap

WAITS, STATEMENTS, SESSIONS, ACTIVITY = "waits", "statements", "sessions", "activity"
#: Blockers are looked up of waiters that have waited this many s.
WAITED_S = 1.0
#: Names of roles and databases are read again after this many s.
_NAMES_S = 600.0
_MATRIX = "numbers"
#: Of what the module could not count, if it is not waits.
_UNITS = {"statements_evicted": "entries"}
#: How often an incomplete first reading is taken again, and the pause before that, in s.
_WHOLE_TRIES, _WHOLE_PAUSE_S = 5, 0.05

#: Rows stay as they are: if the counters rise again, the sums are right again.
FELL = (
    "counters of waits fell although they were not reset; their rows are negative, so that sums "
    "over this time are those of the counters"
)


#: What an absence means if a server has no counters of waits. Those of databases outlast a restart.
UNSAMPLED = (
    "nobody read the server: what databases did is in the rows that end here, but sessions were "
    "not sampled"
)


class ServerLooks:
    """What is known of one server, and the looks at it.

    name: of the server. agent: UUID. stored: the readings that the spool holds. most: statements
    with rows of their own. A look puts its rows and the reading that they end at into a batch.
    """

    def __init__(self, name: str, agent: str, stored: Stored, most: int) -> None:
        self.name, self.agent, self.most = name, agent, most
        self._waits = stored_reading(stored, WAITS)
        self._statements = stored_reading(stored, STATEMENTS)
        minute_waits = stored("statements-waits")
        if minute_waits is None:
            self._statements = None  # both are compared, or none
        self._minute_waits = None
        if minute_waits is not None and self._statements is not None:
            self._minute_waits = counters(minute_waits)
        self._activity = stored_activity(stored, ACTIVITY)
        self._origin: Origin | None = None
        self._sampled_at: float | None = None
        self._waiting: dict[int, float] = {}
        self._roles: dict[int, str] = {}
        self._databases: dict[int, str] = {}
        self._names_read = 0.0
        self._texts = StatementTexts(TextFile())
        self.settings: str | None = None
        """the settings that observe the server, as JSON, as last seen"""
        self._recordings = stored_recordings(stored)
        self.findings = ServerFindings(stored(server_findings.PART), self._texts.file)
        self.description = ServerDescription(name, agent, stored)
        self.notes: dict[str, str] = {}
        """what is to be logged of looks that brought rows: events, and why"""
        self.captures = True
        """whether the module counted any process when it was read last"""
        self._losses: dict[str, int] = {}
        self._processors: float | None = None
        self._seconds: dict[str, float] = {}
        self._new_texts: dict[int, str] = {}

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A look that fails changes nothing: its rows are lost, and the next look brings them."""
        self._new_texts = {}
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self._texts.take_back(self._new_texts)
            vars(self).update(before)
            raise

    def begin(self, session: ServerSession) -> None:
        """Learn which server it is, before any look of a new session."""
        self._sampled_at = None
        self._seconds = {}
        self.findings.begin()
        # it may be another server, whose numbers are of other names
        self._roles, self._databases, self._names_read = {}, {}, 0.0
        self._processors = None
        if session.offer.waits is None:
            with session.look("connect"):
                ((started, _),) = session.rows(queries.STARTED)
            self._origin = Origin(session.offer.system_identifier, reading.integer(started))

    @property
    def _epoch(self) -> int:
        return self._origin.epoch if self._origin is not None else 0

    def interval(self, covered_ns: int, quality: str, ts_us: int | None = None) -> RowInterval:
        """An interval that ends now, or at a time."""
        ended = time.time_ns() // 1000 if ts_us is None else ts_us
        return RowInterval(self.name, self.agent, self._epoch, ended, covered_ns, quality)

    # Counters of waits

    def counters(self, session: ServerSession, interval_s: float, minute_s: float | None) -> Batch:
        """What waits grew by; and if minute_s is given, statements as well."""
        with self._all_or_nothing():
            return self._counters(session, interval_s, minute_s)

    def _counters(self, session: ServerSession, interval_s: float, minute_s: float | None) -> Batch:
        batch = Batch()
        found = self._read_whole(session, interval_s, minute_s)
        self._origin, self._processors = found.origin, found.info.processors
        self.captures = reading.captures(found)
        before = (self._waits[0], self._waits[1]) if self._waits else None
        change = epoch.between(before, (found.origin, found.taken), interval_s)
        first = self._waits[2] if self._waits else None
        same = change.baseline is ReadingBaseline.SAME
        waits = differences.kept_types(first if same else None, found.waits, found.unread)
        grown = differences.processor_rows(differences.difference(first, waits, change), change)
        interval = self.interval(change.covered_ns, EXACT, found.taken.agent_us)
        batch.waits(interval, grown)
        if change.baseline is not ReadingBaseline.ANEW:
            batch.tick(interval, WAITS)
            self.findings.count(change.covered_ns / 1e9, _waited_s(grown))
        if change.gap is not None:
            batch.gap(replace(interval, covered_ns=change.gap_ns), change.gap)
        if before and same and np.any(grown.sums[grown.keys["type"] != "", CALLS] < 0):
            self.notes["counters_fell"] = FELL
            batch.gap(interval, WatchGap("unexpected", before[1].agent_us, FELL))
        batch.readings[WAITS] = counter_columns(waits)
        batch.readings["waits-info"] = moment_table(found.origin, found.taken)
        if change.baseline is ReadingBaseline.ANEW:
            self._losses = found.info.losses  # they may be another server's
        elif not same:
            self._losses = dict.fromkeys(found.info.losses, 0)
        if minute_s is not None:
            self._add_statements(session, batch, found, waits, minute_s)
        self._own_figures(session, batch, interval, found, len(grown))
        self._waits = found.origin, found.taken, waits
        return batch

    def _read_whole(
        self, session: ServerSession, interval_s: float, minute_s: float | None
    ) -> WaitsReading:
        """Read the counters; if they will be a baseline, completely.

        What a baseline lacks would be taken for zero: all that it counted since the server started
        would be in the next rows. Raises UnsteadyReading.
        """

        def is_anew(earlier: StoredReading | None, step_s: float) -> bool:
            before = (earlier[0], earlier[1]) if earlier else None
            change = epoch.between(before, (found.origin, found.taken), step_s)
            return change.baseline is ReadingBaseline.ANEW

        for attempt in range(_WHOLE_TRIES):
            if attempt:
                time.sleep(_WHOLE_PAUSE_S)
            found = reading.read(session, statements=minute_s is not None)
            anew = is_anew(self._waits, interval_s)
            anew_minute = minute_s is not None and is_anew(self._statements, minute_s)
            hole = len(found.unread) and (anew or anew_minute)
            if not hole and not (found.busy and anew_minute):
                return found
        raise UnsteadyReading(
            "parts of the counters could not be read, again and again; a first reading needs all"
        )

    def _add_statements(
        self,
        session: ServerSession,
        batch: Batch,
        found: WaitsReading,
        waits: CounterTable,
        interval_s: float,
    ) -> None:
        assert found.statements is not None
        before = (self._statements[0], self._statements[1]) if self._statements else None
        change = epoch.between(before, (found.origin, found.taken), interval_s)
        first = self._statements[2] if self._statements else None
        statements = found.statements
        if (
            found.busy
            and first is not None
            and change.baseline in (ReadingBaseline.SAME, ReadingBaseline.RESET)
        ):
            statements = differences.carried_over(first, statements)
        grown = differences.statement_difference(first, statements, change)
        all_waits = differences.difference(self._minute_waits, waits, change)
        at_work = ~np.isin(all_waits.keys["backend_type"], BACKGROUND)
        all_waits = all_waits.select(at_work & (all_waits.keys["type"] != ""))
        rows = differences.statement_rows(grown, all_waits, self.most)
        quality = EXACT if session.offer.sees_all else APPROXIMATE
        interval = self.interval(change.covered_ns, quality, found.taken.agent_us)
        own = rows.rows.select(rows.kind == differences.STATEMENT)
        self._read_names(session, own)
        self._read_texts(session, batch, interval, np.unique(own.keys["query_id"]).tolist())
        batch.statements(interval, rows, self._roles, self._databases, self._texts.hashes)
        if change.baseline is not ReadingBaseline.ANEW:
            batch.tick(interval, STATEMENTS)
        if change.gap is not None and change.baseline is not ReadingBaseline.SAME:
            # they are read less often than waits, whose gap is shorter
            lost = WatchGap("lost", change.gap.from_us, f"of statements: {change.gap.detail}")
            batch.gap(replace(interval, covered_ns=change.gap_ns), lost)
        self._statements = found.origin, found.taken, statements
        self._minute_waits = waits
        batch.readings[STATEMENTS] = counter_columns(statements)
        batch.readings["statements-info"] = moment_table(found.origin, found.taken)
        batch.readings["statements-waits"] = counter_columns(waits)

    def _read_names(self, session: ServerSession, own: CounterTable) -> None:
        roles, databases = (set(own.keys[f"{of}_oid"].tolist()) for of in ("role", "database"))
        known = roles <= self._roles.keys() and databases <= self._databases.keys()
        if not known or time.monotonic() - self._names_read > _NAMES_S:
            with session.look("names"):
                self._roles = reading.names_by_oid(session.rows(queries.ROLES, sorted(roles)))
                self._databases = reading.names_by_oid(session.rows(queries.DATABASES))
            self._names_read = time.monotonic()

    def _read_texts(
        self, session: ServerSession, batch: Batch, interval: RowInterval, query_ids: list[int]
    ) -> None:
        if session.offer.texts is None:
            return
        asked = self._texts.unknown(query_ids)
        if not asked:
            return
        began = time.monotonic()
        found: list[tuple[int, str]] = []
        try:
            size = self._size_of_texts(session)
            if size is not None and size > MOST_BYTES:
                self._texts.file.pause_if_large(size)
                raise LookRefused(
                    f"their file is larger than {numbers.volume(MOST_BYTES)}: "
                    f"{new_file(session.offer.texts)}"
                )
            with session.look("texts", texts.LIMIT_S):
                ((length, ids, wanted),) = session.rows(queries.TEXTS, asked)
            self._texts.file.pause_if_large(max(length, size or 0), time.monotonic() - began)
            found = [] if ids is None else list(zip(map(int, ids), wanted, strict=True))
        except LookRefused as ex:
            # it is not loaded, too slow, or holds what this encoding does not have: rows go on
            if ex.slow:
                self._texts.file.pause_if_large(None, texts.LIMIT_S)
            self.notes["no_texts"] = f"texts of pg_stat_statements were not read: {ex}"
        except ServerGone:
            # an answer without end, perhaps: the next session goes without texts for a while
            self._texts.file.pause_if_large(None, texts.LIMIT_S)
            raise
        new = self._new_texts = self._texts.learn(asked, found)
        batch.add("texts", {"text_hash": list(new), "text": list(new.values())}, interval, len(new))

    def _size_of_texts(self, session: ServerSession) -> int | None:
        """How large the file of all texts is; None if the role may not ask."""
        if not session.offer.may_stat_file:
            return None
        with session.look("texts", texts.LIMIT_S):
            rows = session.rows(queries.TEXTS_SIZE)
        return int(rows[0][0]) if rows and rows[0][0] is not None else None

    def _own_figures(
        self,
        session: ServerSession,
        batch: Batch,
        interval: RowInterval,
        found: WaitsReading,
        rows: int,
    ) -> None:
        """What the agent costs this server, and what its counters lack."""
        lost = [
            (name, float(count - self._losses[name]), _UNITS.get(name, "waits"))
            for name, count in found.info.losses.items()
            if count > self._losses.get(name, count)
        ]
        busy = [("busy_buckets", float(found.busy), "buckets")] if found.busy else []
        unread = [("unread_types", float(len(found.unread)), "types")] if len(found.unread) else []
        self._losses = found.info.losses
        figures = self._time_of_looks(session)
        batch.figures(interval, [*figures, *lost, *busy, *unread, ("rows", float(rows), "rows")])

    def _time_of_looks(self, session: ServerSession) -> list[tuple[str, float, str]]:
        """Since the last time, as figures of the agent's table."""
        before, self._seconds = self._seconds, dict(session.seconds)
        return [
            (f"look_{name}", seconds - before.get(name, 0.0), "s")
            for name, seconds in self._seconds.items()
        ]

    # Samples

    def sessions(self, session: ServerSession, interval_s: float) -> Batch:
        """Take a sample of what sessions do now."""
        with self._all_or_nothing():
            return self._sessions(session, interval_s)

    def _sessions(self, session: ServerSession, interval_s: float) -> Batch:
        batch = Batch()
        now, at = time.monotonic(), time.time()
        long = [pid for pid, since in self._waiting.items() if now - since >= WAITED_S]
        with session.look(SESSIONS):
            found = session.rows(queries.SESSIONS, read.asked(long, int(now)))
        since = self._sampled_at
        elapsed = interval_s if since is None else min(now - since, 3 * interval_s)
        self._sampled_at = now
        self.findings.see(session, found, at, elapsed)
        waiting = dict.fromkeys(row[1] for row in found if row[10] == "Lock")
        # the oldest come first
        self._waiting = {
            **{pid: at for pid, at in self._waiting.items() if pid in waiting},
            **{pid: now for pid in waiting if pid not in self._waiting},
        }
        interval = self.interval(round(elapsed * 1e9), SAMPLED)
        batch.tick(interval, SESSIONS)
        columns = _columns(SESSIONS, map(_session, found))
        batch.add("sessions", columns, interval, len(found))
        return batch

    def activity(self, session: ServerSession, interval_s: float) -> Batch:
        """What databases did, and the settings that observe the server, if they changed."""
        with self._all_or_nothing():
            return self._look_at_activity(session, interval_s)

    def _look_at_activity(self, session: ServerSession, interval_s: float) -> Batch:
        batch = Batch()
        asked = steady_clock.now_ns()
        with session.look(ACTIVITY):
            ((started_us, server_us),) = session.rows(queries.STARTED)
            ((found,),) = session.rows(queries.ACTIVITY)
            ((settings,),) = session.rows(queries.SETTINGS)
            self._databases = reading.names_by_oid(session.rows(queries.DATABASES))
        matrix = reading.matrix_of(found, len(queries.ACTIVITY_COLUMNS) + 3)
        taken = reading.answered(server_us, asked)
        recordings = self._read_recordings(session)
        # counters outlast a restart, but the name may lead to another server now
        origin = Origin(session.offer.system_identifier, reading.integer(started_us))
        before = self._activity[:2] if self._activity else None
        change = epoch.between(before, (origin, taken), interval_s)
        if self._activity is None or change.baseline is ReadingBaseline.ANEW:
            self.settings = None
            if change.gap is not None:
                batch.gap(self.interval(change.gap_ns, EXACT, taken.agent_us), change.gap)
        else:
            _, then, first = self._activity
            covered = epoch.elapsed_ns(then, taken)
            interval = self.interval(covered, EXACT, taken.agent_us)
            grown = activity_difference(first, matrix)
            changed = settings if settings != self.settings else None
            batch.activity(interval, grown, self._databases, self._processors, changed)
            batch.tick(interval, ACTIVITY)
            if session.offer.waits is None:  # else they come with the counters
                batch.figures(interval, self._time_of_looks(session))
                away = epoch.between((origin, then), (origin, taken), interval_s)
                if away.gap is not None:
                    batch.gap(interval, away.gap._replace(detail=UNSAMPLED))
            self.settings = settings
        self._activity = origin, taken, matrix
        batch.readings["activity-info"] = moment_table(origin, taken)
        columns = {f"{_MATRIX}{i}": matrix[:, i] for i in range(matrix.shape[1])}
        batch.readings[ACTIVITY] = pa.table(columns)
        if recordings is not None:
            self._add_recordings(batch, recordings)
        return batch

    def _read_recordings(self, session: ServerSession) -> list[tuple[Any, ...]] | None:
        """The traces that the server has kept; None if they cannot be read."""
        if session.offer.trace is None:
            return None
        try:
            with session.look("recordings"):
                return session.rows(queries.RECORDINGS)
        except LookRefused as ex:
            self.notes["no_recordings"] = f"recordings of sql_trace were not read: {ex}"
            return None

    def _add_recordings(self, batch: Batch, found: list[tuple[Any, ...]]) -> None:
        """Add those that are new. A server that was restarted begins with number 1 again."""
        new = [row for row in found if (row[0], row[3]) not in self._recordings]
        columns = _columns("recordings", new)
        if new:
            columns["started"] = pa.array(columns["started"], pa.timestamp("us", "UTC"))
        batch.add("recordings", columns, self.interval(0, SAMPLED), len(new))
        # what was given up or has made way does not come back
        self._recordings = {(row[0], row[3]) for row in found}
        known = sorted(self._recordings)
        batch.readings["recordings"] = pa.table(
            {
                name: pa.array([each[place] for each in known], pa.int64())
                for place, name in enumerate(("number", "started_us"))
            }
        )

    def check(self, session: ServerSession) -> Batch:
        """Check the settings, and what observes; that brings no rows."""
        self.findings.check(session)
        return Batch()

    def evaluate(self, session: ServerSession) -> Batch:
        """What slows the server: findings that open, change and end."""
        batch = Batch()
        changes = self.findings.evaluate(session)
        interval = self.interval(round(EVALUATION_S * 1e9), SAMPLED)
        server_findings.add(batch, interval, changes)
        if changes:
            batch.readings[server_findings.PART] = self.findings.reading()
        return batch

    def refused(self, kind: str, since_us: int, why: str) -> Batch:
        """A row of `gaps`: something could not be read."""
        batch = Batch()
        missed_ns = max(0, time.time_ns() - 1000 * since_us)
        batch.gap(self.interval(missed_ns, EXACT), WatchGap(kind, since_us, shortened(why)))
        return batch


def _columns(table: str, rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Rows as the columns of a table of the spool, in their order there."""
    return dict(zip(TABLES[table].own_columns, map(list, zip(*rows, strict=True)), strict=False))


def _waited_s(grown: CounterTable) -> dict[str, float]:
    """Active time of clients by event, s, as samples name it."""
    keys = grown.keys
    chosen = grown.select(~np.isin(keys["backend_type"], BACKGROUND) & ~keys["idle"].astype(bool))
    found: dict[str, float] = {}
    types, events = chosen.keys["type"].tolist(), chosen.keys["event"].tolist()
    for type_, event, ns in zip(types, events, chosen.sums[:, ACTIVE_NS].tolist(), strict=True):
        if type_:
            label = CPU_TYPE if type_ == CPU_TYPE else f"{type_}/{event}"
            found[label] = found.get(label, 0.0) + max(0, ns) / 1e9
    return found


def _session(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of `queries.SESSIONS` in the order of the spool's columns."""
    now_us, pid, _, role, role_name, database, database_name, application, kind, state = row[:10]
    type_, event, query_id, query_us, xact_us, _, blockers, _ = row[10:]
    ages = (None if us is None else now_us - us for us in (query_us, xact_us))
    who = (pid, role, role_name, database, database_name, application, kind, state)
    return (*who, type_, event, query_id, *ages, blockers)


def activity_difference(first: Array, last: Array) -> Array:
    """What databases did between two matrices of OID, time of the reset, counters, sessions.

    A database that is new, or whose counters were reset or fell (as in a crash), counts from zero.
    Returns rows of OID, counters, sessions; those without any change are left out but for the
    first.
    """
    both = np.concatenate([first[:, :2], last[:, :2]])
    codes = codes_of({"database": both[:, 0], "reset": both[:, 1]})
    _, in_first, in_last = np.intersect1d(
        codes[: len(first)], codes[len(first) :], return_indices=True
    )
    remained = np.all(last[in_last, 2:-1] >= first[in_first, 2:-1], axis=1)
    in_first, in_last = in_first[remained], in_last[remained]
    counts = last[:, 2:-1].copy()
    counts[in_last] -= first[in_first, 2:-1]
    grown = np.column_stack([last[:, 0], counts, last[:, -1]])
    changed = np.any(counts != 0, axis=1)
    changed[:1] = True
    return grown[changed]
