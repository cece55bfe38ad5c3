"""Studies on real servers: begun, killed, gone on with, and refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import psycopg
import pytest
from rich.console import Console

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.weighing.ladder.directory import Directory
from pgtare.weighing.ladder.planning import plan
from pgtare.weighing.ladder.run import conduct, watched
from pgtare.weighing.ladder.study_file import parse
from pgtare.weighing.ladder.study_servers import Bench
from tests.commands import (
    PGTARE,
    failed,
    in_process,
    pgtare,
    read,
    refused,
    start_pgtare,
)
from tests.json_documents import documents
from tests.ladder_studies import STUDY, backend_below, finish, wait_while_running, write

# the first test has the study run, which takes half a minute, or minutes on a busy machine
pytestmark = [pytest.mark.server, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, wheel: Binaries) -> Path:
    """A quick study, run to its end; its output is in a file next to it."""
    return finish(write(tmp_path_factory.mktemp("ladder")), timeout=400)


def test_a_quick_study_gives_table_page_and_json(finished: Path) -> None:
    output = (finished.parent / "output.txt").read_text()
    assert "7 runs: 1 workload, 2 rounds of 3 runs of 1 s" in output  # beforehand, with the time
    assert "this takes about" in output
    assert "reach p = 0.5 at best" in output
    result = read(finished / "result.json")
    assert result["schema"] == "pgtare.ladder/1"
    assert result["state"] == "finished"
    (workload,) = result["workloads"]
    assert workload["proven"], workload["why_not"]
    assert workload["rounds_kept"] == 2, workload["dropped"]
    assert workload["floor"]["arm"] == "OFF again"
    evidence = {rung["variant"]: rung["evidence"] for rung in workload["rungs"]}
    assert "capture is trace in 1 sessions" in evidence["TRA"]
    assert "capture is off in 1 sessions" in evidence["OFF"]
    assert all(r["metrics"]["cpu_us"] > 5 for r in workload["rungs"])
    assert all(r["metrics"]["latency_p99_us"] > 10 for r in workload["rungs"])
    directory = Directory(finished)
    run = next(run for run in directory.runs().values() if run.step.kind == "run")
    latencies = np.load(finished / "runs" / f"{run.step.id}.npz")["latency_us"]
    assert len(latencies) == run.latency_samples > 100
    assert latencies.min() > 0
    assert (finished / "report.html").stat().st_size > 100_000


def test_a_study_that_is_done_is_only_reported_again(finished: Path) -> None:
    kept = Directory(finished).runs()
    done = pgtare("ladder", "resume", finished, "--json")
    assert done.returncode == 0, done.stderr
    assert Directory(finished).runs() == kept
    assert "starting every variant" not in done.stderr
    again, first = json.loads(done.stdout), read(finished / "result.json")
    assert again["workloads"] == first["workloads"]
    assert "7 of 7 runs done in " in pgtare("ladder", "status", finished).stdout
    jsonschema.validate(again, documents()[again["schema"]].schema)


@pytest.mark.slow
def test_what_is_missing_is_done_and_no_more(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    directory = Directory(out)
    done_before = directory.runs().values()
    last = max(done_before, key=lambda run: (run.step.round, run.step.position))
    (out / "runs" / f"{last.step.id}.json").unlink()
    (out / "runs" / f"{last.step.id}.npz").unlink()
    assert "6 of 7 runs are done;" in pgtare("ladder", "report", out).stdout
    done = pgtare("ladder", "resume", out)
    assert done.returncode == 0, done.stderr
    assert "6 runs kept, 1 left" in done.stderr
    before, after = Directory(finished).runs(), directory.runs()
    assert after.keys() == before.keys()
    assert {key for key in after if after[key] != before[key]} == {last.step.id}


def _changed(finished: Path, where: Path, **facts: Any) -> Path:
    """A study that lacks its last run, and whose facts are others."""
    out = where / "out"
    shutil.copytree(finished, out)
    kept = json.loads((out / "study.json").read_text())
    (out / "study.json").write_text(json.dumps({**kept, **facts}))
    (out / "runs" / f"{max(Directory(out).runs())}.json").unlink()
    return out


def test_a_study_goes_on_with_its_own_server_alone(finished: Path, tmp_path: Path) -> None:
    (version,) = read(finished / "result.json")["servers"].values()
    assert version.startswith("PostgreSQL 18.")
    out = _changed(finished, tmp_path, servers={"main": "PostgreSQL 18.0"})
    message = refused("ladder", "resume", out)
    assert f"the server main was PostgreSQL 18.0 and is {version};" in message
    assert len(Directory(out).runs()) == 6


def test_a_report_needs_no_server(finished: Path, tmp_path: Path) -> None:
    """But nobody else may run the study if it is to be closed."""
    source = read(finished / "study.json")["source"]
    gone = source + '\n[servers]\nmain = { pg_config = "/nowhere/pg_config" }\n'
    out = _changed(finished, tmp_path, source=gone)
    assert "there is no /nowhere/pg_config" in refused("ladder", "resume", out)
    assert "6 of 7 runs" in in_process("ladder", "status", out).stdout
    with Directory(out).locked():
        assert "being run by another process" in refused("ladder", "report", out, "--close")
    assert not Directory(out).closed
    # the proof is what it lacks
    assert "no workload counts" in failed(in_process("ladder", "report", out, "--close"), 1)
    assert read(out / "result.json")["state"] == "closed"


def test_a_server_that_is_stuck_is_ended_and_started_again(wheel: Binaries) -> None:
    study = parse(STUDY.replace("scale = 2", "scale = 1"), "short.toml")
    with Bench(study) as bench:
        with bench.serve("OFF", study.workload[0]).connect() as conn:
            os.kill(conn.info.backend_pid, signal.SIGSTOP)
            with watched(0.3, bench.kill), pytest.raises(psycopg.OperationalError):
                conn.execute("SELECT 1")
        with bench.serve("TRA", study.workload[0]).connect() as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.slow
def test_killed_and_interrupted_it_goes_on(tmp_path: Path, wheel: Binaries) -> None:
    study, out = write(tmp_path), tmp_path / "out"
    directory = Directory(out)
    process = start_pgtare("ladder", study, "--quick", "--out", out, "--seed", "9")
    wait_while_running(lambda: directory.begun and len(directory.runs()) >= 2, process)
    process.kill()  # -9: nothing can be tidied up
    process.communicate()
    kept = {key: run.started for key, run in directory.runs().items()}
    assert len(kept) >= 2
    status = pgtare("ladder", "status", out)
    assert status.returncode == 0, status.stderr
    assert "left" in status.stdout
    reported = pgtare("ladder", "report", out)
    assert "of 7 runs are done;" in reported.stdout
    assert "%" not in reported.stdout.split("runs are done")[1].split("margin")[0]

    process = start_pgtare("ladder", "resume", out)
    wait_while_running(lambda: len(directory.runs()) > len(kept), process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "runs are kept" in stderr
    assert "Traceback" not in stderr

    done = pgtare("ladder", "resume", out)
    assert done.returncode == 0, done.stderr
    runs = directory.runs()
    assert len(runs) == 7
    assert {key: runs[key].started for key in kept} == kept  # what was done was not done again
    assert read(out / "result.json")["seed"] == 9
    assert not any("failed" in reason for run in runs.values() for reason in run.failed)


@pytest.mark.slow
@pytest.mark.debian
def test_variants_of_two_installations(tmp_path: Path, wheel: Binaries, debian15: Binaries) -> None:
    two = STUDY.replace('name = "TRA"', 'name = "TRA"\nserver = "old"') + (
        '[servers]\nmain = { source = "wheel" }\n'
        f'old = {{ pg_config = "{debian15.pg_config}" }}\n'
    )
    done = pgtare("ladder", write(tmp_path, two), "--quick", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (workload,) = read(tmp_path / "out" / "result.json")["workloads"]
    assert workload["rounds_kept"] == 2, workload["dropped"]
    assert workload["compared"][0]["effect"]["pct"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["backend", "postmaster"])
def test_a_server_that_crashes_costs_its_round_only(
    tmp_path: Path, wheel: Binaries, victim: str
) -> None:
    study, out = write(tmp_path), tmp_path / "out"
    directory = Directory(out)
    process = start_pgtare("ladder", study, "--quick", "--out", out)
    wait_while_running(lambda: directory.begun and len(directory.runs()) >= 2, process)
    backend, postmaster = wait_while_running(lambda: backend_below(process.pid), process)
    os.kill(backend if victim == "backend" else postmaster, signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    crashed = [run for run in directory.runs().values() if run.failed]
    assert len(crashed) == 1, [run.failed for run in crashed]
    assert "the run failed" in crashed[0].failed[0]
    (workload,) = read(out / "result.json")["workloads"]
    assert process.returncode == (1 if workload["why_not"] else 0), stderr
    if crashed[0].step.kind == "run":
        assert [d["round"] for d in workload["dropped"]] == [crashed[0].step.round]


@pytest.mark.slow
def test_a_variant_that_cannot_start_is_reported_before_anything_is_run(
    tmp_path: Path, wheel: Binaries
) -> None:
    broken = STUDY.replace(
        'name = "TRA"\npreload = ["wait_event_timing"]', 'name = "TRA"\npreload = ["nowhere"]'
    )
    out = tmp_path / "out"
    message = failed(pgtare("ladder", write(tmp_path, broken), "--quick", "--out", out), 1)
    assert "the variant TRA cannot start" in message
    assert 'could not access file "nowhere"' in message  # the log's tail
    assert not Directory(out).runs()


@pytest.mark.slow
def test_a_capture_that_does_not_stick_drops_the_run(tmp_path: Path, wheel: Binaries) -> None:
    lying = STUDY.replace('"wait_event_timing.capture" = "trace"', '"application_name" = "x"')
    done = pgtare("ladder", write(tmp_path, lying), "--quick", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert "no workload counts" in done.stderr
    assert "capture is not trace in the load's sessions: 1 at off" in done.stderr
    (workload,) = read(tmp_path / "out" / "result.json")["workloads"]
    assert workload["why_not"] == "fewer than two whole rounds were kept"
    assert [d["variants"] for d in workload["dropped"]] == [["TRA"]]  # no other is worth its time
    assert workload["compared"][0]["verdict"] == "not_verified"


@pytest.mark.slow
def test_a_profile_that_is_not_shown_spends_no_rounds(tmp_path: Path, wheel: Binaries) -> None:
    other = STUDY.replace('event = "IO/DataFileRead"', 'event = "Lock/transactionid"')
    done = pgtare("ladder", write(tmp_path, other), "--quick", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert "its proof did not pass" in done.stdout
    assert "no workload counts" in done.stderr
    assert len(Directory(tmp_path / "out").runs()) == 1


@pytest.mark.slow
def test_another_load_on_the_machine_is_noticed(tmp_path: Path, wheel: Binaries) -> None:
    strict = STUDY.replace('other_load_at_most = "100%"', 'other_load_at_most = "5%"')
    spinners = [
        subprocess.Popen([PGTARE[0], "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        done = pgtare("ladder", write(tmp_path, strict), "--quick", "--out", tmp_path / "out")
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    assert done.returncode == 1, done.stderr
    assert "another load on the machine took" in done.stderr


@pytest.mark.slow
def test_a_port_in_use_is_no_obstacle(tmp_path: Path, wheel: Binaries) -> None:
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 5432))
        except OSError:
            pass  # somebody else has it, which is as good
        else:
            taken.listen()
        other = STUDY.replace('event = "IO/DataFileRead"', 'event = "Lock/transactionid"')
        done = pgtare("ladder", write(tmp_path, other), "--quick", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert len(Directory(tmp_path / "out").runs()) == 1  # it ran, and its proof failed as it should


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = failed(pgtare("ladder", write(tmp_path, STUDY + "\nclinets = 3\n"), "--out", out), 2)
    assert "unknown key 'clinets'" in message
    assert "holds no study" in failed(pgtare("ladder", "status", tmp_path), 2)
    assert not out.exists()


def test_what_cannot_be_run_is_refused_before_it(tmp_path: Path, wheel: Binaries) -> None:
    def refused(text: str, *workloads: str, quick: bool = False) -> str:
        study, out = write(tmp_path, text), tmp_path / "out"
        chosen = {"quick": quick, "workloads": workloads}
        with pytest.raises(UsageError) as found:
            conduct(plan(study, out, **chosen, seed=1, command=[]), Console(stderr=True))
        return str(found.value)

    assert "lower the scales" in refused(STUDY.replace("scale = 2", "scale = 21000"))
    message = refused(STUDY.replace("rounds = 8", "rounds = 4"))
    assert "4 rounds reach p = 0.125 at best" in message
    assert "there is no workload 'W4'" in refused(STUDY, "W4")
    assert "cannot read pgbench script" in refused(
        STUDY.replace('builtin = "select-only"', 'script = "no.sql"')
    )
    assert not (tmp_path / "out").exists()
