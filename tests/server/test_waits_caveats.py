"""`pgtare waits` says what it does not see: sessions not captured, resets, its own part."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from pgtare.errors import UsageError
from pgtare.postgres import run_queue
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.wait_counters import rates
from pgtare.postgres.wait_counters.model import Snapshot
from pgtare.postgres.wait_counters.reader import open_reader
from tests.commands import pgtare, refused
from tests.loads import asleep, during
from tests.sessions import Connection, eventually, one, role, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture
def computing(watched: Connection) -> Iterator[Connection]:
    """A session that computes without end, until the test is done."""
    watched.execute("SET statement_timeout = '60s'")

    def compute() -> None:
        with pytest.raises(Exception, match="cancel"):
            watched.execute("DO $$ BEGIN LOOP END LOOP; END $$")

    with during(compute):
        yield watched
        watched.cancel()


def top(timed: Cluster) -> dict[str, object]:
    done = pgtare("waits", "top", "--interval", "1s", "--json", "--dsn", timed.dsn())
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_time_on_a_processor_is_counted_where_all_sessions_are(
    timed: Cluster, computing: Connection
) -> None:
    found = top(timed)
    assert (found["on_cpu_by"], found["notes"]) == ("counted", [])
    # who looks can be without a processor between two clocks
    assert found["on_cpu"] == pytest.approx(1, abs=0.5)
    assert isinstance(found["run_queue"], float)
    assert found["run_queue"] < 1.3


def test_the_kernels_time_in_the_run_queue_is_read() -> None:

    assert run_queue.run_queue_ns([os.getpid(), 2**22 + 1]).keys() == {os.getpid()}
    assert not run_queue.is_local("db.example.org", os.getpid())
    assert not run_queue.is_local("/", os.getpid())  # no server


def test_sessions_that_are_not_captured_are_reported(timed: Cluster, computing: Connection) -> None:
    with session(timed, options="-c wait_event_timing.capture=off"):
        found = top(timed)
        assert "1 of 2 client sessions is not captured" in str(found["notes"])
        assert (found["on_cpu_by"], found["hides_much"]) == ("counted", True)
        done = pgtare("waits", "top", "--interval", "0.5s", "--dsn", timed.dsn())
        assert "note: 1 of 2 client sessions" in done.stdout
        assert "%" not in done.stdout
        done = pgtare("waits", "sessions", "--json", "--dsn", timed.dsn())
        assert "1 of 2 client sessions" in done.stderr
        json.loads(done.stdout)


def test_a_reset_of_one_process_is_no_negative_time(timed: Cluster, observer: Connection) -> None:
    with session(timed) as other, open_reader(timed.dsn()) as reader:
        pid = other.info.backend_pid
        for _ in range(5):
            other.execute("SELECT pg_sleep(0.02)")
        before = reader.snapshot()
        assert one(observer, "SELECT wait_event_timing_reset(%s)", pid)
        eventually(lambda: _was_reset(other, observer))
        with pytest.raises(UsageError, match="reset"):
            rates.profile(before, reader.snapshot())


def _was_reset(other: Connection, observer: Connection) -> bool:
    other.execute("SELECT 1")
    query = (
        "SELECT coalesce(sum(waits), 0) FROM pg_stat_wait_event_timing WHERE pid = %s AND "
        "wait_event = 'PgSleep'"
    )
    return int(one(observer, query, other.info.backend_pid)) == 0


def test_the_reader_leaves_no_trace_of_its_own(timed: Cluster, observer: Connection) -> None:
    """Its options must keep those of the connection string, and its waits must not count."""
    query = (
        "SELECT coalesce(sum(waits), 0) FROM pg_stat_wait_event_timing_system "
        "WHERE backend_type = 'client backend'"
    )
    observer.execute("SET wait_event_timing.capture = off")
    observer.execute("SELECT 1")
    start = one(observer, query)
    with session(timed, options="-c wait_event_timing.capture=off"):
        pass  # authentication comes before the options
    count = one(observer, query)
    dsn = timed.dsn(options="-c work_mem=5MB")
    with open_reader(dsn) as reader:
        assert reader.rows("SHOW work_mem") == [("5MB",)]
        reader.snapshot()
    assert one(observer, query) - count <= count - start + 1


def test_a_user_without_rights_reads_and_is_reported(timed: Cluster, observer: Connection) -> None:
    with role(observer, "reader_only"):
        done = pgtare("waits", "top", "--interval", "0.5s", "--dsn", timed.dsn(user="reader_only"))
        assert done.returncode == 0, done.stderr
        assert "note: only part of the server can be seen" in done.stdout


def test_a_user_who_may_not_use_the_schema_is_shown_the_grant(
    timed: Cluster, observer: Connection
) -> None:
    with role(observer, '"shut out"') as schema:
        open_to_all = one(observer, "SELECT has_schema_privilege('public', %s, 'USAGE')", schema)
        observer.execute(f'REVOKE USAGE ON SCHEMA {schema} FROM PUBLIC, "shut out"'.encode())
        try:
            message = refused("waits", "sessions", "--dsn", timed.dsn(user="shut out"))
        finally:
            if open_to_all:
                observer.execute(f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC".encode())
    assert f'a superuser has to run: GRANT USAGE ON SCHEMA {schema} TO "shut out";' in message


def test_a_user_without_rights_has_others_waits_under_way(
    timed: Cluster, observer: Connection, watched: Connection
) -> None:
    with (
        role(observer, "reader_of_sums"),
        asleep(watched),
        open_reader(timed.dsn(user="reader_of_sums")) as own,
    ):
        eventually(lambda: _sleeps_ms(own.snapshot()) > 0)
        before = own.snapshot()
        time.sleep(0.5)
        found = rates.profile(before, own.snapshot())
    (sleeping,) = [rate for rate in found.events if rate.event.name == "PgSleep"]
    assert sleeping.waits == 0  # it has not ended
    # who looks can be without a processor between two clocks
    assert sleeping.active == pytest.approx(1, abs=0.5)
    assert "waits by event are those of all sessions" in found.notes[0]


def _sleeps_ms(snapshot: Snapshot) -> float:
    return sum(row.counters.running_ms for row in snapshot.events if row.event.name == "PgSleep")
