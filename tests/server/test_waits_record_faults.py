"""`pgtare waits record` that is killed, finds nobody, or has no room: nobody stays traced."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.server.cluster import Cluster
from tests.server.waits_tools import Connection, eventually, one, session
from tests.server.weigh_tools import failed, in_process, start_pgtare

pytest_plugins = ["tests.server.fix_waits"]
pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TRACED = "SELECT count(*) FROM pg_stat_wait_event_timing_sessions WHERE capture = 'trace'"
slowly_on_15 = pytest.mark.parametrize(
    "timed",
    ["waits18", pytest.param("waits15", marks=[pytest.mark.debian, pytest.mark.slow])],
    indirect=True,
)


@contextlib.contextmanager
def no_room(size: str) -> Iterator[Path]:
    """A file system of that size."""
    path = Path(tempfile.mkdtemp(prefix="pgtare-small-", dir="/var/tmp"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "pgtare-test", path]
    try:
        if subprocess.run(command, check=False).returncode != 0:
            pytest.skip("cannot mount a small file system here")
        try:
            yield path
        finally:
            subprocess.run(["umount", path], check=True)
    finally:
        shutil.rmtree(path)


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
def test_a_full_disk_ends_both_recorders_with_1(
    timed: Cluster, as_root: None, observer: Connection
) -> None:
    with no_room("16k") as place, session(timed) as client:
        recorder = start_pgtare(
            "waits", "record", place / "r", "--all", "--duration", "4s", "--dsn", timed.dsn()
        )
        until = time.monotonic() + 60
        while recorder.poll() is None and time.monotonic() < until:
            client.execute("SELECT pg_sleep(0.0001) FROM generate_series(1, 500)")
        out, err = recorder.communicate(timeout=30)
        assert recorder.returncode == 1, (out, err)
        assert "Traceback" not in err
        assert err.strip().count("pgtare: ") == 1, err
        assert one(observer, TRACED) == 0
