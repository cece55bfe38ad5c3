"""`pgtare trace record` of waits alone: on servers without sql_trace, and with --waits."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.profile import GROUPINGS, profile
from pgtare.observing.trace.capture import open_waits, server
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.wait_ring import WaitRing, epoch_ns
from tests.commands import failed, in_process, pgtare, refused, start_pgtare, words
from tests.servers import tracing
from tests.sessions import Connection, eventually, one, role, session
from tests.small_volume import small_volume
from tests.waits import on_one_server

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

TRACED = "SELECT count(*) FROM pg_stat_wait_event_timing_sessions WHERE capture = 'trace'"
#: How many recorders are answerable for a session.
OWNERS = """
SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
AND classid = x'70677473'::bigint::oid AND objid = %s::oid AND objsubid = 2
"""


def record(timed: Cluster, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = pgtare("trace", "record", *arguments, "--reserve", "0", "--dsn", timed.dsn())
    assert done.returncode == 0, done.stderr
    return done


@on_one_server
def test_record_keeps_what_a_session_waited_for(
    timed: Cluster, sleeping: Connection, observer: Connection, tmp_path: Path
) -> None:
    out = tmp_path / "recording"
    done = json.loads(record(timed, out, "--duration", "2s", "--json").stdout)
    assert (done["calls"], done["call_bytes"], done["lost_waits"]) == (False, 0, 0)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    book = ledger(load(out))
    assert not book.notes
    pid = sleeping.info.backend_pid
    (process,) = [p for p in book.processes if p.ring.pid == pid]
    (event,) = [e for e, found in book.trace.events.items() if found.name == "PgSleep"]
    sleeps = process.waits.length[process.waits.event == event]
    assert len(sleeps) > 10
    assert np.count_nonzero(sleeps <= 19_000_000) <= 1  # the one under way at the end
    # each within a statement, which is named by pg_stat_statements or by its identifier
    of = (book.entries.component == event) & (book.entries.top >= 0)
    assert (book.calls["query_id"][book.entries.top[of]] != 0).all()
    assert np.count_nonzero(of) >= len(sleeps) - 1
    totals = [sum(line.total_ns for line in profile(book, by).lines) for by in GROUPINGS]
    assert totals == pytest.approx([totals[0]] * len(totals), rel=1e-9)
    found = json.loads(pgtare("trace", "profile", out, "--by", "class", "--json").stdout)
    (timeout,) = [line for line in found["lines"] if line["name"] == "Timeout"]
    # a busy machine ends a recording late, and lets the session begin its sleeps late
    span_ns = process.end - process.begin
    assert 0.25 * span_ns < timeout["total_ns"] < 1.01 * span_ns
    (statement,) = json.loads(pgtare("trace", "statements", out, "--json").stdout)["statements"]
    assert statement["calls"]["execute"]["count"] > 10
    for arguments in (["report", out], ["clients", out], ["export", out, tmp_path / "tables"]):
        assert pgtare("trace", *arguments).returncode == 0
    assert "Active sessions over time" in out.with_name(f"{out.name}.html").read_text()
    assert (tmp_path / "tables" / "calls.parquet").exists()
    # the session is as it was before
    eventually(lambda: one(observer, TRACED) == 0)


@on_one_server
def test_what_settings_trace_is_recorded_with_armed(
    timed: Cluster, watched: Connection, sleeping: Connection, tmp_path: Path
) -> None:
    rec = tmp_path / "none"
    options = ("--duration", "0.5s", "--armed", "--reserve", "0", "--dsn", timed.dsn())
    done = in_process("trace", "record", rec, *options)
    failed(done, 1)
    assert "wait_event_timing.capture = trace" in done.stdout
    assert not rec.exists()


@pytest.mark.slow
@on_one_server
def test_a_clock_that_was_set_forward_cuts_nothing_off(
    timed: Cluster,
    watched: Connection,
    observer: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session is traced since before: its ring counts from the clock as it was then."""
    behind_ns = 3600 * 10**9
    monkeypatch.setattr(
        WaitRing, "started_ns", property(lambda ring: epoch_ns(ring.started) - behind_ns)
    )
    watched.execute("SET wait_event_timing.capture = trace")
    watched.execute("SELECT pg_sleep(0.01)")
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            watched.execute("SELECT pg_sleep(0.02)")

    thread = threading.Thread(target=work)
    thread.start()
    out = tmp_path / "recording"
    options = ("--armed", "--duration", "2s", "--reserve", "0", "--dsn", timed.dsn())
    began = time.monotonic()
    try:
        done = in_process("trace", "record", out, *options)
    finally:
        took_s = time.monotonic() - began
        ended.set()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert "3600 s behind" in done.stdout
    book = ledger(load(out))
    (process,) = [p for p in book.processes if p.ring.pid == watched.info.backend_pid]
    assert 1e9 < process.end - process.begin <= took_s * 1e9
    lines = {line.name: line.total_ns for line in profile(book, "class").lines}
    # its sleeps are short, and after each it may wait for a processor
    assert lines["Timeout"] > 0.4 * (process.end - process.begin)


