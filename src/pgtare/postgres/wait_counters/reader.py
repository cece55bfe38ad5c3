"""Reads wait_event_timing's views, in a session whose own waits stay out of the picture."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from pgtare.errors import UsageError
from pgtare.postgres import module_setup, module_versions, pooler, untraced_session
from pgtare.postgres.backend_types import BACKGROUND_SQL
from pgtare.postgres.sql_text import normalised
from pgtare.postgres.wait_counters import steady_clock
from pgtare.postgres.wait_counters.model import (
    Client,
    Counters,
    Event,
    EventRow,
    Losses,
    ReaderClock,
    Session,
    Snapshot,
    Statement,
    StatementRow,
    Timed,
)

# {waits}, {texts}: schemas of wait_event_timing and of pg_stat_statements. {own}: our process; 0
# behind a pooler, where our session is one of the application's as well.
# Rows without an event tell the time of which the others are parts.
_MOMENT = """
SELECT taken, backend_type, wait_event_type, wait_event, idle, waits, calls, total_time, max_time,
       running_time AS running, histogram, skipped
FROM {waits}.wait_event_timing_moment()
"""
# Waits that have ended and those under way are read by one statement: a wait that ends between
# two would be counted twice or not at all.
_BY_PROCESS = """
SELECT pid, backend_type, wait_event_type, wait_event, idle, waits, calls, total_time, max_time,
       0::double precision AS running, histogram
FROM {waits}.pg_stat_wait_event_timing WHERE pid <> {own}
UNION ALL
SELECT pid, backend_type, wait_event_type, wait_event, idle, 0, 0, 0, 0, wait_time, NULL
FROM {waits}.pg_stat_wait_event_timing_current WHERE pid <> {own}
"""
_STATEMENTS = """
SELECT userid, dbid, queryid, wait_event_type, wait_event, idle, waits, calls, total_time,
       max_time, running_ns / 1e6::double precision AS running, histogram, identity, skipped
FROM {waits}.wait_event_timing_statements()
"""
_SESSIONS = """
SELECT s.pid, s.backend_type, s.capture, s.missed, a.usename, a.datname, a.application_name,
       a.state, c.wait_event_type, c.wait_event, c.idle, c.wait_time, c.blocking_pids
FROM {waits}.pg_stat_wait_event_timing_sessions s
LEFT JOIN pg_stat_activity a ON a.pid = s.pid
LEFT JOIN {waits}.pg_stat_wait_event_timing_current c ON c.pid = s.pid
WHERE s.pid <> {own} ORDER BY s.pid
"""
# A session that is "idle" and waits for nothing reads its next request or finishes the last one;
# the state of one that we may not see is null.
_ON_CPU = f"""
SELECT CASE a.state WHEN 'active' THEN coalesce(a.query_id, 0) ELSE 0 END, count(*)
FROM pg_stat_activity a JOIN {{waits}}.pg_stat_wait_event_timing_sessions s USING (pid)
WHERE a.wait_event IS NULL AND a.state IS NOT NULL AND pid <> pg_backend_pid()
  AND a.backend_type NOT IN {BACKGROUND_SQL} AND s.capture <> 'off'
GROUP BY 1
"""
_CLIENTS = """
SELECT pid, a.backend_start, s.capture
FROM pg_stat_activity a
LEFT JOIN {waits}.pg_stat_wait_event_timing_sessions s USING (pid)
WHERE a.backend_type = 'client backend' AND pid <> {own}
"""
_IDENTITY = """
SELECT clock_timestamp(), current_setting('server_version'), pg_postmaster_start_time(),
       stats_reset, to_jsonb(i)
FROM {waits}.pg_stat_wait_event_timing_info i
"""
_SIGHT = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')"
#: For how long a reset under way is waited for: ten times what one takes at most, nearly.
_RESET_LASTS = 10.0
_RESET_PAUSE = 0.05
_CAPTURE_OFF = (
    "wait_event_timing.capture is off in every process, so there is nothing to show: switch it on "
    "with ALTER SYSTEM SET wait_event_timing.capture = 'stats'; SELECT pg_reload_conf();"
)


class Bucket(NamedTuple):
    """The bounds of a histogram's bucket in ms; None: no upper bound."""

    from_ms: float
    to_ms: float | None


class Moment(NamedTuple):
    """All counters at one moment, and by backend type the time that they are parts of.

    unread: backend types that lack a process, as it was busy.
    """

    taken: datetime
    events: tuple[EventRow, ...]
    timed: dict[str, Timed]
    unread: tuple[str, ...] = ()


