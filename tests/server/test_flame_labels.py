"""Samples stand under the wait event and the statement of their moment, and under their arm."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from pgtare.observing.flame import labels
from pgtare.observing.trace.capture.arming import Arming
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process, pgtare, refused, start_pgtare
from tests.flame_recordings import needs_perf
from tests.loads import repeating, traffic
from tests.servers import tracing
from tests.sessions import eventually
from tests.small_volume import small_volume

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def _stacks(document: str) -> dict[tuple[str, ...], int]:
    return {tuple(s["frames"]): s["total_ns"] for s in json.loads(document)["stacks"]}


def test_waits_carry_their_event_and_statement(
    timed: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it takes long until sessions are traced, as on a busy machine."""
    needs_perf()
    arm_new = Arming.arm_new

    def slowly(arming: Arming) -> None:
        if not arming.armed:
            time.sleep(3)
        arm_new(arming)

    monkeypatch.setattr(Arming, "arm_new", slowly)
    monkeypatch.setattr(labels, "_TRACE_BEGINS_S", 2.0)  # a session may wait for a processor
    with timed.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS hot")
        connection.execute("CREATE TABLE hot AS SELECT 1 AS id, 0 AS n")

    def update(connection: psycopg.Connection, number: int) -> None:
        with connection.transaction():
            connection.execute("UPDATE hot SET n = n + 1")
            connection.execute("SELECT pg_sleep(0.02)")

    with repeating(timed.dsn(), 3, update):
        done = in_process("flame", "off", "--dsn", timed.dsn(), "--trace", "-d", "2s", "--json")
    assert done.returncode == 0, done.stderr
    found = _stacks(done.stdout)
    locks = {s: ns for s, ns in found.items() if "ProcSleep" in s and s[0] == "backend"}
    sleeps = {s: ns for s, ns in found.items() if any(f.startswith("pg_sleep") for f in s)}
    assert sum(locks.values()) > 1e9
    labelled = sum(
        ns for s, ns in locks.items() if {"wait: Lock/transactionid", "wait: Lock/tuple"} & set(s)
    )
    assert labelled > 0.9 * sum(locks.values()), locks
    assert sum(ns for s, ns in sleeps.items() if "wait: Timeout/PgSleep" in s) > 0.9 * sum(
        sleeps.values()
    )
    statements: Counter[str] = Counter()
    for stack, ns in locks.items():
        for frame in stack:
            if frame.startswith("statement: "):
                statements[frame] += ns
    # one statement waits for the row, and the label is not that of the sleep
    ((name, ns),) = statements.most_common(1)
    assert ns > 0.9 * sum(locks.values())
    assert all(name not in stack for stack in sleeps)


def _traced(cluster: Cluster, duration: str) -> list[str]:
    """The notes on a recording of sessions that wait often."""

    def sleep(connection: psycopg.Connection, number: int) -> None:
        connection.execute("SELECT pg_sleep(0.001) FROM generate_series(1, 100)")

    with repeating(cluster.dsn(), 2, sleep):
        done = in_process(
            "flame", "on", "--dsn", cluster.dsn(), "--trace", "-d", duration, "--json"
        )
    assert done.returncode == 0, done.stderr
    notes: list[str] = json.loads(done.stdout)["notes"]
    return notes


