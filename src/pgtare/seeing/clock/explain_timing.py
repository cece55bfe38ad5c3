"""Ask a server for a plan, and measure there what TIMING adds to EXPLAIN ANALYZE."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import psycopg
import scipy
from psycopg import sql

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import machine
from pgtare.seeing.clock.plan import Plan, parse_plan
from pgtare.server import pooler
from pgtare.server.own_session import connect, first_line

#: Pairs below which a median has no 95 % interval by signs.
FEWEST_PAIRS = 6
DEFAULT_PAIRS = 15
DEFAULT_TIMEOUT_S = 60.0
_CONTROL = ("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "SET")


@dataclass(frozen=True)
class Median:
    """A median with its 95 % interval by signs; NaN if there are too few values."""

    estimate: float
    lo: float
    hi: float


@dataclass(frozen=True)
class Time:
    """How long one execution took."""

    wall_ms: float
    cpu_ms: float | None
    """With planning and printing, which are alike with TIMING on and off."""


@dataclass(frozen=True)
class Measured:
    """What TIMING was measured to add, from pairs of executions side by side."""

    plan: Plan
    """Of the last execution without TIMING."""
    major: int
    on: tuple[Time, ...]
    off: tuple[Time, ...]
    """As many, pair by pair."""
    interrupted: bool = False

    @property
    def by(self) -> Literal["processor time", "execution time"]:
        """What is compared.

        The session's processor time if it can be seen: on a busy machine time spent waiting
        for a processor stays out. Parallel workers are processes of their own, which it misses.
        """
        alone = not any(node.kind.startswith("Gather") for node in self.plan.root.walk())
        seen = all(time.cpu_ms is not None for time in (*self.on, *self.off))
        return "processor time" if alone and seen else "execution time"

    @property
    def difference_ms(self) -> Median:
        """TIMING ON less OFF, pair by pair."""
        if self.by == "execution time":
            return self.wall_difference_ms
        pairs = zip(self.on, self.off, strict=True)
        return median([(on.cpu_ms or 0) - (off.cpu_ms or 0) for on, off in pairs])

    @property
    def wall_difference_ms(self) -> Median:
        """The same by EXPLAIN's Execution Time, whatever else the machine does."""
        pairs = zip(self.on, self.off, strict=True)
        return median([on.wall_ms - off.wall_ms for on, off in pairs])

    @property
    def off_ms(self) -> Median:
        """The statement without TIMING."""
        if self.by == "execution time":
            return median([time.wall_ms for time in self.off])
        return median([time.cpu_ms or 0 for time in self.off])

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "pairs": len(self.on),
            "interrupted": self.interrupted,
            "by": self.by,
            "difference_ms": dataclasses.asdict(self.difference_ms),
            "execution_difference_ms": dataclasses.asdict(self.wall_difference_ms),
            "without_timing_ms": dataclasses.asdict(self.off_ms),
        }


@dataclass(frozen=True)
class Progress:
    """How far a measurement is."""

    pairs: int
    wanted: int
    seconds: float
    left_s: float


