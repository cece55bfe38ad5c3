"""A study played by duet on real servers: its table, its proofs, and going on after an end."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.weighing.ladder.directory import Directory
from tests.commands import pgtare, read
from tests.ladder_studies import BY_DUET, finish, write

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = 2 * 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, wheel: Binaries) -> Path:
    """A quick study by duet, run to its end; its output is in a file next to it."""
    return finish(write(tmp_path_factory.mktemp("duet"), BY_DUET), timeout=240)


def test_it_gives_what_rounds_give(finished: Path) -> None:
    output = (finished.parent / "output.txt").read_text()
    assert "7 runs: 1 workload, 2 duet sets of 3 rounds of 2 s, 3 servers up together" in output
    (workload,) = read(finished / "result.json")["workloads"]
    assert workload["protocol"] == "duet"
    assert workload["proven"], workload["why_not"]
    assert workload["rounds_kept"] == 2, workload["dropped"]
    assert workload["floor"]["arm"] == "OFF again"
    (compared,) = workload["compared"]
    assert compared["metric"] == "latency_p50_us"
    assert compared["effect"]["pct"] is not None
    evidence = {rung["variant"]: rung["evidence"] for rung in workload["rungs"]}
    assert "capture is trace in 1 sessions" in evidence["TRA"]
    assert "capture is off in 1 sessions" in evidence["OFF again"]
    metrics = [rung["metrics"] for rung in workload["rungs"]]
    assert all(m["latency_p99_us"] > m["latency_p50_us"] > 10 for m in metrics)
    assert all(m["cpu_us"] > 5 for m in metrics)
    assert "by duet" in (finished / "report.html").read_text()


def test_the_servers_divide_the_rate_and_keep_every_transaction(finished: Path) -> None:
    directory = Directory(finished)
    rate = directory.rates()["W1 by duet"].rate_tps
    played = [run for run in directory.runs().values() if run.step.kind == "run"]
    assert len(played) == ROUNDS
    for run in played:
        assert run.machine["rate_tps"] == pytest.approx(rate / 3)
        rows = np.load(finished / "runs" / f"{run.step.id}.npz")
        # a server answers in 3 s what was due in them: a Poisson number
        assert run.transactions == pytest.approx(3 * rate, abs=10 * (3 * rate) ** 0.5)
        assert set(rows["cluster"]) == {0, 1, 2}
    for first in (0, 3):
        roles = [run.step.roles for run in played[first : first + 3]]
        assert all({r[cluster] for r in roles} == {"OFF", "TRA", "OFF again"} for cluster in (0, 1))


def test_a_round_that_is_missing_is_played_with_its_roles_and_no_other(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "runs" / "W1-0005-duet.json").unlink()
    assert "6 of 7 runs are done;" in pgtare("ladder", "report", out).stdout
    done = pgtare("ladder", "resume", out)
    assert done.returncode == 0, done.stderr
    assert "6 runs kept, 1 left" in done.stderr
    before, after = Directory(finished).runs(), Directory(out).runs()
    assert {key for key in after if after[key] != before[key]} == {"W1-0005-duet"}
    assert after["W1-0005-duet"].step == before["W1-0005-duet"].step
    assert after["W1-0005-duet"].usable, after["W1-0005-duet"].failed


def test_a_capture_that_does_not_stick_drops_the_round(tmp_path: Path, wheel: Binaries) -> None:
    lying = BY_DUET.replace('"wait_event_timing.capture" = "trace"', '"application_name" = "x"')
    study, out = write(tmp_path, lying), tmp_path / "out"
    done = pgtare("ladder", study, "--quick", "--out", out, timeout=240)
    assert done.returncode == 1, done.stderr
    assert "TRA: capture is not trace in the load's sessions: 1 at off" in done.stderr
    (workload,) = read(out / "result.json")["workloads"]
    assert workload["why_not"] == "fewer than two whole sets were kept"
    assert [d["variants"] for d in workload["dropped"]] == [["TRA"]]
    assert workload["compared"][0]["verdict"] == "not_verified"
