"""`pgtare trace grab`: what rings hold, with no recording begun before."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.capture import grab as capture
from pgtare.observing.trace.capture.grab import Grabbed, SessionReach
from pgtare.observing.trace.capture.ring_selection import Start
from pgtare.observing.trace.capture.server import open_server
from pgtare.observing.trace.capture.target import Target
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.cluster import Cluster
from tests.commands import failed, in_process
from tests.loads import during
from tests.sessions import Connection, executed_s, session, until_it_waits
from tests.trace_records import call_texts

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture
def armed(tracer: Cluster) -> Iterator[Connection]:
    """A session that its settings trace, with a small ring, as all of an application's could be."""
    options = "-c sql_trace.level=12 -c sql_trace.ring_size=64kB"
    with session(tracer, application_name="shop", options=options) as client:
        client.execute("SELECT 'the first of all'")
        yield client


def grab(tracer: Cluster, path: Path, target: Target, last_s: float | None = None) -> Grabbed:
    with open_server(tracer.dsn()) as server:
        found = capture.grab(server, path, target, last_s, Limits(reserve=0))
    assert found is not None
    return found


def reach(found: Grabbed, client: Connection) -> SessionReach:
    (reaching,) = [r for r in found.reaches if r.pid == client.info.backend_pid]
    return reaching


def test_all_that_the_ring_holds_is_there_and_adds_up(
    tracer: Cluster, armed: Connection, tmp_path: Path
) -> None:
    asleep_s = executed_s(armed, "SELECT pg_sleep(0.3)")
    taken = grab(tracer, tmp_path / "g", Target(application="shop"))
    assert reach(taken, armed).whole
    assert reach(taken, armed).reach_s >= 0.3
    assert reach(taken, armed).waits
    assert (taken.lost_bytes, taken.lost_waits) == (0, 0)
    book = ledger(load(tmp_path / "g"))
    assert {"SELECT 'the first of all'", "SELECT pg_sleep(0.3)"} <= set(call_texts(book))
    found = profile(book)
    asleep = sum(line.total_ns for line in found.lines if "PgSleep" in line.name)
    assert 0.3 <= asleep / 1e9 <= asleep_s + 0.01


def test_a_ring_that_ran_over_reaches_back_to_its_oldest_record(
    tracer: Cluster, armed: Connection, tmp_path: Path
) -> None:
    begun = time.monotonic()
    for i in range(3000):
        armed.execute("SELECT 'no ' || %s::int", (i,), prepare=True)
    time.sleep(0.5)
    spent = time.monotonic() - begun
    taken = grab(tracer, tmp_path / "g", Target(pids=frozenset({armed.info.backend_pid})))
    grab_s = time.monotonic() - begun - spent
    known = reach(taken, armed)
    assert not known.whole
    assert 0.5 <= known.reach_s <= spent + grab_s
    assert taken.lost_bytes == 0  # nothing was lost that could have been read
    loaded = load(tmp_path / "g")
    book = ledger(loaded)
    assert "SELECT 'the first of all'" not in call_texts(book)
    # each statement still has its text, though that was written before the first call that is left
    assert call_texts(book).count("SELECT 'no ' || $1::int") > 100
    (process,) = [p for p in book.processes if p.leader_pid is None]
    assert not (process.missing[:, 1] > process.begin).any()
    # up to now: the session waits for its client
    assert (process.end - process.begin) / 1e9 == pytest.approx(known.reach_s, abs=0.3 + grab_s)
    assert any("reach back" in note for note in loaded.notes())


def test_waits_that_reach_back_less_far_than_calls_are_counted_as_lost(
    tracer: Cluster, tmp_path: Path
) -> None:
    options = "-c sql_trace.level=12 -c wait_event_timing.trace_ring_records=1024"
    with session(tracer, application_name="busy", options=options) as client:
        client.execute("SELECT 'the first of all'")
        time.sleep(0.5)
        for _ in range(16):  # it sleeps: a busy server finds a client's request there, and no wait
            client.execute("SELECT pg_sleep(0.0001) FROM generate_series(1, 100)")
        taken = grab(tracer, tmp_path / "g", Target(application="busy"))
        assert reach(taken, client).whole
    assert 500 < taken.lost_waits < 5000
    assert sum(load(tmp_path / "g").losses.values()) == taken.lost_waits


def test_only_the_last_seconds(tracer: Cluster, armed: Connection, tmp_path: Path) -> None:
    armed.execute("SELECT 'long ago'")
    time.sleep(4)
    stop = threading.Event()

    def work() -> None:
        """Also while a busy machine takes its time for the command."""
        armed.execute("SELECT 'just now'")
        while not stop.wait(0.1):
            armed.execute("SELECT 'just now'")

    place = ("trace", "grab", tmp_path / "g", "--dsn", tracer.dsn(), "--reserve", "0")
    pid = str(armed.info.backend_pid)
    with during(work):
        done = in_process(*place, "--last", "3s", "--pid", pid)
        stop.set()
    said = rf"^process {pid} \(postgres, shop\): the last [\d.,]+ m?s$"
    assert re.search(said, done.stdout, re.M)
    found = call_texts(ledger(load(tmp_path / "g")))
    assert "SELECT 'just now'" in found
    assert "SELECT 'long ago'" not in found