class Reader:
    """The views of one server.

    any_version: do without the check of versions, to end what another version began.
    """

    def __init__(self, conn: psycopg.Connection[Any], *, any_version: bool = False) -> None:
        self.conn = conn
        self.pooled = pooler.is_pooled(conn)
        with telling():
            self.pid = pooler.backend_pid(conn)
            self._names: dict[str, psycopg.sql.Composable] = {
                "own": psycopg.sql.Literal(0 if self.pooled else self.pid)
            }
            self._find_functions()
            if not any_version:
                module_versions.require(conn, "wait_event_timing")
            ((self.sees_all,),) = self.rows(_SIGHT)

    def rows(self, query: str, *values: object, binary: bool = False) -> list[tuple[Any, ...]]:
        """All rows of a query, in a transaction of its own. {waits}, {texts}, {own} are filled in.

        binary: the values of its columns, so that bytes come as they are.
        """
        text = psycopg.sql.SQL(query).format(**self._names)
        return pooler.rows(self.conn, text, *values, binary=binary)

    def _find_functions(self) -> None:
        """Learn the schemas of the extension and of pg_stat_statements."""
        functions = untraced_session.find_functions(
            self.conn, "wait_event_timing_info", "wait_event_timing_moment", "pg_stat_statements"
        )
        found = {function.name: function.schema for function in functions}
        if "wait_event_timing_info" not in found:
            raise module_setup.missing(
                f"database {self.conn.info.dbname} has no extension wait_event_timing",
                module_setup.remaining_steps(self.conn, ["wait_event_timing"]),
            )
        untraced_session.require_usable(
            function for function in functions if function.name.startswith("wait_event_timing")
        )
        self._names["waits"] = psycopg.sql.Identifier(found["wait_event_timing_info"])
        self.has_texts = "pg_stat_statements" in found
        if self.has_texts:
            self._names["texts"] = psycopg.sql.Identifier(found["pg_stat_statements"])

    def events(self) -> tuple[EventRow, ...]:
        """Counters by backend type and event, since the last reset."""
        return self.moment().events

    def moment(self) -> Moment:
        """Counters by backend type and event, and the time they are parts of, at one moment."""
        found = self.rows(_MOMENT)
        if not found:  # nothing has been captured yet
            return Moment(self.rows("SELECT clock_timestamp()")[0][0], (), {})
        timed = {
            backend_type: Timed(processes=processes, total_ms=total)
            for _, backend_type, kind, _, _, processes, _, total, *_ in found
            if kind is None
        }
        rows = [(None, *row[1:-1]) for row in found if row[2] is not None]
        unread = tuple(row[1] for row in found if row[-1])
        return Moment(found[0][0], _event_rows(rows), timed, unread)

    def require_capture(self) -> None:
        """Raise UsageError, with the remedy, if the waits of no process are captured now."""
        if not any(timed.processes for timed in self.moment().timed.values()):
            raise UsageError(_CAPTURE_OFF)

    def by_process(self) -> tuple[EventRow, ...]:
        """Counters by process and event."""
        return _event_rows(self.rows(_BY_PROCESS))

    def statements(self) -> tuple[StatementRow, ...]:
        """Counters by statement and event."""
        return self._statements()[0]

    def _statements(self) -> tuple[tuple[StatementRow, ...], int]:
        """The same, and how many parts of their table were busy and are lacking."""
        found: dict[tuple[Statement, Event], StatementRow] = {}
        busy = 0
        for row in self.rows(_STATEMENTS):
            userid, dbid, query_id, kind, name, idle, *counters, identity, skipped = row
            if name is None:
                busy = skipped
                continue
            statement, event = Statement(userid or 0, dbid or 0, query_id), Event(kind, name, idle)
            before = found.get((statement, event))
            found[statement, event] = StatementRow(
                statement=statement,
                event=event,
                counters=_counters(counters) + (before.counters if before else Counters()),
                identity=identity,
            )
        return tuple(found.values()), busy

    def sessions(self) -> tuple[Session, ...]:
        """Every process that can be seen."""
        return tuple(
            Session.of_row(
                (*row[:8], Event(*row[8:11]) if row[8] else None, row[11], row[12] or ())
            )
            for row in self.rows(_SESSIONS)
        )

    def on_cpu(self) -> dict[int, int]:
        """How many captured processes work and wait for nothing just now.

        By query identifier (0: none).
        """
        return {int(query_id): int(n) for query_id, n in self.rows(_ON_CPU)}

    def clients(self) -> tuple[Client, ...] | None:
        """Every client session but our own; None if others cannot be seen."""
        if not self.sees_all:
            return None
        return tuple(map(Client.of_row, self.rows(_CLIENTS)))

    def losses(self) -> Losses:
        """What the counters lack since the last reset."""
        return self._losses(self._info())

    def clock_reason(self) -> str:
        """Why waits are timed by this clock, and if it is still trusted."""
        return str(self._info()["clock_reason"])

    def _info(self) -> dict[str, Any]:
        """What the module says of itself, by the names of its columns."""
        info: dict[str, Any] = self.rows(_IDENTITY)[0][4]
        return info

    def _losses(self, info: dict[str, Any]) -> Losses:
        found = {name: info[name] for name in Losses.model_fields}
        found["resets"] //= 2  # their begins and ends
        return Losses(**found)

    def texts(self, wanted: Iterable[int]) -> dict[int, str]:
        """What statements say, by query identifier; empty without pg_stat_statements.

        Of utility statements it has the text as sent, so literals are taken out here.
        """
        if not self.has_texts:
            return {}
        query = "SELECT queryid, query FROM {texts}.pg_stat_statements WHERE queryid = ANY(%s)"
        try:
            found = self.rows(query, sorted(set(wanted)))
        except psycopg.Error:  # there, but not loaded
            self.has_texts = False
            return {}
        return {
            int(query_id): normalised(str(text)) for query_id, text in found if query_id and text
        }

    def buckets(self) -> list[Bucket]:
        """The bounds of the histograms."""
        query = (
            "SELECT from_time, to_time FROM {waits}.pg_stat_wait_event_timing_buckets"
            " ORDER BY bucket"
        )
        return [
            Bucket(low, high if math.isfinite(high) else None) for low, high in self.rows(query)
        ]

    def snapshot(self, *, texts: bool = True) -> Snapshot:
        """All counters now: of no time in which they were being reset, unless that lasts."""
        deadline = time.monotonic() + _RESET_LASTS
        while True:
            ((_, server, started, reset, info),) = self.rows(_IDENTITY)
            clients = self.clients()
            statements, busy = self._statements()
            asked_ns = steady_clock.now_ns()
            moment = self.moment()
            answered_ns = steady_clock.now_ns()
            same = info["resets"] == self._info()["resets"]
            under_way = info["resets"] % 2 == 1
            if (same and not under_way) or time.monotonic() > deadline:
                break
            time.sleep(_RESET_PAUSE)
        wanted = {row.statement.query_id for row in statements} if texts else ()
        return Snapshot(
            taken=moment.taken,
            reader_clock=_clock(answered_ns, answered_ns - asked_ns),
            server=server,
            started=started,
            stats_reset=reset,
            events=moment.events,
            statements=statements,
            texts=self.texts(wanted) if wanted else {},
            clients=clients,
            losses=self._losses(info),
            timed=moment.timed if self.sees_all else None,
            clock_reason=info["clock_reason"],
            unread=moment.unread,
            busy=busy,
        )