@on_one_server
def test_a_wait_that_begins_as_waits_are_read_is_not_under_way(
    timed: Cluster, sleeping: Connection, observer: Connection
) -> None:
    class Server:
        """The server, slow to answer: who slept when the time was asked sleeps anew by then."""

        def rows(self, query: str) -> list[tuple[Any, ...]]:
            if "wait_start" in query:
                time.sleep(1)
                query = query.format(waits="public", own=0)
            return observer.execute(query).fetchall()

    now, waits = open_waits.look(cast("server.Server", Server()))
    assert all(wait.started <= now for wait in waits)
    assert sleeping.info.backend_pid not in {wait.pid for wait in waits}


@on_one_server
def test_ctrl_c_ends_a_recording_and_keeps_it(
    timed: Cluster, sleeping: Connection, tmp_path: Path
) -> None:
    out = tmp_path / "recording"
    process = start_pgtare("trace", "record", out, "--reserve", "0", "--dsn", timed.dsn())
    eventually(out.exists)
    time.sleep(2)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    found = load(out)
    assert found.end is not None
    assert found.end["stopped_by"] == "interrupt"
    waits = sum(len(w.start) for w in found.waits.values())
    assert waits > 10
    assert f"1 session, {waits:,} waits" in stdout


@pytest.mark.slow
@on_one_server
def test_losses_are_counted_by_session(timed: Cluster, watched: Connection, tmp_path: Path) -> None:
    watched.execute("SET wait_event_timing.trace_ring_records = 1024")
    watched.execute("SET wait_event_timing.capture = trace")
    out = tmp_path / "recording"
    process = start_pgtare(
        "trace record {} --armed --duration 3s --reserve 0 --dsn {}", out, timed.dsn()
    )
    eventually(out.exists)
    time.sleep(1)
    watched.execute("SELECT wait_event_timing_benchmark(400000)")
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    pid = watched.info.backend_pid
    assert f"process {pid}: " in stdout
    assert "larger rings" in stdout
    found = load(out)
    assert sum(found.losses.values()) > 100_000
    assert any("waits were overwritten unread" in note for note in found.notes())


def test_a_hang_is_recorded(timed: Cluster, observer: Connection, tmp_path: Path) -> None:
    """A session that waits from before the recording to its end makes no trace of its own."""
    with session(timed) as holder, session(timed) as victim:
        holder.execute("SELECT pg_advisory_lock(7)")
        pid = victim.info.backend_pid
        thread = threading.Thread(target=victim.execute, args=("SELECT pg_advisory_lock(7)",))
        thread.start()
        try:
            blocked = "SELECT count(*) FROM pg_stat_wait_event_timing_current WHERE pid = %s"
            eventually(lambda: one(observer, blocked + " AND wait_event_type = 'Lock'", pid))
            out = tmp_path / "recording"
            done = record(timed, out, "--duration", "2s")
            assert "1 session waited throughout" in done.stdout
            book = ledger(load(out))
            (process,) = [p for p in book.processes if p.ring.pid == pid]
            lines = {line.name: line.total_ns for line in profile(book, "class").lines}
            assert lines["Lock"] >= 0.7e9  # a busy machine ends a recording late
            assert (process.end - process.begin) == pytest.approx(lines["Lock"], rel=0.01)
            assert process.calls["query_id"].tolist() != [0]
            (note,) = [note for note in book.notes if "waited throughout" in note]
            assert f"process {pid}" in note
            assert f"blocked by {holder.info.backend_pid}" in note
        finally:
            holder.execute("SELECT pg_advisory_unlock(7)")
            thread.join(20)


@pytest.mark.slow
@on_one_server
def test_a_wait_under_way_at_the_end_is_recorded(
    timed: Cluster, watched: Connection, tmp_path: Path
) -> None:
    out = tmp_path / "recording"
    process = start_pgtare("trace record {} --duration 3s --reserve 0 --dsn {}", out, timed.dsn())
    eventually(out.exists)
    for _ in range(20):
        watched.execute("SELECT pg_sleep(0.02)")
    thread = threading.Thread(target=watched.execute, args=("SELECT pg_sleep(4)",))
    thread.start()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    thread.join(20)
    book = ledger(load(out))
    lines = {line.name: line for line in profile(book).lines}
    assert lines["Timeout/PgSleep"].max_ns > 1e9
    last = book.calls[np.argmax(book.calls["end"])]
    assert last["end"] - last["start"] > 1e9


def test_sessions_of_a_killed_recorder_are_given_back(
    timed: Cluster, observer: Connection, tmp_path: Path
) -> None:
    with session(timed) as client:
        recorder = start_pgtare("trace", "record", tmp_path / "r", "--dsn", timed.dsn())
        eventually(lambda: one(observer, TRACED) >= 1, 60)
        recorder.kill()
        recorder.wait(10)
        eventually(lambda: one(observer, TRACED) == 0, 90)
        assert one(client, "SHOW wait_event_timing.capture") == "stats"


