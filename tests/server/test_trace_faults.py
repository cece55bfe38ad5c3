"""What happens around a recording: full disks, restarts, kills, many sessions, pools."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.capture.record import TraceRecorder
from pgtare.observing.trace.capture.server import open_server
from pgtare.observing.trace.capture.target import Target
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.tables import Table
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import failed, in_process, start_pgtare, words
from tests.servers import binaries_slowly_on_15, tracing
from tests.sessions import Connection, eventually, one, session
from tests.small_volume import fill, small_volume
from tests.trace_recorder import (
    call_bytes,
    has_streams,
    level_of,
    recording,
    slowly_on_15,
    wait_until_traced,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

CLIENTS = 64
CONNECTIONS = 500
TRACED = "SELECT count(*) FROM pg_stat_sql_trace WHERE ended IS NULL AND level > 0"


@pytest.fixture
def volume(as_root: None) -> Iterator[Path]:
    """A file system of a megabyte."""
    with small_volume("size=1m") as path:
        yield path


def texts(path: Path) -> set[str]:
    """All statements of a recording."""
    found = ledgers.ledger(load(path))
    return {t.text for process in found.processes for t in process.stream.texts.values()}


@pytest.mark.slow
@slowly_on_15
def test_a_full_volume_ends_the_recording_alone(
    tracer: Cluster, app: Connection, onlooker: Connection, volume: Path
) -> None:
    rec = volume / "rec"
    recorder = start_pgtare(
        "trace record {} --dsn {} --reserve 0 --pid {} --json",
        rec,
        tracer.dsn(),
        app.info.backend_pid,
    )
    wait_until_traced(onlooker, app)
    eventually(lambda: has_streams(rec), 30)
    while recorder.poll() is None:
        app.execute(f"SELECT '{os.urandom(5000).hex()}'".encode())
    out, err = recorder.communicate(timeout=60)
    assert recorder.returncode == 1, (out, err)
    (sentence,) = [line for line in err.splitlines() if line.startswith("pgtare: ")]
    assert f"the disk of {volume} is full; {rec} holds what came before" in sentence
    assert f"`pgtare trace profile {rec}`" in sentence
    assert "free some space" in sentence
    summary = json.loads(out)
    assert (summary["stopped_by"], "full" in summary["why"]) == ("space", True)
    app.execute("SELECT 1")
    assert level_of(onlooker, app.info.backend_pid) == 0
    trace = load(rec)
    assert trace.streams
    assert not [damage for damage in trace.damages if not damage.tail]
    # what had been read and had no room is reported, and not among what the file holds
    assert summary["unwritten_bytes"] > 0
    held = sum(len(data) for chunks in trace.streams.values() for _, data in chunks)
    assert summary["call_bytes"] == held
    profile = in_process("trace", "profile", rec)
    assert profile.returncode == 0
    assert f"{summary['unwritten_bytes']:,} bytes of calls" in profile.stderr


@binaries_slowly_on_15
def test_a_restart_of_the_server_in_mid_trace(binaries: Binaries, tmp_path: Path) -> None:
    """It ends the recording, in a sentence; what came before can be read."""
    rec = tmp_path / "rec"
    with tracing(binaries) as cluster:
        with session(cluster) as app, session(cluster) as onlooker:
            recorder = start_pgtare(
                "trace", "record", rec, "--dsn", cluster.dsn(), "--reserve", "0"
            )
            wait_until_traced(onlooker, app)
            app.execute("SELECT 'before the restart'")
            eventually(lambda: rec.exists() and b"before the restart" in call_bytes(rec))
            cluster.restart()
            _, err = recorder.communicate(timeout=60)
        assert recorder.returncode == 1, err
        assert "Traceback" not in err
        assert "holds what came before" in err
        assert "SELECT 'before the restart'" in texts(rec)
        assert "ended early" in in_process("trace", "profile", rec).stderr
        # and nobody is traced any more
        with session(cluster) as onlooker, session(cluster) as app:
            app.execute("SELECT 1")
            assert one(onlooker, TRACED) == 0


@slowly_on_15
def test_a_last_look_that_fails_is_in_the_file(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    """The recorder is asked to stop, and its session on the server has just ended."""
    rec = tmp_path / "rec"
    pid = app.info.backend_pid
    with open_server(tracer.dsn()) as server:
        target = Target(pids=frozenset({pid}))
        recorder = TraceRecorder(server, tracer.dsn(), rec, target, Limits(reserve=0))
        own = server.conn.info.backend_pid

        def stop() -> bool:
            app.execute("SELECT 1")
            if not recorder.writer.taken[Table.STREAM]:
                return False
            onlooker.execute("SELECT pg_terminate_backend(%s, 60000)", (own,))
            return True

        done = recorder.run(60, lambda now: None, stop)
    found = load(rec)
    assert found.end is not None
    (note,) = [note for note in found.notes() if "did last may be missing" in note]
    assert note in done.notes
    app.execute("SELECT 1")
    assert level_of(onlooker, pid) == 0


@slowly_on_15
@pytest.mark.slow
def test_64_clients_when_the_recorder_is_killed(
    tracer: Cluster, wheel: Binaries, onlooker: Connection, tmp_path: Path
) -> None:
    """Its guard gives back all of them while they work, and not one of them notices."""
    script = tmp_path / "script.sql"
    script.write_text("SELECT count(*) FROM pg_am;\nSELECT pg_sleep(0.005);\n")
    pgbench = subprocess.Popen(
        [
            wheel.program("pgbench"),
            *words(
                "-n -c {} -j 2 -T 60 -f {} {}", CLIENTS, script, tracer.dsn(application_name="many")
            ),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rec = tmp_path / "rec"
    recorder = start_pgtare(
        "trace", "record", rec, "--dsn", tracer.dsn(), "--reserve", "0", "--application", "many"
    )
    try:
        eventually(lambda: one(onlooker, TRACED) == CLIENTS, 60)
        eventually(lambda: has_streams(rec), 30)
        # while it is being written, too, it can be read
        assert "has no end" in in_process("trace", "profile", rec).stderr
        os.kill(recorder.pid, signal.SIGKILL)
        recorder.communicate(timeout=20)
        eventually(lambda: one(onlooker, TRACED) == 0, 40)
        assert pgbench.poll() is None
        assert (
            one(onlooker, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many'")
            == CLIENTS
        )
    finally:
        pgbench.send_signal(signal.SIGINT)
        _, err = pgbench.communicate(timeout=30)
        if recorder.poll() is None:
            recorder.kill()
            recorder.communicate(timeout=20)
    assert not [line for line in err.splitlines() if "error" in line.lower()], err
    assert "has no end" in in_process("trace", "profile", rec).stderr
    trace = load(rec)
    assert trace.end is None
    assert not [damage for damage in trace.damages if not damage.tail]
    assert {ring.application for ring in trace.rings.values()} == {"many"}


def test_a_pooled_session_serves_several_applications(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    """Each has the time of its own statements."""
    naps = {"traced-app": 20, "web": 60, "batch": 140}
    rec = tmp_path / "rec"
    took_s = dict.fromkeys([*naps, "local"], 0.0)
    with recording(tracer, rec, "--pid", str(app.info.backend_pid)):
        wait_until_traced(onlooker, app)
        for _ in range(3):
            for name, ms in naps.items():
                app.execute("SELECT set_config('application_name', %s, false)", (name,))
                began = time.monotonic()
                app.execute("SELECT pg_sleep(%s)", (ms / 1000,))
                took_s[name] += time.monotonic() - began
        began = time.monotonic()
        with app.transaction():
            app.execute("SET LOCAL application_name = 'local'")
            app.execute("SELECT pg_sleep(0.05) /*local*/")
        took_s["local"] += time.monotonic() - began
        app.execute("SELECT 'named batch again'")
    done = in_process("trace", "clients", rec, "--merge-by", "application", "--json")
    found = {client["name"]: client for client in json.loads(done.stdout)["clients"]}
    assert set(found) == {*naps, "local"}
    for name, ms in (naps | {"local": 50 / 3}).items():
        # the statement that sets the name waits a little as well
        assert 0.95 * 3 * ms <= found[name]["waited_ns"] / 1e6 <= 1000 * took_s[name] + 10
        assert found[name]["sessions"] == 1
    whole = json.loads(in_process("trace", "profile", rec, "--busy", "--json").stdout)
    assert sum(c["busy_ns"] for c in found.values()) == pytest.approx(whole["total_ns"], rel=1e-9)
    done = in_process("trace", "profile", rec, "--client", "web", "--busy", "--json")
    assert json.loads(done.stdout)["total_ns"] == pytest.approx(found["web"]["busy_ns"], rel=1e-9)


@pytest.mark.slow
def test_500_connections(binaries: Binaries, tmp_path: Path) -> None:
    """Every session's statement is in the recording, and none is traced after it."""
    settings = {
        "max_connections": CONNECTIONS + 20,
        "sql_trace.ring_size": "64kB",
        "wait_event_timing.trace_ring_records": 1024,
    }
    rec = tmp_path / "rec"
    with tracing(binaries, settings) as cluster, contextlib.ExitStack() as stack:
        onlooker = stack.enter_context(session(cluster))
        clients = [
            stack.enter_context(
                psycopg.connect(cluster.dsn(application_name="crowd"), autocommit=True)
            )
            for _ in range(CONNECTIONS)
        ]

        def all_traced() -> bool:
            for client in clients:
                client.execute("SELECT 1")
            return bool(one(onlooker, TRACED) == CONNECTIONS)

        with recording(cluster, rec, "--application", "crowd"):
            eventually(all_traced, 90)
            for number, client in enumerate(clients):
                client.execute(f"SELECT 'statement {number}'".encode())
        for client in clients:
            client.execute("SELECT 1")
        assert one(onlooker, TRACED) == 0
        assert one(onlooker, "SELECT refused FROM pg_stat_sql_trace_info") == 0
        found = load(rec)
        assert not found.damages
        assert {f"SELECT 'statement {number}'" for number in range(CONNECTIONS)} <= texts(rec)
        assert {ring.pid for ring in found.rings.values() if ring.kind == "sql"} == {
            client.info.backend_pid for client in clients
        }