def _clock(monotonic_ns: int, answer_ns: int) -> ReaderClock | None:
    """What tells snapshots of one run of this machine how far apart they are."""
    boot = steady_clock.boot()
    if boot is None:
        return None
    return ReaderClock(boot=boot, monotonic_ns=monotonic_ns, answer_ns=answer_ns)


@contextlib.contextmanager
def open_reader(dsn: str) -> Iterator[Reader]:
    """A reader with a session of its own.

    Raises UsageError if the extension is not there or not loaded, VersionMismatch if its version
    is not ours, MeasurementError if the server cannot be reached or stops answering.
    """
    with untraced_session.connect(dsn, [untraced_session.UNTIMED]) as conn, telling():
        yield Reader(conn)


def telling() -> contextlib.AbstractContextManager[None]:
    """Turn the server's errors into a sentence of ours."""
    return untraced_session.telling("connect as a superuser or a member of pg_read_all_stats")


def _event_rows(rows: list[tuple[Any, ...]]) -> tuple[EventRow, ...]:
    sums: dict[tuple[int | None, str, Event], Counters] = defaultdict(Counters)
    for pid, backend_type, kind, name, idle, *counters in rows:
        sums[pid, backend_type, Event(kind, name, idle)] += _counters(counters)
    return tuple(
        EventRow(backend_type=backend_type, event=event, counters=counters, pid=pid)
        for (pid, backend_type, event), counters in sums.items()
    )


def _counters(columns: list[Any]) -> Counters:
    waits, calls, total, longest, running, histogram = columns
    counters = Counters(
        waits=waits, calls=calls, total_ms=total, max_ms=longest, running_ms=max(0.0, running)
    )
    return counters.model_copy(update={"histogram": tuple(histogram)}) if histogram else counters