@on_one_server
def test_the_last_of_two_recordings_gives_a_session_back(
    timed: Cluster, sleeping: Connection, observer: Connection, tmp_path: Path
) -> None:
    options = "trace record {} --duration {} --reserve 0 --dsn {}"
    first = start_pgtare(options, tmp_path / "a", "300s", timed.dsn())
    eventually(lambda: one(observer, TRACED) >= 1, 60)
    second = start_pgtare(options, tmp_path / "b", "300s", timed.dsn())
    eventually(lambda: one(observer, OWNERS, sleeping.info.backend_pid) == 2, 60)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert second.poll() is None
    assert one(observer, TRACED) >= 1
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert "another recording" in out
    eventually(lambda: one(observer, TRACED) == 0)


@on_one_server
@pytest.mark.parametrize("options", [[], pytest.param(["--json"], marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_full_disk_ends_the_recording_with_1(
    timed: Cluster, as_root: None, observer: Connection, options: list[str]
) -> None:
    with small_volume("size=400k") as place, session(timed) as client:
        rec = place / "r"
        recorder = start_pgtare(
            "trace",
            "record",
            rec,
            "--reserve",
            "0",
            "--duration",
            "300s",
            "--dsn",
            timed.dsn(),
            *options,
        )
        until = time.monotonic() + 100
        while recorder.poll() is None and time.monotonic() < until:
            client.execute("SELECT 1")
        out, err = recorder.communicate(timeout=30)
        assert recorder.returncode == 1, (out, err)
        assert "Traceback" not in err
        (message,) = [line for line in err.splitlines() if line.startswith("pgtare: ")]
        assert f"the disk of {rec.parent} is full; {rec} holds what came before" in message
        assert f"`pgtare trace profile {rec}`" in message
        assert one(observer, TRACED) == 0
        found = load(rec)
        assert sum(len(w.start) for w in found.waits.values()) > 0
        if options:
            assert json.loads(out)["stopped_by"] == "space"


@on_one_server
def test_rights_are_checked_before_a_directory_is_made(
    timed: Cluster, observer: Connection, tmp_path: Path
) -> None:
    with role(observer, "recorder"):
        out = tmp_path / "recording"
        dsn = timed.dsn(user="recorder")
        arguments = words("trace record {} --duration 0.5s --reserve 0 --dsn {}", out, dsn)
        message = refused(*arguments)
        assert not out.exists()
        grants = message.partition("has to run: ")[2].strip()
        assert grants.count("GRANT ") == 2
        observer.execute(grants.encode())
        # it may, and nobody does anything meanwhile
        assert "so none was traced" in pgtare(*arguments).stdout


@on_one_server
def test_what_only_sql_trace_can_do_is_refused(timed: Cluster, tmp_path: Path) -> None:
    message = refused("trace", "record", tmp_path / "r", "--level", "12", "--dsn", timed.dsn())
    assert "leave out --level" in message
    message = refused("trace", "status", "--dsn", timed.dsn())
    assert "no extension sql_trace" in message


@pytest.mark.slow
@pytest.mark.parametrize("tracer", ["trace18"], indirect=True)
def test_waits_alone_on_a_server_that_has_both(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    out = tmp_path / "recording"
    program = start_pgtare(
        "trace record {} --waits --application {} --duration 2s --reserve 0 --dsn {}",
        out,
        "traced-*",
        tracer.dsn(),
    )
    with session(tracer, application_name="another") as other:
        while program.poll() is None:
            for each in (app, other):
                each.execute("SELECT pg_sleep(0.01)")
    assert program.returncode == 0, program.communicate()
    trace = load(out)
    assert not trace.streams
    assert {ring.pid for ring in trace.rings.values()} == {app.info.backend_pid}
    assert sum(len(w.start) for w in trace.waits.values()) > 20
    eventually(lambda: one(onlooker, TRACED) == 0)


@pytest.mark.slow
def test_calls_alone_on_a_server_without_wait_event_timing(wheel: Binaries, tmp_path: Path) -> None:
    """At level 4, unless one is asked for; a level with waits is refused."""
    with tracing(wheel, others=()) as cluster, session(cluster) as client:
        where = ("--reserve", "0", "--dsn", cluster.dsn())
        out = tmp_path / "recording"
        program = start_pgtare("trace", "record", out, "--duration", "2s", *where)
        while program.poll() is None:
            client.execute("SELECT pg_sleep(0.01)")
        assert program.returncode == 0, program.communicate()
        trace = load(out)
        assert trace.streams
        assert not trace.waits
        assert any("waits were not recorded" in note for note in trace.notes())
        message = refused("trace", "record", tmp_path / "r", "--level", "8", *where)
        assert "levels 8 and 12 need the extension wait_event_timing" in message
        message = refused("trace", "record", tmp_path / "r", "--waits", *where)
        assert "no extension wait_event_timing" in message
