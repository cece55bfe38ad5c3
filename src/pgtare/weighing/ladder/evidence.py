"""What a run must prove: its settings in force, its capture level real, its waits as stated."""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import psycopg

from pgtare.errors import MeasurementError, PgtareError
from pgtare.postgres import own_session
from pgtare.postgres.wait_counters import rates
from pgtare.postgres.wait_counters.model import Counters, Event, EventRow
from pgtare.postgres.wait_counters.reader import Reader, open_reader
from pgtare.weighing.ladder.field_types import percent
from pgtare.weighing.ladder.records import Wait
from pgtare.weighing.ladder.study_sections import Expected, Workload
from pgtare.weighing.ladder.study_servers import WAITS, Serving, carries

_LOAD = "client backend"
LOAD_NAME = "pgtare-load-"
#: So long a session may be in the midst of a change of its counters, in s.
_BUSY_S = 1.0
_INFO = "SELECT hooks, slots_installed, slots_intact FROM {waits}.pg_stat_wait_event_timing_info"


def not_in_force(conn: psycopg.Connection[Any]) -> list[str]:
    """Settings of the configuration file that the server did not take."""
    rows = conn.execute(
        "SELECT name, coalesce(error, 'needs a restart') FROM pg_file_settings"
        " WHERE NOT applied AND (error IS NOT NULL OR name IN"
        " (SELECT name FROM pg_settings WHERE pending_restart))"
    ).fetchall()
    return [f"{name} is not in force: {error}" for name, error in rows]


def counter(conn: psycopg.Connection[Any], query: str, name: str) -> float:
    """The value of a counter of the study. Raises MeasurementError with its name if it has none."""
    try:
        row = conn.execute(query.encode()).fetchone()
    except psycopg.Error as ex:
        raise MeasurementError(f"{name} cannot be read: {own_session.first_line(ex)}") from ex
    (found, *_) = row or (0,)
    try:
        value = float(found or 0)
    except (ValueError, TypeError):
        value = math.nan
    if not math.isfinite(value):
        raise MeasurementError(f"the query of {name} gives {found!r}, which is no number")
    return value


