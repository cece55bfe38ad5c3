"""Two recordings of one session, sessions that are given back in mid-recording, and hints."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.observing.trace.file.reader import load
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process, start_pgtare
from tests.sessions import Connection, eventually, one, session
from tests.trace_recorder import (
    call_bytes,
    given_back,
    has_streams,
    level_of,
    recording,
    slowly_on_15,
    wait_until_traced,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180), slowly_on_15]


@pytest.fixture
def app(tracer: Cluster) -> Iterator[Connection]:
    with session(tracer, application_name="shared-app") as client:
        yield client


@contextlib.contextmanager
def started(
    tracer: Cluster, path: Path, app: Connection, *options: str
) -> Iterator[subprocess.Popen[str]]:
    """A recorder of one session that says at its end what it has to say as JSON."""
    process = start_pgtare(
        "trace record {} --dsn {} --reserve 0 --json --pid {}",
        path,
        tracer.dsn(),
        app.info.backend_pid,
        *options,
    )
    try:
        eventually(path.exists)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a recorder printed that is asked to end."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (out, err)
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_recording_that_ends_first_leaves_the_session_to_the_other(
    tracer: Cluster, onlooker: Connection, app: Connection, tmp_path: Path, killed: bool
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with (
        started(tracer, a, app) as first,
        contextlib.ExitStack() as stack,
    ):
        wait_until_traced(onlooker, app)
        second = stack.enter_context(started(tracer, b, app, "--level", "1"))

        def both() -> bool:
            app.execute("SELECT 'both'")
            return has_streams(b)

        eventually(both)
        if killed:
            first.kill()
            first.communicate(timeout=20)
        else:
            ended(first)
        for i in range(4 if not killed else 15):  # its guard does it in its stead
            time.sleep(0.1)
            app.execute(f"SELECT 'later {i}'".encode())
            assert level_of(onlooker, app.info.backend_pid) == 12
        notes = ended(second)["notes"]
    assert all(f"SELECT 'later {i}'".encode() in call_bytes(b) for i in range(4))
    (note,) = notes
    assert "by another recording, at level 12" in note
    assert "--level 1 was left aside" in note
    assert note in load(b).notes()
    eventually(lambda: given_back(onlooker, app))


def test_the_lock_of_a_role_that_could_not_record_keeps_no_session_traced(
    tracer: Cluster, onlooker: Connection, app: Connection, tmp_path: Path
) -> None:
    onlooker.execute("DROP ROLE IF EXISTS nobody_special")
    onlooker.execute("CREATE ROLE nobody_special LOGIN")
    query = "SELECT pg_advisory_lock_shared(%s::int, %s::int)"
    with session(tracer, user="nobody_special") as stranger:
        with started(tracer, tmp_path / "rec", app) as recorder:
            wait_until_traced(onlooker, app)
            stranger.execute(query, (0x70677472, app.info.backend_pid))
            ended(recorder)
        eventually(lambda: given_back(onlooker, app))
    onlooker.execute("DROP ROLE nobody_special")


@pytest.mark.slow
def test_a_session_that_is_given_back_in_mid_recording(
    tracer: Cluster, onlooker: Connection, app: Connection, tmp_path: Path
) -> None:
    """It is asked for again, unless it was set not to be traced."""
    with started(tracer, tmp_path / "rec", app) as recorder:
        wait_until_traced(onlooker, app)
        time.sleep(1)  # the recorder sees it traced, though it may be late
        onlooker.execute("SELECT sql_trace_set(%s, NULL)", (app.info.backend_pid,))
        app.execute("SELECT 1")  # it hears of it, and the recorder may have asked anew by then
        wait_until_traced(onlooker, app)
        app.execute("SELECT 'again'")
        time.sleep(1)
        onlooker.execute("SELECT sql_trace_set(%s, 0)", (app.info.backend_pid,))
        for _ in range(15):
            time.sleep(0.1)
            assert given_back(onlooker, app)
        again, off = ended(recorder)["notes"]
    assert "asked for again, at level 12" in again
    assert "sql_trace_set(..., 0)" in off
    assert b"'again'" in call_bytes(tmp_path / "rec")


def test_a_session_that_is_traced_by_a_setting_keeps_its_level(
    tracer: Cluster, onlooker: Connection, app: Connection, tmp_path: Path
) -> None:
    app.execute("SET sql_trace.level = 4")
    app.execute("SELECT 1")
    with started(tracer, tmp_path / "rec", app) as recorder:
        time.sleep(0.5)
        app.execute("SELECT 'at its level'")
        (note,) = ended(recorder)["notes"]
    assert "by sql_trace.level, at level 4" in note
    assert level_of(onlooker, app.info.backend_pid) == 4
    assert b"'at its level'" in call_bytes(tmp_path / "rec")


def test_statements_without_identifiers_are_reported(
    tracer: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    """At the end of a recording, and among many statements."""
    rec = tmp_path / "rec"
    with session(tracer, options="-c compute_query_id=off") as app:
        process = start_pgtare(
            "trace record {} --dsn {} --reserve 0 --pid {} --level 1",
            rec,
            tracer.dsn(options="-c compute_query_id=auto"),
            app.info.backend_pid,
        )
        wait_until_traced(onlooker, app, 1)
        for i in range(40):  # not literals: names of statements have none
            app.execute(f"SELECT 1 AS c{i}".encode())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "ALTER SYSTEM SET compute_query_id = on; SELECT pg_reload_conf();" in out
    assert "compute_query_id" in in_process("trace", "statements", rec).stderr
    with session(tracer) as app, recording(tracer, rec2 := tmp_path / "2", "--level", "1"):
        wait_until_traced(onlooker, app, 1)
        for i in range(40):
            app.execute(f"SELECT 1 AS c{i}".encode())
    assert rec2.exists()
    assert "compute_query_id" not in in_process("trace", "statements", rec2).stderr


def test_a_session_that_has_ended_holds_no_lock(
    tracer: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    """One for each would fill the server's table of locks in a recording of many short sessions."""
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid::bigint = %s"
    with recording(tracer, tmp_path / "rec"):
        with session(tracer) as client:
            pid = client.info.backend_pid
            wait_until_traced(onlooker, client)
            assert one(onlooker, held, pid) == 1
        eventually(lambda: one(onlooker, held, pid) == 0)
    assert load(tmp_path / "rec").rings
