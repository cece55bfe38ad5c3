"""Studies played by units in one server, on real servers: known effects, evidence, and faults."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from pgtare.kit import parquet
from pgtare.server.binaries import Binaries
from pgtare.weighing.ladder.directory import Directory
from tests.commands import failed, pgtare, read, start_pgtare
from tests.ladder_studies import OPEN, STUDY, backend_below, finish, wait_while_running, write

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: A transaction sleeps as long as this setting says, which no lock makes use of.
SLEEP = "SELECT pg_sleep(extract(epoch FROM current_setting('lock_timeout')::interval));"
TRIALS = 2
SLEEPING = (
    f"""
title = "A known effect"
[protocol]
kind = "units"
rounds = 8
run = "10s"
[analysis]
floor = "ONE"
[quick]
run = "3s"
[quick.units]
trials = {TRIALS}
run = "1s"
"""
    + OPEN
    + """
[[variant]]
name = "ONE"
runtime = { lock_timeout = "1ms" }
[[variant]]
name = "THREE"
runtime = { lock_timeout = "3ms" }
[[variant]]
name = "OTHER"
preload = ["auto_explain"]
[[comparison]]
arm = "THREE"
base = "ONE"
[[comparison]]
arm = "OTHER"
base = "ONE"
[[workload]]
name = "W1"
script = "sleep.sql"
scale = 1
"""
)
CAPTURING = (
    STUDY.replace('name = "W3"', 'name = "W3"\nprotocol = ["rounds", "units"]')
    .replace("[analysis]", "[quick.units]\ntrials = 2\nrun = '2s'\n[analysis]")
    .replace(
        '[[variant]]\nname = "TRA"',
        '[[variant]]\nname = "STA"\npreload = ["wait_event_timing"]\n'
        'runtime = { "wait_event_timing.capture" = "stats" }\ncapture = "stats"\n'
        '[[variant]]\nname = "TRA"',
    )
)


def write_sleeping(where: Path, text: str = SLEEPING) -> Path:
    (where / "sleep.sql").write_text(SLEEP)
    return write(where, text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, wheel: Binaries) -> Path:
    """A quick study of a known effect, run to its end; its output is in a file next to it."""
    return finish(write_sleeping(tmp_path_factory.mktemp("units")))


def test_a_known_effect_is_recovered(finished: Path) -> None:
    output = (finished.parent / "output.txt").read_text()
    assert "3 runs: 1 workload, 2 trials of 1 s, 3 arms in one server, a transaction each" in output
    assert "(the whole study:" in output
    (workload,) = read(finished / "result.json")["workloads"]
    assert (workload["protocol"], workload["rounds_kept"]) == ("units", TRIALS), workload["dropped"]
    (compared,) = workload["compared"]  # the other variant needs a restart
    assert (compared["arm"], compared["metric"]) == ("THREE", "service_us")
    # a mean of sleeps of some hundred transactions, which a busy machine makes longer
    assert compared["absolute"] == pytest.approx(2000, abs=1500)
    assert workload["floor"]["absolute"] == pytest.approx(0, abs=1500)
    means = {rung["variant"]: rung["metrics"] for rung in workload["rungs"]}
    assert means["THREE"]["service_p50_us"] - means["ONE"]["service_p50_us"] == pytest.approx(
        2000, rel=0.25
    )
    assert means["ONE again"]["cpu_us"] > 5


def test_every_transaction_is_kept_with_its_arm(finished: Path) -> None:
    for run in Directory(finished).runs().values():
        if run.step.kind == "run":
            rows = parquet.read(finished / "runs" / f"{run.step.id}.parquet")
            assert len(rows["arm"]) == run.transactions == run.latency_samples
            counts = np.bincount(rows["arm"], minlength=3)
            assert counts.min() > 0.5 * counts.max()


@pytest.mark.slow
def test_a_trial_that_is_missing_is_done_again_and_no_other(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "runs" / "W1-002-trial.json").unlink()
    done = pgtare("ladder", "resume", out)
    assert done.returncode == 0, done.stderr
    assert "2 runs kept, 1 left" in done.stderr
    before, after = Directory(finished).runs(), Directory(out).runs()
    assert {key for key in after if after[key] != before[key]} == {"W1-002-trial"}
    assert after["W1-002-trial"].step == before["W1-002-trial"].step
    assert after["W1-002-trial"].usable, after["W1-002-trial"].failed


def test_a_setting_that_no_session_may_set_is_refused_before_anything_is_run(
    tmp_path: Path, wheel: Binaries
) -> None:
    text = SLEEPING.replace('lock_timeout = "3ms"', 'log_checkpoints = "off"')
    out = tmp_path / "out"
    message = failed(pgtare("ladder", write_sleeping(tmp_path, text), "--quick", "--out", out), 2)
    assert "no session can change log_checkpoints" in message
    assert not Directory(out).runs()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wheel", pytest.param("debian15", marks=[pytest.mark.debian])])
def test_rounds_and_units_stand_side_by_side(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    found: Binaries = request.getfixturevalue(name)
    text = CAPTURING + f'[servers]\nmain = {{ pg_config = "{found.pg_config}" }}\n'
    if name == "wheel":
        text = CAPTURING
    out = tmp_path / "out"
    done = pgtare("ladder", write(tmp_path, text), "--quick", "--out", out, timeout=170)
    assert done.returncode == 0, done.stderr
    result = read(out / "result.json")
    rounds, units = result["workloads"]
    assert (rounds["name"], units["name"]) == ("W3@rounds", "W3@units")
    assert rounds["proven"]
    assert units["proven"]
    assert units["rounds_kept"] == 2, units["dropped"]
    evidence = {rung["variant"]: rung["evidence"] for rung in units["rungs"]}
    for variant, level in (("OFF", "off"), ("STA", "stats"), ("TRA", "trace")):
        assert f"capture was {level} in" in evidence[variant]
    side = {(s["arm"], s["base"]): s["ways"] for s in result["side_by_side"]}
    ways = side["TRA", "OFF"]
    assert [way["protocol"] for way in ways] == ["rounds", "units"]
    assert all(way["se_pct"] > 0 and way["spent_s"] > 2 for way in ways)
    assert "The same comparison by several protocols" in done.stdout


@pytest.mark.slow
def test_a_capture_that_does_not_stick_drops_the_trial(tmp_path: Path, wheel: Binaries) -> None:
    lying = CAPTURING.replace('["rounds", "units"]', '"units"').replace(
        '"wait_event_timing.capture" = "stats"', '"wait_event_timing.capture" = "off"'
    )
    out = tmp_path / "out"
    done = pgtare("ladder", write(tmp_path, lying), "--quick", "--out", out, timeout=170)
    assert done.returncode == 1, done.stderr
    assert "no workload counts" in done.stderr
    assert "STA: capture was never stats in the load's sessions" in done.stderr
    (workload,) = read(out / "result.json")["workloads"]
    assert workload["compared"][0]["verdict"] == "not_verified"


@pytest.mark.slow
def test_interrupted_it_goes_on_and_a_crash_costs_its_trial_only(
    tmp_path: Path, wheel: Binaries
) -> None:
    text = SLEEPING.replace(f"trials = {TRIALS}", "trials = 4")
    study, out = write_sleeping(tmp_path, text), tmp_path / "out"
    directory = Directory(out)
    process = start_pgtare("ladder", study, "--quick", "--out", out)
    wait_while_running(lambda: directory.begun and len(directory.runs()) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "runs are kept" in stderr
    kept = {key: run.started for key, run in directory.runs().items()}

    process = start_pgtare("ladder", "resume", out)
    wait_while_running(lambda: len(directory.runs()) > len(kept), process)
    _, postmaster = wait_while_running(lambda: backend_below(process.pid), process)
    os.kill(postmaster, signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    runs = directory.runs()
    assert {key: runs[key].started for key in kept} == kept
    crashed = [run for run in runs.values() if run.failed]
    assert len(crashed) == 1, [run.failed for run in crashed]
    (workload,) = read(out / "result.json")["workloads"]
    assert [d["round"] for d in workload["dropped"]] == [crashed[0].step.round]