def disturbances(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """What should stay as it is while a run lasts: checkpoints, autovacuum, the log, the server."""
    new = conn.info.server_version >= 170_000
    checkpoints = (
        "(SELECT num_timed + num_requested FROM pg_stat_checkpointer)"
        if new
        else "(SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter)"
    )
    row = conn.execute(
        f"SELECT {checkpoints}::text || ' ' || (SELECT redo_lsn FROM pg_control_checkpoint()),"
        " (SELECT coalesce(sum(autovacuum_count + autoanalyze_count), 0)::text"
        "  FROM pg_stat_all_tables), coalesce(pg_current_logfile(), ''),"
        " pg_postmaster_start_time()::text".encode()
    ).fetchone()
    assert row is not None
    return dict(zip(("checkpoint", "autovacuum", "log rotation", "restart"), row, strict=True))


def read_events(serving: Serving) -> tuple[EventRow, ...] | None:
    """Counters of all waits, None if the module is not there or replaces nothing.

    Raises MeasurementError if a session was busy all the time: its waits would be missing.
    """
    if serving.variant.capture in ("absent", "unhooked"):
        return None
    until = time.monotonic() + _BUSY_S
    with open_reader(serving.cluster.dsn()) as reader:
        while _LOAD in (moment := reader.moment()).unread:
            if time.monotonic() > until:
                raise MeasurementError("a session's waits could not be read: it was stopped")
            time.sleep(_BUSY_S / 100)
    return moment.events


class SessionsLook:
    """A look at what is captured in the load's sessions, halfway through a run; for `with`.

    It connects before the run: beside others, connecting can take as long as a run of a second. A
    variant that captures nothing is looked at as well: the look is a little load.

    captures: how many sessions were at each level. rings: of a trace. trouble: what went wrong.
    """

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.captures = Counter[str]()
        self.rings = 0
        self.trouble = ""
        self._stack = contextlib.ExitStack()
        self._look: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        with self._noting_trouble():
            if self.serving.variant.capture in ("absent", "unhooked"):
                conn = self._stack.enter_context(self.serving.connect())
                self._look = lambda: conn.execute("TABLE pg_stat_activity").fetchall()
            else:
                reader = self._stack.enter_context(open_reader(self.serving.cluster.dsn()))
                conn = reader.conn
                self._look = lambda: self._read(reader)
            self._stack.callback(_hang_up, conn)
        return self

    def __exit__(self, *_: object) -> None:
        with self._noting_trouble():
            self._stack.close()

    def __call__(self) -> None:
        """Look."""
        if not self.trouble:
            with self._noting_trouble():
                self._look()

    @contextlib.contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        try:
            yield
        except (PgtareError, psycopg.Error, OSError) as ex:
            self.trouble = str(ex).strip() or type(ex).__name__

    def _read(self, reader: Reader) -> None:
        for session in reader.sessions():
            if (session.application or "").startswith(LOAD_NAME):
                self.captures[session.capture] += 1
        if self.serving.variant.capture == "trace":
            self.rings = len(reader.rows("SELECT FROM {waits}.wait_event_timing_rings()"))


def _hang_up(conn: psycopg.Connection[Any]) -> None:
    """End a query of another thread that is under way: closing waits for it, however long."""
    if conn.lock.locked():
        with socket.socket(fileno=os.dup(conn.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


def judge_capture(seen: SessionsLook, waited: tuple[Wait, ...]) -> tuple[list[str], list[str]]:
    """What shows that the capture level was what the variant says, and what speaks against it."""
    serving = seen.serving
    level, waits = serving.variant.capture, sum(wait.waits for wait in waited)
    there = carries(serving.cluster, WAITS)
    # whatever the level, so that a look that fails drops no variant more often than another
    if seen.trouble:
        return [], [f"the views did not answer: {seen.trouble}"]
    if level == "absent":
        if there:
            return [], [f"{WAITS} is loaded, though this variant is without it"]
        return [f"{WAITS} is not in the server's memory"], []
    if not there:
        return [], [f"{WAITS} is not in the server's memory"]
    with open_reader(serving.cluster.dsn()) as reader:
        ((hooks, installed, intact),) = reader.rows(_INFO)
    if level == "unhooked":
        if hooks or installed:
            return [], [f"{installed} calls are replaced, though this variant replaces none"]
        return ["loaded, no call replaced"], []
    if not installed or intact != installed:
        return [], [f"only {intact} of {installed} replaced calls are still in place"]
    sessions = sum(seen.captures.values())
    wrong = [f"{n} at {name}" for name, n in seen.captures.items() if name != level]
    if wrong or not sessions:
        state = ", ".join(wrong) or "no session seen"
        return [], [f"capture is not {level} in the load's sessions: {state}"]
    if level == "off" and waits:
        return [], [f"{waits:,} waits were counted, though capture is off"]
    if level != "off" and not waits:
        return [], ["no wait was counted"]
    if level == "trace" and not seen.rings:
        return [], ["no session has a trace ring"]
    state = f"capture is {level} in {sessions} sessions, {intact} calls in place"
    return [f"{state}, {waits:,} waits counted"], []


def profile(
    before: tuple[EventRow, ...] | None,
    after: tuple[EventRow, ...] | None,
    seconds: float,
    clients: int,
    transactions: int,
) -> tuple[Wait, ...]:
    """Where the load's sessions spent a run, the longest waits first."""
    if before is None or after is None:
        return ()
    grown = _grown(before, after)
    waited = sum(c.spent_ms for event, c in grown.items() if not event.idle)
    return tuple(
        Wait(
            event=event.label,
            idle=event.idle,
            waits=c.waits,
            total_ms=c.spent_ms,
            mean_ms=c.total_ms / c.waits if c.waits else None,
            of_sessions=c.spent_ms / (1000 * seconds * clients),
            of_waits=c.spent_ms / waited if waited and not event.idle else 0.0,
            per_transaction=c.waits / max(transactions, 1),
        )
        for event, c in sorted(grown.items(), key=lambda item: -item[1].spent_ms)
        if c.waits
    )


def _grown(before: Iterable[EventRow], after: Iterable[EventRow]) -> dict[Event, Counters]:
    first, last = _of_load(before), _of_load(after)
    return {e: rates.grown(first.get(e, Counters()), c) for e, c in last.items()}


def _of_load(rows: Iterable[EventRow]) -> dict[Event, Counters]:
    found: dict[Event, Counters] = defaultdict(Counters)
    for row in rows:
        if row.backend_type == _LOAD:
            found[row.event] += row.counters
    return found


def missed(workload: Workload, waits: tuple[Wait, ...]) -> list[str]:
    """What of a workload's stated profile was not shown."""
    return [line for expected in workload.profile for line in _missed(expected, waits)]


def remarks(workload: Workload, waits: tuple[Wait, ...]) -> tuple[str, ...]:
    """What of a run's waits was other than stated, which does not drop it.

    A profile is proven before anything counts. A variant that counts no waits cannot be held
    against it, so a gate on waits would drop rounds on account of one side of a comparison only.
    """
    return tuple(missed(workload, waits) if waits else ())


def judge_idle(workload: Workload, idle: float) -> list[str]:
    """What of the headroom, or of the load, that a workload states was not there."""
    idled, reasons = f"the processors idled {percent(round(idle, 3))} of the time", []
    if workload.idle_at_least is not None and idle < workload.idle_at_least:
        reasons.append(f"{idled}, not {percent(workload.idle_at_least)}")
    if workload.idle_at_most is not None and idle > workload.idle_at_most:
        reasons.append(f"{idled}, more than {percent(workload.idle_at_most)}")
    return reasons


def measured(expected: Expected, waits: tuple[Wait, ...]) -> tuple[float, float, float | None]:
    """A profile's figures: share of the time, waits a transaction, mean length in µs."""
    chosen = [wait for wait in waits if _named(expected, wait)]
    share = sum(w.of_waits if expected.of == "waits" else w.of_sessions for w in chosen)
    count = sum(w.waits for w in chosen)
    mean = 1000 * sum(w.waits * (w.mean_ms or 0.0) for w in chosen) / count if count else None
    return share, sum(w.per_transaction for w in chosen), mean


def _named(expected: Expected, wait: Wait) -> bool:
    if expected.event == "*":
        return not wait.idle
    return any(fnmatch.fnmatchcase(wait.event, pattern) for pattern in expected.events)


def _missed(expected: Expected, waits: tuple[Wait, ...]) -> list[str]:
    share, per_transaction, mean = measured(expected, waits)
    name = "all waits" if expected.event == "*" else " and ".join(expected.events)
    what = f"{name}: {percent(round(share, 3))} of the " + (
        "time waited" if expected.of == "waits" else "sessions' time"
    )
    missed = []
    if expected.at_least is not None and share < expected.at_least:
        missed.append(f"{what}, not {percent(expected.at_least)}")
    if expected.at_most is not None and share > expected.at_most:
        missed.append(f"{what}, more than {percent(expected.at_most)}")
    wanted = expected.waits_per_transaction_at_least
    if wanted is not None and per_transaction < wanted:
        missed.append(f"{name}: {per_transaction:.2f} waits a transaction, not {wanted:g}")
    if expected.mean_us_at_least is not None and (mean or 0.0) < expected.mean_us_at_least:
        missed.append(
            f"{name}: {mean or 0:.1f} µs on average, not {expected.mean_us_at_least:g} µs"
        )
    return missed
