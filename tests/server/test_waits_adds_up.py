"""An interval's parts add up to its sessions' time, under loads that wait, compute, come and go."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pgtare.postgres.backend_types import is_background
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.wait_counters.model import Snapshot
from pgtare.postgres.wait_counters.rates import profile
from pgtare.postgres.wait_counters.reader import open_reader
from tests.commands import in_process
from tests.sessions import Connection, eventually, one, session
from tests.waits import slowly_on_15

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

INTERVALS = 100
INTERVAL_S = 0.1
SESSIONS = 6
#: What one wait for a lock, and one for the client, can be longer than: several intervals.
LONG_S = 0.35
#: Sessions that stay, once each has begun its work.
AT_WORK = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'at work' "
    "AND query NOT IN ('', 'SET search_path = public, sql_trace, wait_event_timing')"
)


def _working(cluster: Cluster, ended: threading.Event, work: Callable[[Connection], None]) -> None:
    with session(cluster, application_name="at work") as connection:
        while not ended.is_set():
            work(connection)


def _throttled(connection: Connection) -> None:
    """A client that thinks for longer than an interval, as with pgbench -R."""
    connection.execute("SELECT 1")
    time.sleep(LONG_S)


def _sleeping(connection: Connection) -> None:
    """Waits that end in the midst of a statement, and are not put into tables before its end."""
    connection.execute("DO $$BEGIN FOR i IN 1..70 LOOP PERFORM pg_sleep(.004); END LOOP; END$$")


def _locking(connection: Connection) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(4711), pg_sleep(%s)", (LONG_S,))


def _writing(connection: Connection) -> None:
    connection.execute("INSERT INTO added SELECT g, repeat('x', 500) FROM generate_series(1, 50) g")
    connection.execute("SELECT count(*) FROM added WHERE a = 7 AND b < 'y'")
    connection.execute("TRUNCATE added")
    time.sleep(0.01)


def _coming_and_going(cluster: Cluster, ended: threading.Event) -> None:
    while not ended.is_set():
        with session(cluster) as connection:
            connection.execute("SELECT pg_sleep(0.03)")


@contextlib.contextmanager
def load(cluster: Cluster, *, coming: bool) -> Iterator[None]:
    """Six sessions that stay, and those that come and go."""
    ended = threading.Event()
    with session(cluster) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS added (a int, b text)")
    works = [_throttled, _throttled, _sleeping, _locking, _locking, _writing]
    assert len(works) == SESSIONS
    threads = [
        threading.Thread(target=_working, args=(cluster, ended, work), daemon=True)
        for work in works
    ]
    if coming:
        threads.append(
            threading.Thread(target=_coming_and_going, args=(cluster, ended), daemon=True)
        )
    for thread in threads:
        thread.start()
    try:
        with session(cluster) as connection:
            eventually(lambda: one(connection, AT_WORK) == SESSIONS)
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(20)


def grown(before: Snapshot, after: Snapshot) -> tuple[float, dict[str, float]]:
    """ms of the sessions' time, and by event of their waits, as read and not yet rounded up."""
    assert before.timed is not None
    assert after.timed is not None
    ms = sum(
        timed.total_ms - (before.timed[kind].total_ms if kind in before.timed else 0.0)
        for kind, timed in after.timed.items()
        if not is_background(kind)
    )
    found: dict[str, float] = {}
    for sign, snapshot in ((-1, before), (1, after)):
        for row in snapshot.events:
            if not is_background(row.backend_type):
                label = row.event.label
                found[label] = found.get(label, 0.0) + sign * row.counters.spent_ms
    return ms, found