@pytest.mark.slow
def test_traces_never_fill_the_disk(
    timed: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needs_perf("on")
    monkeypatch.setattr(labels, "_LIMITS", Limits(total=20_000))
    notes = [note for note in _traced(timed, "4s") if "Traces of waits ended after" in note]
    assert len(notes) == 1
    assert "reached 19.5 KiB" in notes[0]
    monkeypatch.undo()
    with small_volume("size=1m") as volume:
        monkeypatch.setattr(tempfile, "tempdir", str(volume))
        assert f"{volume}, where traces are kept" in refused(
            "flame on --dsn {} --trace -d 1s", timed.dsn()
        )
        done = in_process("flame", "on", "--dsn", timed.dsn(), "-d", "1s", "--json")
        assert any("512 MiB free" in note for note in json.loads(done.stdout)["notes"])
        assert not list(volume.iterdir())


@pytest.mark.slow
def test_sigterm_while_sessions_begin_their_traces(
    timed: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are returned to their configuration, and what was recorded is removed."""
    needs_perf("on")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start_pgtare("flame on --dsn {} --trace -d 60s", timed.dsn())
    eventually(lambda: list(tmp_path.iterdir()), 60)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_statements_come_from_the_trace_of_calls_where_that_has_them(wheel: Binaries) -> None:
    """A session that only sql_trace traces has no statements in its ring of waits."""
    needs_perf()

    def sleep(connection: psycopg.Connection, number: int) -> None:
        connection.execute("SELECT pg_sleep(0.02)")

    with tracing(wheel, {"sql_trace.level": 8}) as cluster, repeating(cluster.dsn(), 2, sleep):
        done = pgtare("flame", "off", "--dsn", cluster.dsn(), "-d", "2s", "--json")
    assert done.returncode == 0, done.stderr
    assert not [n for n in json.loads(done.stdout)["notes"] if "no statement" in n]
    sleeps = {
        s: ns
        for s, ns in _stacks(done.stdout).items()
        if any(frame.startswith("pg_sleep") for frame in s)
    }
    labelled = sum(
        ns
        for s, ns in sleeps.items()
        if {"wait: Timeout/PgSleep", "statement: SELECT pg_sleep(0.02)"} <= set(s)
    )
    assert labelled > 0.9 * sum(sleeps.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"wait_event_timing.capture": "trace"}, "wait: Timeout/PgSleep"),
        ({"sql_trace.level": 4}, "statement: SELECT pg_sleep(0.02)"),
    ],
    ids=["waits", "calls"],
)
def test_one_of_both_traces_is_enough(
    wheel: Binaries, settings: dict[str, str | int], label: str
) -> None:
    """Sessions that only one module traces: of the other there is no recording."""
    needs_perf()

    def sleep(connection: psycopg.Connection, number: int) -> None:
        connection.execute("SELECT pg_sleep(0.02)")

    with tracing(wheel, settings) as cluster, repeating(cluster.dsn(), 2, sleep):
        done = in_process("flame", "off", "--dsn", cluster.dsn(), "-d", "2s", "--json")
    assert done.returncode == 0, done.stderr
    sleeps = {
        s: ns
        for s, ns in _stacks(done.stdout).items()
        if any(frame.startswith("pg_sleep") for frame in s)
    }
    labelled = sum(ns for s, ns in sleeps.items() if label in s)
    assert labelled > 0.9 * sum(sleeps.values()) > 0


@pytest.mark.slow
def test_without_traces_it_says_so_and_labels_nothing(timed: Cluster) -> None:
    """A session that is between requests at both ends of a recording did not wait in between."""
    needs_perf("on")

    with traffic(timed.dsn(), 2, "SELECT count(*) FROM generate_series(1, 500)"):
        done = pgtare("flame", "on", "--dsn", timed.dsn(), "-d", "2s", "--rate", "499", "--json")
    assert done.returncode == 0, done.stderr
    assert any("--trace" in note for note in json.loads(done.stdout)["notes"])
    found = _stacks(done.stdout)
    assert found
    assert not [s for s in found if any(f.startswith(("wait: ", "statement: ")) for f in s)]


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_recorded(timed: Cluster, tmp_path: Path) -> None:
    needs_perf("on")

    with traffic(timed.dsn(), 1, "SELECT count(*) FROM generate_series(1, 50000)"):
        process = start_pgtare(
            "flame on --postmaster {} -d 600s --folded {}",
            timed.postmaster_pid,
            tmp_path / "on.folded",
        )
        time.sleep(4)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "standard_ExecutorRun" in (tmp_path / "on.folded").read_text()