class Explainer:
    """A session that explains one statement, in read-only transactions that are rolled back.

    Read-only transactions refuse to change tables; functions that act outside the database, such
    as dblink's, nothing can hold back.
    """

    def __init__(self, dsn: str, query: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._query = _checked(query)
        if not (math.isfinite(timeout_s) and timeout_s >= 0.001):
            raise UsageError(f"the time limit of a statement must be 1 ms or more, not {timeout_s}")
        self._timeout_s = timeout_s
        self._conn = connect(dsn)
        self.major = self._conn.info.server_version // 10000
        if self.major < 15:
            self._conn.close()
            raise UsageError(f"the server is PostgreSQL {self.major}: 15 or later is needed")

    def close(self) -> None:
        """End the session."""
        self._conn.close()

    @property
    def local(self) -> bool:
        """Whether the server runs on this machine, whose clock was measured."""
        host = self._conn.info.hostaddr or self._conn.info.host
        if not host or host.startswith(("/", "@")) or host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return False

    @property
    def by_counter(self) -> bool | None:
        """Whether the server times by the processor's counter; None before 19, with one clock."""
        if self.major < 19:
            return None
        with self._transaction():
            row = self._run(b"SHOW timing_clock_source")
        # "auto (tsc)" shows what auto has chosen
        return row is not None and "tsc" in row[0]

    def estimate(self) -> Plan:
        """The plan, without running the statement."""
        with self._transaction():
            return self._explain("VERBOSE")

    def measure(
        self,
        pairs: int = DEFAULT_PAIRS,
        tick: Callable[[Progress], None] = lambda progress: None,
        seed: int = 1,
    ) -> Measured:
        """Run the statement with TIMING on and off, in random order within each pair.

        A pair of warm-up comes first. Ctrl-C ends it early and keeps the finished pairs.
        """
        if pairs < FEWEST_PAIRS:
            raise UsageError(f"{FEWEST_PAIRS} pairs or more are needed for an interval")
        rng = random.Random(seed)
        found: list[tuple[Time, Time]] = []
        plan: Plan | None = None
        interrupted = False
        start = time.monotonic()
        try:
            for done in range(-1, pairs):
                times = {}
                for on in rng.sample([True, False], 2):
                    ran, times[on] = self._execute(timing=on)
                    plan = plan if on and plan is not None else ran
                if done >= 0:
                    found.append((times[True], times[False]))
                spent = time.monotonic() - start
                left = spent / (done + 2) * (pairs - done - 1)
                tick(Progress(done + 1, pairs, spent, left))
        except KeyboardInterrupt:
            if len(found) < FEWEST_PAIRS:
                raise
            interrupted = True
        assert plan is not None
        return Measured(
            plan,
            self.major,
            tuple(on for on, _ in found),
            tuple(off for _, off in found),
            interrupted,
        )

    def _execute(self, *, timing: bool) -> tuple[Plan, Time]:
        with self._transaction():
            before = self._cpu_ns()
            plan = self._explain("ANALYZE", "VERBOSE", f"TIMING {'ON' if timing else 'OFF'}")
            after = self._cpu_ns()
        cpu_ms = None if before is None or after is None else (after - before) / 1e6
        return plan, Time(_execution_ms(plan), cpu_ms)

    def _cpu_ns(self) -> int | None:
        """Processor time of the session's process; None if it cannot be seen from here."""
        if not self.local:
            return None
        pid = pooler.backend_pid(self._conn)
        try:
            # in a container the number may be another process's
            if psutil.Process(pid).name() not in ("postgres", "postmaster"):
                return None
        except psutil.Error:
            return None
        times = machine.schedstat(pid)
        return None if times is None else times[0]

    def _explain(self, *options: str) -> Plan:
        head = f"EXPLAIN ({', '.join(options)}, FORMAT JSON) "
        # In the extended protocol, which binary results take, the server refuses a second
        # statement behind the first.
        row = self._run(head.encode() + self._query.encode(), binary=True)
        assert row is not None
        return parse_plan(row[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run(b"BEGIN TRANSACTION READ ONLY")
        try:
            limit = sql.Literal(f"{self._timeout_s * 1000:.0f}ms")
            self._run(sql.SQL("SET LOCAL statement_timeout = {}").format(limit))
            yield
        finally:
            if not self._conn.closed:
                with contextlib.suppress(psycopg.Error):
                    self._conn.execute("ROLLBACK")

    def _run(self, text: bytes | sql.Composed, *, binary: bool = False) -> tuple[Any, ...] | None:
        try:
            got = self._conn.execute(text, binary=binary)
            return got.fetchone() if got.description else None
        except psycopg.errors.QueryCanceled as ex:
            raise MeasurementError(
                f"the statement did not end within {self._timeout_s:g} s: allow it more time"
            ) from ex
        except psycopg.errors.ReadOnlySqlTransaction as ex:
            raise UsageError(
                f"{first_line(ex)}: only statements that change nothing are executed; without"
                " execution the cost can be predicted from the planner's estimates"
            ) from ex
        except psycopg.OperationalError as ex:
            raise MeasurementError(f"the server ended the session: {first_line(ex)}") from ex
        except psycopg.Error as ex:
            raise UsageError(f"the server cannot explain the statement: {first_line(ex)}") from ex


@contextlib.contextmanager
def explainer(dsn: str, query: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[Explainer]:
    """An `Explainer` for `with`."""
    session = Explainer(dsn, query, timeout_s)
    try:
        yield session
    finally:
        session.close()


def measure(
    query: str,
    dsn: str,
    pairs: int = DEFAULT_PAIRS,
    tick: Callable[[Progress], None] = lambda progress: None,
) -> Measured:
    """What TIMING adds to this statement on this server."""
    with explainer(dsn, query) as session:
        return session.measure(pairs, tick)


def median(values: Sequence[float]) -> Median:
    """The median; its interval inverts the sign test, so it asks nothing of the distribution."""
    if len(values) < FEWEST_PAIRS:
        middle = float(scipy.stats.scoreatpercentile(values, 50)) if values else math.nan
        return Median(middle, math.nan, math.nan)
    found = scipy.stats.quantile_test(list(values), p=0.5).confidence_interval(0.95)
    middle = float(scipy.stats.scoreatpercentile(list(values), 50))
    return Median(middle, float(found.low), float(found.high))


def _checked(query: str) -> str:
    text = query.strip()
    if not text:
        raise UsageError("the query is empty: give one statement, as 'SELECT count(*) FROM t'")
    if "\0" in text:
        raise UsageError("the query holds a zero byte, which PostgreSQL cannot take")
    first = text.split(maxsplit=1)[0].rstrip(";").upper()
    if first == "EXPLAIN":
        raise UsageError("give the statement itself: EXPLAIN is put in front of it")
    if first in _CONTROL:
        raise UsageError(f"{first} cannot be explained: give a SELECT or the like")
    return text


def _execution_ms(plan: Plan) -> float:
    if plan.execution_ms is None:
        raise MeasurementError("the server did not tell the time of the execution")
    return plan.execution_ms