def test_a_request_that_is_open(
    tracer: Cluster, armed: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    """Also if it began before the time that is asked for, and nothing has come since."""
    began = time.monotonic()
    armed.pgconn.send_query(b"SELECT 'open', pg_sleep(60)")
    until_it_waits(onlooker, armed, "Timeout")
    time.sleep(1.5)
    asked_s = time.monotonic() - began
    taken = grab(tracer, tmp_path / "g", Target(application="shop"), last_s=1)
    grabbed_s = time.monotonic() - began
    armed.cancel()
    while armed.pgconn.get_result() is not None:
        pass
    assert reach(taken, armed).reach_s >= 1.4
    book = ledger(load(tmp_path / "g"))
    assert "SELECT 'open', pg_sleep(60)" in call_texts(book)
    # and so is the wait that goes on, in the execution that goes on
    (asleep,) = [line for line in profile(book).lines if "PgSleep" in line.name]
    assert 1.4 <= asleep.total_ns / 1e9 <= grabbed_s
    (stuck,) = [line for line in profile(book, "statement").lines if "pg_sleep" in line.name]
    assert stuck.total_ns >= asleep.total_ns
    apart_ns = 1e9 * (0.3 + grabbed_s - asked_s)
    assert profile(book).total_ns == pytest.approx(1e9 * reach(taken, armed).reach_s, abs=apart_ns)


def test_a_session_without_waits_is_said_to_be_one(tracer: Cluster, tmp_path: Path) -> None:
    with session(tracer, application_name="bare", options="-c sql_trace.level=4") as client:
        client.execute("SELECT pg_sleep(0.01)")
        assert not reach(grab(tracer, tmp_path / "g", Target(application="bare")), client).waits
        client.execute("SELECT 'last words'")
    taken = grab(tracer, tmp_path / "g2", Target(application="bare"))  # it has ended
    assert taken.sessions == 1
    assert "SELECT 'last words'" in call_texts(ledger(load(tmp_path / "g2")))
    assert any(note.startswith("no waits are known of 1 session") for note in taken.notes)
    assert any(n.startswith("no waits are known") for n in ledger(load(tmp_path / "g")).notes)


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (["--application", "nobody"], 1, "no ring of a matching session holds anything"),
        (["--role", "shpo"], 2, "the server has no role shpo"),
        (["--max-size", "1k"], 1, "nothing was written; choose fewer sessions"),
    ],
)
def test_what_cannot_be_taken_leaves_nothing(
    tracer: Cluster, armed: Connection, tmp_path: Path, options: list[str], status: int, why: str
) -> None:
    done = in_process("trace", "grab", tmp_path / "g", "--dsn", tracer.dsn(), *options)
    assert why in failed(done, status)
    assert not (tmp_path / "g").exists()
    done = in_process("trace", "grab", tracer.data_directory / "g", "--dsn", tracer.dsn())
    assert "lies in the server's data directory" in failed(done, 2)
    assert not (tracer.data_directory / "g").exists()


def test_no_hour_is_lost_as_summer_time_ends(tracer: Cluster) -> None:
    """A ring that is older reaches back as far as it does, in whatever zone the server is."""
    dsn = tracer.dsn(options="-c TimeZone=Europe/Berlin")
    with open_server(dsn) as server:
        ((before, after),) = server.rows(
            "SELECT '2026-10-25 00:30+00'::timestamptz, '2026-10-25 01:30+00'::timestamptz"
        )
    assert after - before == timedelta(hours=1)
    begin = Start(0, 1, 3_600 * 10**9).moment((1, before))
    assert begin.timestamp() == after.timestamp()


@pytest.mark.slow
def test_a_role_sees_what_it_may(
    tracer: Cluster, armed: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    onlooker.execute("CREATE ROLE passer_by LOGIN")
    try:
        dsn = psycopg.conninfo.make_conninfo(tracer.dsn(), user="passer_by")
        done = in_process("trace", "grab", tmp_path / "g", "--dsn", dsn, "--reserve", "0")
        assert done.returncode in (1, 2)
        assert not (tmp_path / "g").exists()
        for grant in re.findall(r"GRANT USAGE ON SCHEMA \w+ TO passer_by", done.stderr):
            onlooker.execute(grant.encode())
        done = in_process("trace", "grab", tmp_path / "g", "--dsn", dsn, "--reserve", "0")
        assert "no ring of a matching session holds anything" in failed(done, 1)
        onlooker.execute("GRANT pg_read_all_stats TO passer_by")
        done = in_process("trace", "grab", tmp_path / "g", "--dsn", dsn, "--reserve", "0")
        assert done.returncode == 0, done.stderr
        assert f"process {armed.info.backend_pid} (postgres, shop): the last" in done.stdout
    finally:
        onlooker.execute("DROP OWNED BY passer_by; DROP ROLE passer_by")
