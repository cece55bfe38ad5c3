"""Weighing on a server of pgtare's own: the main job, end to end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.weigh import store
from tests.commands import arm, failed, pgtare, read, read_until, refused, start_pgtare
from tests.servers import binaries_slowly_on_15, named
from tests.sessions import eventually

pytestmark = pytest.mark.server

FOUR = ("pg_stat_statements", "track_io_timing", "auto_explain", "log_min_duration_statement")
# z of a two-sided interval that misses once in a million, in units of the 95 % one's half-width
WIDER = 4.89 / 1.96


@binaries_slowly_on_15
def test_weighs_four_instruments_with_proof(binaries: Binaries, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = pgtare(
        "weigh --duration 5 --scale 1 --inject-ns 20000 --output {} --out {} --seed 7",
        tmp_path / "w.json",
        out,
        *FOUR,
        *named(binaries),
    )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")

    assert [a["role"] for a in result["arms"][:2]] == ["base", "control"]
    assert {a["name"] for a in result["arms"]} == {"base", "control", *FOUR, "injected"}
    assert result["design"]["lost"] == 0
    assert result["design"]["blocks"] > 5
    assert result["design"]["sessions"] == 1
    control = arm(result, "control")["answer"]["us"]
    half = (control["hi"] - control["lo"]) / 2 * WIDER
    assert abs(control["estimate"]) < half
    for name in ("pg_stat_statements", "auto_explain", "log_min_duration_statement"):
        assert arm(result, name)["proof"]["state"] == "active", arm(result, name)["proof"]
    assert arm(result, "track_io_timing")["proof"]["state"] in ("active", "idle")
    # 20 µs are there whatever else the machine does; at the median nothing much is added
    injected = arm(result, "injected")["effect"]["p50_us"]
    unsure = (injected["hi"] - injected["lo"]) / 2 * WIDER  # little, unless the machine is busy
    assert injected["estimate"] + unsure > 15, injected
    assert injected["estimate"] - unsure < 45, injected
    assert injected["estimate"] > 5, injected
    assert "log_min_duration_statement" in done.stdout
    assert "control" in done.stdout
    assert str(out) in done.stdout

    stored = store.load(out)
    assert len(stored.observations) > 6 * 100
    again = pgtare("report", out, "--output", tmp_path / "again.json")
    assert again.returncode == 0, again.stderr
    assert read(tmp_path / "again.json")["arms"] == result["arms"]
    assert (out / "report.html").stat().st_size > 100_000


@pytest.mark.slow
def test_precision_stops_early(server18: Cluster, tmp_path: Path) -> None:
    """Not before ten seconds: that is the rule."""
    script = tmp_path / "one.sql"
    script.write_text("SELECT 1;\n")
    done = pgtare(
        "weigh track_io_timing --duration 60 --precision 90% --dsn {} --script {} --output {}",
        server18.dsn(),
        script,
        tmp_path / "w.json",
    )
    assert done.returncode == 0, done.stderr
    design = read(tmp_path / "w.json")["design"]
    assert design["stopped_by"] == "precision"
    assert 10 <= design["duration_s"] < 55


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    for seconds in (7, 40):  # two of them to warm up, once all clients have connected
        process = start_pgtare(
            "weigh track_io_timing --duration 600 --scale 1 --output {}", tmp_path / "w.json"
        )
        read_until(process, "warming up")
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        if (tmp_path / "w.json").exists():  # else a busy machine has not begun to measure
            break
    design = read(tmp_path / "w.json")["design"]
    assert design["stopped_by"] == "interrupt"
    assert design["partial"] is True
    assert "PARTIAL" in out.upper()
    assert "Traceback" not in err


def test_ctrl_c_before_the_trial_leaves_nothing(tmp_path: Path) -> None:
    process = start_pgtare("weigh", "track_io_timing", "--output", tmp_path / "w.json")
    # it has begun: before, Python itself would be interrupted
    eventually(lambda: process.poll() is not None or psutil.Process(process.pid).children())
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not (tmp_path / "w.json").exists()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["track_io_timing", "--duration", "0"], "--duration"),
        (["track_io_timing", "--duration", "soon"], "90s, 2m or 1h"),
        (["track_io_timing", "--precision", "0.2"], "percentage"),
        (["track_io_timing", "--margin", "0%"], "percentage"),
        (["track_io_timing", "--load", "none"], "--dsn"),
        (["track_io_timing", "--load", "everything"], "is not one of 'select-only'"),
        (["track_io_timing", "--rate", "200%"], "below 100"),
        (["track_io_timing", "--unit", "transaction"], "is not one of 'run', 'slice', 'both'"),
        (["track_io_timing", "track_functions", "--unit", "both"], "--unit slice"),
        (["track_io_timing", "--unit", "slice", "--slice-ms", "45-15"], "as in --slice-ms 15-45"),
        (["track_io_timing", "--unit", "slice", "--slice-ms", "0.1-5"], "from 1 to 1000"),
        (["track_io_timing", "--unit", "slice", "--slice-ms", "30"], "shortest and the longest"),
        (["track_io_timing", "--slice-ms", "50-150"], "--slice-ms is for --unit slice or both"),
        (["--inject-ns", "500", "--at-most", "3%"], "a limit of instruments: name one"),
    ],
)
def test_bad_input_is_refused_at_once(arguments: list[str], wanted: str) -> None:
    assert wanted in refused("weigh", *arguments)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("shared_buffers=1GB", "fixed when the server starts"),
        ("checkpoint_timeout=60", "acts in other processes"),
        ("work_mem=lots", "work_mem"),
    ],
)
def test_a_setting_that_cannot_be_an_arm_is_refused_with_the_reason(
    server18: Cluster, setting: str, why: str
) -> None:
    assert why in refused("weigh", "--arm", f"x: {setting}", "--dsn", server18.dsn())


def test_a_script_that_fails_is_reported_in_its_own_words(tmp_path: Path) -> None:
    script = tmp_path / "broken.sql"
    script.write_text("SELECT 1 FROM no_such_table;\n")
    done = pgtare("weigh", "track_io_timing", "--script", script, "--scale", "1")
    assert "no_such_table" in failed(done, 1)
    assert "track_io_timing" in failed(pgtare("weigh", "track_io_timin"), 2)


@pytest.mark.slow
def test_an_own_script_and_rate(server18: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "two.sql"
    script.write_text("BEGIN;\nSELECT 1;\nSELECT pg_sleep(0.001);\nEND;\n")
    done = pgtare(
        "weigh --arm 'wm: work_mem=8MB' --script {} --rate 100 --duration 3 --dsn {} --output {}",
        script,
        server18.dsn(),
        tmp_path / "w.json",
    )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")
    assert result["arms"][0]["p50_us"] > 1000
    assert arm(result, "wm")["proof"]["state"] == "idle"


def test_no_process_or_directory_is_left() -> None:
    left = subprocess.run(
        ["pgrep", "-f", "application_name=pgtare-load"], capture_output=True, check=False
    )
    assert left.stdout == b""
