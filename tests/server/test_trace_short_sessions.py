"""Sessions that end before a reader has seen them: read all the same, or reported."""

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.observing.trace.file.reader import Trace, load
from pgtare.observing.trace.file.tables import NO_RING
from pgtare.postgres.cluster import Cluster
from tests.commands import pgtare, start_pgtare
from tests.sessions import Connection, eventually, one, session
from tests.trace_rings import DATA, KEPT, SMALLEST, end, ring_of, short, since, size, unread
from tests.trace_worker import latest, stopped, with_statement, worker_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MANY = 64


@pytest.fixture
def onlooker(writing: tuple[Cluster, Path]) -> Iterator[Connection]:
    with session(writing[0]) as connection:
        yield connection


def unread_notes(trace: Trace) -> list[str]:
    """Notes of sessions that ended unread."""
    return [note for note in trace.notes() if "ended unread" in note]


@pytest.mark.slow
def test_sessions_that_end_between_two_looks(
    writing: tuple[Cluster, Path], onlooker: Connection
) -> None:
    """Many more than are kept: the worker is woken, and what it misses all the same is counted."""
    cluster, directory = writing
    recording = latest(directory)
    before = unread(onlooker)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(session(cluster)) for _ in range(MANY)]
        pids = {client.info.backend_pid for client in clients}
        for client in clients:
            client.execute("SET sql_trace.level = 1")
            client.execute("SELECT 'brief'")
            client.close()
    with session(cluster) as last:
        last.execute("SET sql_trace.level = 1")
        last.execute("SELECT 'last'")
        trace = with_statement(recording, "SELECT 'last'")
    written = {
        ring.pid
        for number, ring in trace.rings.items()
        if any(b"SELECT 'brief'" in data for _, data in trace.streams.get(number, []))
    }
    missed = since(onlooker, before).sessions
    assert len(written & pids) + missed == MANY
    assert missed <= MANY // 4
    assert trace.losses[NO_RING] == since(onlooker, before).bytes


@pytest.mark.slow
def test_worker_that_comes_too_late(writing: tuple[Cluster, Path], onlooker: Connection) -> None:
    cluster, directory = writing
    recording = latest(directory)
    before, so_far = unread(onlooker), load(recording).losses[NO_RING]
    with stopped(worker_of(recording)):
        for _ in range(KEPT + 4):
            short(cluster, onlooker)
    lost = since(onlooker, before)
    assert lost.sessions >= 4
    eventually(lambda: load(recording).losses[NO_RING] - so_far == lost.bytes)
    assert unread_notes(load(recording))
    subprocess.run(["kill", str(worker_of(recording))], check=True, **cluster.run_as)
    trace = eventually(lambda: load(recording) if load(recording).end else None)
    assert trace.end["unread"]["sessions"] >= lost.sessions
    assert trace.end["unread"]["bytes"] == trace.losses[NO_RING]
    profile = pgtare("trace", "profile", recording)
    assert f"{trace.end['unread']['sessions']} sessions ended unread: " in profile.stderr
    eventually(lambda: latest(directory) != recording)


def test_session_that_the_worker_has_met(
    writing: tuple[Cluster, Path], onlooker: Connection
) -> None:
    """It is read to its end though its trace has made way, and so is not counted."""
    cluster, directory = writing
    recording = latest(directory)
    with session(cluster) as client:
        client.execute("SET sql_trace.level = 1")
        client.execute("SELECT 'met'")
        with_statement(recording, "SELECT 'met'")
        before = unread(onlooker)
        with stopped(worker_of(recording)):
            client.execute("SELECT 'left behind'")
            pid = end(onlooker, client)
            kept = f"SELECT count(*) FROM pg_stat_sql_trace WHERE pid = {pid}"
            while one(onlooker, kept):
                short(cluster, onlooker)
    assert since(onlooker, before).sessions == 0
    with_statement(recording, "SELECT 'left behind'")


def test_recorder_that_comes_too_late(
    writing: tuple[Cluster, Path], onlooker: Connection, tmp_path: Path
) -> None:
    """With the worker held up as well: who reads first, reads for both."""
    cluster, directory = writing
    rec = tmp_path / "rec"
    recorder = start_pgtare(
        "trace", "record", rec, "--dsn", cluster.dsn(), "--reserve", "0", "--armed", "--json"
    )
    eventually(lambda: bool(list(rec.glob("*"))))
    time.sleep(0.5)
    before = unread(onlooker)
    with stopped(worker_of(latest(directory))), stopped(recorder.pid):
        for _ in range(KEPT + 4):
            short(cluster, onlooker)
    lost = since(onlooker, before)
    time.sleep(0.5)
    recorder.send_signal(signal.SIGINT)
    out, err = recorder.communicate(timeout=60)
    assert recorder.returncode == 0, err
    found = json.loads(out)
    assert found["unread_sessions"] >= lost.sessions >= 4
    assert found["unread_records"] >= lost.records
    assert found["unread_bytes"] >= lost.bytes
    assert any("ended unread" in note for note in found["notes"])
    trace = load(rec)
    assert trace.losses[NO_RING] == found["unread_bytes"]
    assert unread_notes(trace) == [note for note in found["notes"] if "ended unread" in note]


def test_ring_that_was_written_over(writing: tuple[Cluster, Path], onlooker: Connection) -> None:
    """The worker passes over it, says so, and goes on writing."""
    cluster, directory = writing
    recording = latest(directory)
    with session(cluster) as client:
        client.execute("SET sql_trace.ring_size = '64kB'")
        client.execute("SET sql_trace.level = 1")
        with stopped(worker_of(recording)):
            for i in range(10):
                client.execute(f"SELECT {i}".encode())
            pid = client.info.backend_pid
            length = size(onlooker, pid)[1]
            with ring_of(pid).open("r+b") as file:
                file.seek(DATA)
                file.write(bytes(SMALLEST))
        eventually(lambda: "is damaged" in cluster.log_path.read_text())
        client.execute("SELECT 'behind the damage'")
        trace = with_statement(recording, "SELECT 'behind the damage'")
    assert trace.end is None
    (number,) = [n for n, ring in trace.rings.items() if ring.pid == pid and ring.kind == "sql"]
    assert 0 < trace.losses[number] <= length
