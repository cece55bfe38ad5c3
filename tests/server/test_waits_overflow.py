"""More wait events than there is room for, and events that nobody has given a name."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.cluster import Cluster
from tests.module_sources import write_waiter
from tests.servers import serving
from tests.sessions import eventually, one, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Numbers of class IO that no server uses.
UNKNOWN = 0x0A000000 + 1000
ROOM = 159


@pytest.fixture(scope="module")
def waiter_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module that waits in any event."""
    return write_waiter(tmp_path_factory.mktemp("waiter"))


@pytest.fixture(scope="module")
def waiting(each_server: Binaries, waiter_source: Path) -> Iterator[Cluster]:
    library = build_cached(each_server, "waiter", waiter_source).library
    with serving(each_server) as cluster:
        with session(cluster) as connection:
            connection.execute(
                f"CREATE FUNCTION wait_in_numbers(int, int) RETURNS void "
                f"LANGUAGE c AS '{library}';"
                f"CREATE FUNCTION wait_in_named(cstring) RETURNS void "
                f"LANGUAGE c AS '{library}'".encode()
            )
        yield cluster


MINE = "SELECT overflows, events FROM wait_event_timing_sessions() WHERE pid = %s"


def test_events_without_room_are_counted(waiting: Cluster) -> None:
    with session(waiting) as full, session(waiting) as observer:
        pid = full.info.backend_pid
        full.execute("SELECT wait_in_numbers(%s, 200)", (UNKNOWN,))
        ((overflows, events),) = rows(observer, MINE, pid)
        assert events == ROOM
        # some events were the session's own
        assert 200 - ROOM < overflows < 200 - ROOM + 20
        query = (
            "SELECT sum(waits)::int FROM pg_stat_wait_event_timing WHERE pid = %s "
            "AND wait_event = 'Other'"
        )
        assert one(observer, query, pid) == overflows
        assert one(observer, "SELECT overflows FROM wait_event_timing_info()") >= overflows
        # events that have their place count on
        before = one(observer, MINE.replace("overflows, events", "overflows"), pid)
        for _ in range(30):
            full.execute("SELECT wait_in_numbers(%s, 1)", (UNKNOWN,))
        # but for events of its own that it has not met before
        now = one(observer, MINE.replace("overflows, events", "overflows"), pid)
        assert now < before + 30


def test_custom_events_share_the_table(waiting: Cluster) -> None:
    if waiting.binaries.major < 17:
        pytest.skip("events have names of their own from PostgreSQL 17 on")
    with session(waiting) as full, session(waiting) as observer:
        pid = full.info.backend_pid
        full.execute("SELECT wait_in_named(textout('custom ' || i)) FROM generate_series(1, 100) i")
        named = (
            "SELECT count(*) FROM pg_stat_wait_event_timing WHERE pid = %s "
            "AND wait_event_type = 'Extension' AND wait_event LIKE 'custom %%' AND waits = 1"
        )
        assert one(observer, named, pid) == 100
        full.execute("SELECT wait_in_numbers(%s, 100)", (UNKNOWN,))
        assert rows(observer, MINE, pid)[0][0] > 100 + 100 - ROOM - 1
        # the table is full: one more name is counted, and the first still counts
        full.execute("SELECT wait_in_named('custom late'), wait_in_named('custom 1')")
        late = "SELECT waits FROM pg_stat_wait_event_timing WHERE pid = %s AND wait_event = %s"
        assert rows(observer, late, pid, "custom late") == []
        assert one(observer, late, pid, "custom 1") == 2


def test_events_without_a_name_close_no_view(waiting: Cluster) -> None:
    """PostgreSQL 17 and later raise an error for the number of an event that nobody has named."""
    unnamed = 0x07000000 + 120
    with session(waiting) as odd, session(waiting) as observer:
        pid = odd.info.backend_pid
        odd.execute("SET wait_event_timing.capture = trace")
        odd.execute("SELECT wait_in_numbers(%s, 1)", (unnamed,))
        query = (
            "SELECT wait_event FROM pg_stat_wait_event_timing "
            "WHERE pid = %s AND wait_event_type = 'Extension'"
        )
        expected = "???" if waiting.binaries.major >= 17 else "Extension"
        assert (expected,) in rows(observer, query, pid)
        assert rows(observer, "SELECT count(*) FROM wait_event_trace(%s)", pid)
        assert rows(observer, "SELECT wait_event_timing_event(%s)", unnamed)
        # and the session that looked is well
        assert one(observer, "SELECT count(*) > 0 FROM pg_stat_wait_event_timing_system")


def test_totals_without_room_are_counted(waiting: Cluster) -> None:
    """Sessions that ended had more events among them than the table of totals takes."""
    for k in range(8):
        with session(waiting) as full:
            full.execute("SELECT wait_in_numbers(%s, 150)", (UNKNOWN + 1000 + k * 150,))
            pid = full.info.backend_pid
        with session(waiting) as observer:
            eventually(lambda p=pid, o=observer: not rows(o, MINE, p))  # type: ignore[misc]
    with session(waiting) as observer:
        other = one(
            observer,
            "SELECT sum(waits)::int FROM pg_stat_wait_event_timing_system "
            "WHERE backend_type = 'other'",
        )
        assert other > 100
        # most of them of sessions that ended
        assert one(observer, "SELECT overflows FROM wait_event_timing_info()") > 100


def test_numbers_of_events_have_names(waiting: Cluster) -> None:
    """The names of a trace as a set are those behind the numbers of its records."""
    with session(waiting) as traced, session(waiting) as observer:
        traced.execute("SET wait_event_timing.capture = trace")
        traced.execute("SELECT pg_sleep(0.001)")
        pid = traced.info.backend_pid
        data = one(observer, "SELECT records FROM wait_event_trace_drain(%s, 0)", pid)
        numbers = {
            int.from_bytes(data[i + 8 : i + 12], "little")
            for i in range(0, len(data), 32)
            if data[i + 4] == 1
        }
        named = {
            rows(observer, "SELECT * FROM wait_event_timing_event(%s)", number)[0]
            for number in numbers
        }
        assert ("Timeout", "PgSleep", False) in named
        seen = rows(
            observer,
            "SELECT DISTINCT wait_event_type, wait_event FROM wait_event_trace(%s) "
            "WHERE kind = 'wait'",
            pid,
        )
        assert {name[:2] for name in named} == set(seen)
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            observer.execute("SELECT wait_event_timing_event(-1)")