@slowly_on_15
def test_a_disk_without_room_for_calls(
    tracer: Cluster, app: Connection, onlooker: Connection, volume: Path
) -> None:
    """Nothing looks like success: without a call and a wait no recording stays."""
    fill(volume, leave=12 << 10)
    rec = volume / "rec"
    recorder = start_pgtare(
        "trace record {} --dsn {} --reserve 0 --level 4 --application traced-app "
        "--duration 20s --json",
        rec,
        tracer.dsn(),
    )
    while recorder.poll() is None:
        app.execute(f"SELECT '{os.urandom(20_000).hex()}'".encode())
    out, err = recorder.communicate(timeout=60)
    assert recorder.returncode == 1, (out, err)
    assert "Traceback" not in err
    (sentence,) = [line for line in err.splitlines() if line.startswith("pgtare: ")]
    assert "free some space" in sentence
    if json.loads(out)["call_bytes"]:  # a look that found the session before its first statement
        assert f"{rec} holds what came before" in sentence
        assert rec.exists()
    else:
        assert f"nothing was kept in {rec}: the disk of {volume} is full, and no call" in sentence
        assert "trace profile" not in err
        assert not rec.exists()
    assert level_of(onlooker, app.info.backend_pid) == 0


def test_a_disk_that_was_full_before(
    tracer: Cluster, app: Connection, onlooker: Connection, volume: Path
) -> None:
    fill(volume)
    rec = volume / "rec"
    done = in_process("trace", "record", rec, "--dsn", tracer.dsn(), "--reserve", "0")
    message = failed(done, 1)
    assert "nothing was begun: the disk of" in message
    assert "free some space" in message
    assert not rec.exists()
    assert level_of(onlooker, app.info.backend_pid) == 0


@pytest.mark.slow
def test_the_reserve_ends_a_recording_as_a_full_disk_does(
    tracer: Cluster, app: Connection, onlooker: Connection, volume: Path
) -> None:
    rec = volume / "rec"
    recorder = start_pgtare(
        "trace record {} --dsn {} --reserve 700k --pid {}", rec, tracer.dsn(), app.info.backend_pid
    )
    wait_until_traced(onlooker, app)
    eventually(lambda: has_streams(rec), 30)
    while recorder.poll() is None:
        app.execute(f"SELECT '{os.urandom(200).hex()}', pg_sleep(0.001)".encode())
    out, err = recorder.communicate(timeout=60)
    assert recorder.returncode == 1, (out, err)
    assert "less than the reserve of 700 KiB (--reserve); " in err
    assert load(rec).streams
