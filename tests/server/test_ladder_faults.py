"""Studies whose servers get lost or stuck: what was measured is kept, the rest is done later."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from pgtare.server.binaries import Binaries
from pgtare.server.registry import servers_directory
from pgtare.weighing.ladder.directory import Directory
from tests.commands import failed, pgtare, read, start_pgtare
from tests.server.test_ladder import STUDY, _backend, _wait_for, write
from tests.server.test_ladder_by_duet import BY_DUET

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]


def _directory_of(postmaster: int) -> Path:
    return Path(os.readlink(f"/proc/{postmaster}/cwd")).parent


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
    _wait_for(lambda: directory.begun and len(directory.runs()) >= 2, process)
    _, postmaster = _wait_for(lambda: _backend(process.pid), process)
    home = _directory_of(postmaster)
    assert home.parent == servers_directory()
    while home.exists():  # the server takes files away as well
        shutil.rmtree(home, ignore_errors=True)
    told = _ended(process, 1)
    assert "4 runs in a row could not be made" in told
    assert "they are left for when the study goes on" in told
    runs = directory.runs()
    assert len(runs) >= 2
    assert all(run.made for run in runs.values())
    assert not Path("/proc", str(postmaster)).exists()

    done = pgtare("ladder", "resume", out, timeout=170)
    assert done.returncode == 0, done.stderr
    assert len(directory.runs()) == 1 + 4 * 3
    (workload,) = read(out / "result.json")["workloads"]
    assert len(workload["dropped"]) <= 1


def test_a_server_of_a_duet_that_is_stuck_costs_its_set_only(
    tmp_path: Path, wheel: Binaries
) -> None:
    study = write(tmp_path, BY_DUET.replace("sets = 2", "sets = 3"))
    out = tmp_path / "out"
    directory = Directory(out)
    process = start_pgtare("ladder", study, "--quick", "--out", out)
    _wait_for(lambda: directory.begun and len(directory.runs()) >= 2, process)
    _wait_for(lambda: list(out.glob(".scratch/*/round")), process)  # the load runs
    _, postmaster = _wait_for(lambda: _backend(process.pid, "pgtare_bench_"), process)
    stopped = [postmaster, *_children(postmaster)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    _ended(process, 0)
    stuck = [run for run in directory.runs().values() if run.failed]
    assert 1 <= len(stuck) <= 2, [run.failed for run in stuck]
    (workload,) = read(out / "result.json")["workloads"]
    assert len(workload["dropped"]) == 1
    assert workload["rounds_kept"] == 2
    assert not any(Path("/proc", str(pid)).exists() for pid in stopped)


def _children(pid: int) -> list[int]:
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in told.split()]
