"""`pgtare clock` as a user runs it, without a server."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from pgtare.kit.progress import Display
from pgtare.observing.clock import cores, show
from pgtare.observing.clock.consequences import meaning
from pgtare.observing.clock.cpuid import Leaves
from pgtare.observing.clock.diagnosis import Setup, diagnose
from pgtare.observing.clock.schema import ClockReport, Trust
from tests.commands import in_process, pgtare
from tests.unit.sample_clock_report import BY_NAME, sample, sample_clock

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Any]:
    """What `pgtare clock` printed on a terminal of 80 columns, and its JSON."""
    path = tmp_path_factory.mktemp("clock") / "clock.json"
    done = pgtare("clock", "--output", path, COLUMNS="80")
    return done, json.loads(path.read_text())


def test_the_summary_is_a_verdict_and_at_most_44_lines(
    whole: tuple[subprocess.CompletedProcess[str], Any],
) -> None:
    done, report = whole
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # nothing of progress in so short a run
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    long = [line for line in lines if len(line.rstrip()) > 80]
    assert [line for line in long if not line.startswith("JSON: ")] == []  # paths are kept whole
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
    # as planned; a clock that loses its processor is read as much longer
    exact = [one for clock in report["clocks"] for one in clock["exact"]]
    read_ns = sum(one["duration_ns"] * one["count"] for one in exact if one["duration_ns"] < 5e6)
    assert read_ns < 2e9


def test_the_longest_summary_has_44_lines() -> None:
    """A slow clock on a machine of many processors, with every clock and every gap."""
    report = sample()
    report.clocks = [sample_clock(name, 4321.0) for name in BY_NAME][:10]
    counter = Leaves(True, invariant=True, has_rdtscp=True, hypervisor="KVM")
    report.diagnosis = diagnose(
        Setup(
            "acpi_pm",
            ("tsc", "kvm-clock", "hpet", "acpi_pm"),
            counter,
            True,
            "x86_64",
            Trust(
                counter=False,
                reason="the kernel reads the time by acpi_pm, not by the processor's counter",
            ),
        ),
        report.clocks,
        report.frequency,
        None,
    )
    assert report.cores is not None
    report.cores.pairs = report.cores.pairs * 64
    report.cores.possible = 2016
    _, report.cores.note = cores.sample(range(128))
    report.system_cores = report.cores
    assert report.gaps is not None
    report.gaps.causes = report.gaps.causes * 2
    report.meaning = meaning(report.clocks, report.diagnosis.postgres19)
    console = Console(width=80, file=io.StringIO())
    console.print(show.summary(report), highlight=False)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert report.diagnosis.verdict == "slow"
    assert len(shown) <= 44, "\n".join(shown)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run() -> Run:
    """The command in this process, which is quicker: exit status, standard output and error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        done = in_process("clock", *arguments)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-d", "0"), "--duration 0: give a time over 0"),
        (("-d", "-3"), "--duration -3: give a time over 0"),
        (("-d", "soon"), "--duration soon: give a time over 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: tuple[str, ...], message: str, run: Run
) -> None:
    status, out, err = run(*arguments)
    assert message in err
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_on_one_processor_the_comparison_says_why_it_is_missing(run: Run) -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)
    os.sched_setaffinity(0, {cpu})
    try:
        status, out, _ = run()
    finally:
        os.sched_setaffinity(0, before)
    assert status == 0
    assert f"only processor {cpu} may be used" in out


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(display: Display, seconds: float, text: str, hint: str = "") -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Display, "tick", interrupt)
    path = tmp_path / "half.json"
    began = time.monotonic()
    status, out, err = run("-d", "600", "--output", path)
    assert time.monotonic() - began < 120  # on a busy machine
    assert (status, err) == (130, "")
    assert "Interrupted: this is what had been measured until then." in out
    report = json.loads(path.read_text())
    assert report["stopped_by"] == "interrupt"
    (clock,) = report["clocks"]
    assert clock["name"] == "monotonic"
    assert 0 < clock["duration_s"] < 120
    assert clock["differences"] == sum(one["count"] for one in clock["exact"]) > 0
    assert report["cores"] is None


def test_the_histogram_is_printed_where_asked_for(run: Run) -> None:
    status, out, _ = run("--histogram")
    assert status == 0
    assert re.search(r"^monotonic: [\d,]+ readings in \d+\.\d\d s$", out, re.MULTILINE)
    # in which bucket readings begin depends on the machine
    assert re.search(r"^ *(?:31|63|127|255) +[\d,]+ +\d+\.\d{4} % +\d+\.\d{4} %", out, re.MULTILINE)


def test_only_the_wanted_command_is_loaded() -> None:
    """A verdict within 3 s leaves no time to load what weighs."""
    code = (
        "import sys; sys.argv = ['pgtare', 'clock', '-d', '0']\n"
        "from pgtare.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*({'scipy', 'psycopg', 'plotly', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    )
    assert "--duration 0: give a time over 0" in done.stderr
    assert done.stdout == "\n"
