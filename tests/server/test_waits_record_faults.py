"""`pgtare waits record` that is killed, finds nobody, or has no room: nobody stays traced."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pgtare.seeing.waits import recording as recordings
from pgtare.server.cluster import Cluster
from tests.commands import failed, in_process, start_pgtare
from tests.sessions import Connection, eventually, one, session
from tests.small_volume import small_volume

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TRACED = "SELECT count(*) FROM pg_stat_wait_event_timing_sessions WHERE capture = 'trace'"
slowly_on_15 = pytest.mark.parametrize(
    "timed",
    ["waits18", pytest.param("waits15", marks=[pytest.mark.debian, pytest.mark.slow])],
    indirect=True,
)


@slowly_on_15
def test_sessions_of_a_killed_recorder_are_given_back(
    timed: Cluster, observer: Connection, tmp_path: Path
) -> None:
    with session(timed) as client:
        recorder = start_pgtare("waits", "record", tmp_path / "r", "--all", "--dsn", timed.dsn())
        eventually(lambda: one(observer, TRACED) >= 1, 60)
        recorder.kill()
        recorder.wait(10)
        eventually(lambda: one(observer, TRACED) == 0, 40)
        assert one(client, "SHOW wait_event_timing.capture") == "stats"


@slowly_on_15
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nobody_traced(timed: Cluster, tmp_path: Path, options: list[str]) -> None:
    rec = tmp_path / "r"
    done = in_process("waits", "record", rec, "--duration", "0.3s", "--dsn", timed.dsn(), *options)
    failed(done, 1)
    assert not rec.exists()
    if not options:
        assert "no session was traced" in done.stdout
        assert "waits report" not in done.stdout


@slowly_on_15
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_ends_the_recording_with_1(
    timed: Cluster, as_root: None, observer: Connection, tmp_path: Path, options: list[str]
) -> None:
    """Both recorders end; what had room can be read, and how much had none is reported."""
    with small_volume("size=400k") as place, session(timed) as client:
        rec = place / "r"
        recorder = start_pgtare(
            "waits", "record", rec, "--all", "--duration", "300s", "--dsn", timed.dsn(), *options
        )
        until = time.monotonic() + 300
        while recorder.poll() is None and time.monotonic() < until:
            client.execute("SELECT 1")
        out, err = recorder.communicate(timeout=30)
        assert recorder.returncode == 1, (out, err)
        assert "Traceback" not in err
        (message,) = [line for line in err.splitlines() if line.startswith("pgtare: ")]
        assert f"the disk of {rec} is full; {rec} holds what came before" in message
        assert f"`pgtare waits report {rec}`" in message
        assert "free some space" in message
        assert one(observer, TRACED) == 0
        found = recordings.load(rec)
        assert found.stopped_by == "space"
        held = sum(len(part["kind"]) for part in recordings.parts(rec))
        assert held == found.records > 0
        assert found.unwritten > 0
        if options:
            assert json.loads(out)["stopped_by"] == "space"
        else:
            assert f"{found.unwritten:,} records came before the disk was full" in out
        page = tmp_path / "page.html"
        done = in_process("waits", "report", rec, "--html", page)
        assert done.returncode == 0, done.stderr
        assert "the disk was full" in page.read_text()


@slowly_on_15
def test_a_disk_without_any_room_leaves_no_recording(
    timed: Cluster, as_root: None, observer: Connection
) -> None:
    with small_volume("size=16k") as place, session(timed):
        done = in_process(
            "waits", "record", place / "r", "--all", "--duration", "4s", "--dsn", timed.dsn()
        )
        assert "the disk is full; free some space" in failed(done, 1)
        assert not (place / "r").exists()
        assert one(observer, TRACED) == 0
