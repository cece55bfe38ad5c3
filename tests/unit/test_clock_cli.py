"""`pgtare clock` as a user runs it, without a server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pgtare import cli
from pgtare.clock.progress import Display
from pgtare.clock.schema import ClockReport
from tests.server.weigh_tools import pgtare
from tests.unit.clock_tools import needs_tsc, sample

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Any]:
    """What `pgtare clock` printed on a terminal of 80 columns, and its JSON."""
    path = tmp_path_factory.mktemp("clock") / "clock.json"
    done = pgtare("clock", "--json", path, COLUMNS="80")
    return done, json.loads(path.read_text())


def test_the_summary_is_a_verdict_and_at_most_40_lines(
    whole: tuple[subprocess.CompletedProcess[str], Any],
) -> None:
    done, report = whole
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # nothing of progress in so short a run
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout
    assert done.stdout.startswith("The clock ")
    for clock in report["clocks"]:
        assert any(line.startswith(clock["name"] + " ") for line in lines)
    for heading in ("time lost", "set-up", "what it means for PostgreSQL"):
        assert any(line.startswith(heading) for line in lines)


def test_the_report_follows_its_schema_and_adds_up(
    whole: tuple[subprocess.CompletedProcess[str], Any],
) -> None:
    report = whole[1]
    jsonschema.validate(report, ClockReport.model_json_schema(by_alias=True))
    assert report["schema"] == "pgtare.clock/1"
    for clock in report["clocks"]:
        assert sum(one["count"] for one in clock["exact"]) == clock["differences"]
        in_buckets = sum(bucket["count"] for bucket in clock["histogram"])
        below = sum(one["count"] for one in clock["exact"] if one["ticks"] < 0)
        assert in_buckets + below == clock["differences"]
        assert clock["read_ns"] > 0
    assert report["stopped_by"] == "time"


def test_the_whole_measurement_is_planned_for_less_than_two_seconds(
    whole: tuple[subprocess.CompletedProcess[str], Any],
) -> None:
    assert sum(clock["seconds"] for clock in whole[1]["clocks"]) < 2


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process, which is quicker: exit status, standard output and error."""
    monkeypatch.setenv("COLUMNS", "120")
    # a process registers its commands once; here it would be once for each call
    monkeypatch.setattr(cli.app, "registered_commands", [])
    monkeypatch.setattr(cli.app, "registered_groups", [])

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["pgtare", "clock", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@needs_tsc
def test_a_clock_that_is_not_there_is_explained_and_the_others_are_read(run: Run) -> None:
    status, out, err = run("--clock", "counter", "--clock", "monotonic", "--json", "-")
    assert status == 0
    report = json.loads(out)
    assert [clock["name"] for clock in report["clocks"]] == ["monotonic"]
    why = "CNTVCT_EL0 is an instruction of aarch64, this is x86_64"
    assert report["lacking"] == {"counter": why}
    assert f"counter: {why}" in err
    status, out, err = run("--clock", "counter")
    assert (status, out, err) == (2, "", f"pgtare: counter: {why}\n")


def test_an_unknown_clock_lists_those_there_are(run: Run) -> None:
    status, _, err = run("--clock", "sundial")
    assert status == 2
    assert "there is no clock 'sundial'" in err
    assert "monotonic_coarse" in err
    assert "thread_cpu" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-d", "0"), "--duration 0: give whole seconds from 1 to 4294967295"),
        (("-d", "-3"), "--duration -3: give whole seconds"),
        (("-d", "soon"), "--duration soon: give whole seconds"),
        (("-d", "4294967296"), "--duration 4294967296: give whole seconds"),
        (("-c", "-1"), "--cutoff -1: give a percentage from 0 to 100"),
        (("-c", "100.5"), "--cutoff 100.5: give a percentage"),
        (("-c", "nan"), "--cutoff nan: give a percentage"),
        (("-c", "lots"), "--cutoff lots: give a percentage"),
        (("--cpu", "100000"), "processor 100000 may not be used here"),
        (("--json", "/nowhere/at/all.json"), "there is no directory /nowhere/at"),
        (("--html", "/nowhere/at/all.html"), "there is no directory /nowhere/at"),
        (("--compare", "/nowhere.json"), "/nowhere.json cannot be read: No such file"),
        (("--compare", "/proc/self/status"), "is no report of `pgtare clock --json`"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: tuple[str, ...], told: str, run: Run
) -> None:
    status, out, err = run(*arguments)
    assert told in err
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_on_one_processor_the_comparison_says_why_it_is_missing(run: Run) -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)
    os.sched_setaffinity(0, {cpu})
    try:
        status, out, _ = run("--clock", "monotonic")
    finally:
        os.sched_setaffinity(0, before)
    assert status == 0
    assert f"only processor {cpu} may be used" in out


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(display: Display, done: float, planned: float, what: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Display, "tick", interrupt)
    path = tmp_path / "half.json"
    began = time.monotonic()
    status, out, err = run(
        "-d", "60", "--clock", "monotonic", "--clock", "thread_cpu", "--json", path
    )
    assert time.monotonic() - began < 30
    assert (status, err) == (130, "")
    assert "Interrupted: this is what had been measured until then." in out
    report = json.loads(path.read_text())
    assert report["stopped_by"] == "interrupt"
    (clock,) = report["clocks"]
    assert clock["name"] == "monotonic"
    assert 0 < clock["seconds"] < 30
    assert clock["differences"] == sum(one["count"] for one in clock["exact"]) > 0
    assert report["cores"] is None


def test_details_are_printed_where_asked_for(run: Run) -> None:
    status, out, _ = run("--clock", "monotonic", "--histogram", "--exact", "-c", "50")
    assert status == 0
    assert re.search(r"^monotonic: [\d,]+ readings in \d+\.\d\d s$", out, re.MULTILINE)
    assert re.search(r"^ +31 +[\d,]+ +\d+\.\d{4} % +\d+\.\d{4} %", out, re.MULTILINE)
    exact = out.split("durations up to 50 %")[1]
    rows = re.findall(r"^ *([\d,]+) +[\d,]+\.\d\d +[\d,]+ +[\d.]+ % +([\d.]+) %", exact,
                      re.MULTILINE)  # fmt: skip
    assert float(rows[-1][1]) == 100.0
    assert sum(float(row[1]) >= 50 for row in rows[:-1]) == 1


def test_a_comparison_ends_in_1_where_a_reading_became_dearer(tmp_path: Path, run: Run) -> None:
    earlier = sample()
    earlier.clocks[0].read_ns = 0.5  # cheaper than any clock
    path = tmp_path / "before.json"
    path.write_text(earlier.to_json())
    status, out, _ = run("--clock", "monotonic", "--compare", path)
    assert status == 1
    assert re.search(r"monotonic, a reading +0\.5 ns +\S+ ns +\+\d+ % +worse", out)
    assert "worse beyond the noise" in out