@slowly_on_15
@pytest.mark.parametrize(
    "coming",
    [pytest.param(False, id="staying", marks=pytest.mark.slow), pytest.param(True, id="changing")],
)
def test_the_parts_of_each_interval_add_up(timed: Cluster, coming: bool) -> None:
    with load(timed, coming=coming), open_reader(timed.dsn()) as reader:
        snapshots = [reader.snapshot(texts=False)]
        for _ in range(INTERVALS):
            time.sleep(INTERVAL_S)
            snapshots.append(reader.snapshot(texts=False))
    added_up = 0
    computing = 0.0
    for before, after in itertools.pairwise(snapshots):
        ms, waited = grown(before, after)
        seconds = (after.taken - before.taken).total_seconds()
        # no wait goes back, and none is longer than the time of those that can have waited
        assert min(waited.values()) > -0.001, waited
        assert sum(waited.values()) <= ms + 0.001, (ms, waited)
        if not coming:
            # who looks can be without a processor between its clock and the sessions'
            assert ms / 1000 / seconds == pytest.approx(SESSIONS, rel=0.2)
        found = profile(before, after, idle=True)
        assert found.on_cpu_by == "counted"
        assert found.sessions is not None
        assert found.on_cpu is not None
        parts = found.on_cpu + sum(rate.active for rate in found.events)
        added_up += parts == pytest.approx(found.sessions, abs=1e-6)
        computing += found.on_cpu * seconds
    assert added_up == INTERVALS
    # nobody here computes for long: what waits is not taken for computing
    length = (snapshots[-1].taken - snapshots[0].taken).total_seconds()
    if not coming:
        ms, _ = grown(snapshots[0], snapshots[-1])
        assert ms / 1000 / length == pytest.approx(SESSIONS, rel=0.005)
    # who writes, and those who come and go, compute all the time where they get little of a
    # processor, and the others longer than usual
    assert computing < (3 if coming else 1.2) * length


def on_average(timed: Cluster) -> dict[str, float]:
    """Sessions, and those that are active, as `pgtare waits top` counts them."""
    done = in_process(
        "waits top --interval 0.5s --iterations 3 --idle --json --dsn {}", timed.dsn()
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 3
    for each in found:
        assert each["active"] + each["idle"] == pytest.approx(each["sessions"])
        assert each["active"] > 0
    length = sum(each["duration_s"] for each in found)
    return {
        name: sum(each[name] * each["duration_s"] for each in found) / length
        for name in ("sessions", "active")
    }


def test_top_tells_of_how_many_sessions(timed: Cluster) -> None:
    """One that is forgotten, or counted twice, is a sixth, however often it is looked."""
    wanted = pytest.approx(SESSIONS, rel=0.12)
    with load(timed, coming=False):
        for _ in range(4):  # who looks can be without a processor between two clocks
            found = on_average(timed)
            if found["sessions"] == wanted:
                break
    assert found["sessions"] == wanted
    assert found["active"] < SESSIONS


def until_others_have_ended(connection: Connection, stay: int) -> None:
    """Wait until the server has so many sessions: those of earlier tests may still be there."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    eventually(lambda: one(connection, sessions) == stay)


def test_time_ends_with_an_explained_statement(waits18: Cluster) -> None:
    """In a session that captures nothing else: it would count as computing for as long as it is."""
    off = session(waits18, options="-c wait_event_timing.capture=off")
    with open_reader(waits18.dsn()) as reader, off as connection:
        connection.execute("EXPLAIN (ANALYZE, WAITS) SELECT pg_sleep(0.01)")
        until_others_have_ended(connection, 2)
        snapshots = [reader.snapshot(texts=False)]
        time.sleep(0.3)
        snapshots.append(reader.snapshot(texts=False))
    ms, _ = grown(*snapshots)
    assert ms == 0


def test_time_ends_and_begins_with_capture(timed: Cluster) -> None:
    """A session that is switched off and on counts for as long as its waits are captured."""
    with (
        open_reader(timed.dsn()) as reader,
        session(timed) as connection,
        session(timed, options="-c wait_event_timing.capture=off") as other,
    ):
        switch = "SELECT wait_event_timing_set(%s, %s)"
        pid = connection.info.backend_pid
        until_others_have_ended(other, 3)
        connection.execute("SELECT 1")
        snapshots = [reader.snapshot(texts=False)]
        time.sleep(0.3)
        other.execute(switch, (pid, "off"))
        connection.execute("SELECT 1")  # ends the wait that was captured
        snapshots.append(reader.snapshot(texts=False))
        time.sleep(0.3)
        snapshots.append(reader.snapshot(texts=False))
        other.execute(switch, (pid, "stats"))
        connection.execute("SELECT pg_sleep(0.3)")
        snapshots.append(reader.snapshot(texts=False))
    pairs = itertools.pairwise(snapshots)
    (on, waited_on), (off, waited_off), (again, waited_again) = (grown(a, b) for a, b in pairs)
    lasted = [1000 * (b.taken - a.taken).total_seconds() for a, b in itertools.pairwise(snapshots)]
    assert 300 <= on <= lasted[0] + 0.001
    assert off == 0
    assert 300 <= again <= lasted[2] + 0.001
    assert sum(waited_off.values()) == pytest.approx(0, abs=1e-9)  # ms: sums in another order
    for ms, waited in ((on, waited_on), (again, waited_again)):
        assert sum(waited.values()) <= ms + 0.001
        assert sum(waited.values()) >= 290
