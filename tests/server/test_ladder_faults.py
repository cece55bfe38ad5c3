"""Studies whose servers get lost or stuck: what was measured is kept, the rest is done later."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.registry import servers_directory
from pgtare.weighing.ladder.directory import Directory
from tests.commands import failed, pgtare, read, start_pgtare
from tests.ladder_studies import STUDY, backend_below, wait_while_running, write

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]


def _directory_of(postmaster: int) -> Path:
    return Path(psutil.Process(postmaster).cwd()).parent


def _ended(process: subprocess.Popen[str], status: int) -> str:
    stdout, stderr = process.communicate(timeout=240)
    done = subprocess.CompletedProcess([], process.returncode, stdout, stderr)
    return failed(done, status)


def test_a_study_whose_servers_are_lost_leaves_the_rest_for_later(
    tmp_path: Path, wheel: Binaries
) -> None:
    """As by a reboot that empties a temporary file system, or somebody who tidies up."""
    study, out = write(tmp_path, STUDY.replace("rounds = 2", "rounds = 4")), tmp_path / "out"
    directory = Directory(out)
    process = start_pgtare("ladder", study, "--quick", "--out", out)
    wait_while_running(lambda: directory.begun and len(directory.runs()) >= 2, process)
    _, postmaster = wait_while_running(lambda: backend_below(process.pid), process)
    home = _directory_of(postmaster)
    assert home.parent == servers_directory()
    while home.exists():  # the server takes files away as well
        shutil.rmtree(home, ignore_errors=True)
    message = _ended(process, 1)
    assert "4 runs in a row could not be made" in message
    assert "they are left for when the study goes on" in message
    runs = directory.runs()
    assert len(runs) >= 2
    assert all(run.made for run in runs.values())
    assert not psutil.pid_exists(postmaster)

    done = pgtare("ladder", "resume", out, timeout=170)
    assert done.returncode == 0, done.stderr
    assert len(directory.runs()) == 1 + 4 * 3
    (workload,) = read(out / "result.json")["workloads"]
    assert len(workload["dropped"]) <= 1
