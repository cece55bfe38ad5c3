"""`pgtare clock --compat` prints what pg_test_timing of PostgreSQL 19 prints, to the column."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.observing.clock import pg_test_timing, probe
from pgtare.observing.clock.distribution import NS, Distribution
from tests.unit.sample_clock_report import even, needs_tsc

pytestmark = pytest.mark.timeout(180)

PGTARE = Path(sys.executable).with_name("pgtare")

ROW = re.compile(r"^ *\d+ +\d+\.\d{4} +\d+\.\d{4} +\d+$")


def clock_compat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PGTARE, "clock", "--compat", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def masked(text: str) -> list[str]:
    """Lines with figures masked; rows of figures as their widths, rows of one kind once."""
    found: list[str] = []
    for line in text.splitlines():
        if ROW.match(line):
            ends = [m.end() for m in re.finditer(r"\S+", line)]
            line = f"row of {ends}"
            if found and found[-1] == line:
                continue
        else:
            line = re.sub(r"\d+(\.\d+)?(?= ns$| kHz$|%:$)", "N", line)
        found.append(line)
    return found


#: Figures are masked by N, and rows of them by where their columns end.
WIDTHS = "row of [19, 32, 43, 54]"
BLOCK = [
    "Average loop time including overhead: N ns",
    "Histogram of timing durations:",
    "              <= ns   % of total  running %      count",
    WIDTHS,
    "",
    "Observed timing durations up to N%:",
    "                 ns   % of total  running %      count",
    WIDTHS,
    "...",
    WIDTHS,
    "",
]
WHOLE = [
    "Testing timing overhead for 1 second.",
    "",
    "System clock source: clock_gettime (CLOCK_MONOTONIC)",
    *BLOCK,
    "Clock source: RDTSCP",
    *BLOCK,
    "Fast clock source: RDTSC",
    *BLOCK,
    "TSC frequency source: x86",
    "TSC frequency in use: N kHz",
    "TSC frequency from calibration: N kHz",
    "",
    "TSC clock source will be used by default, unless timing_clock_source is set to 'system'.",
]


@pytest.fixture(scope="module")
def printed() -> str:
    done = clock_compat("-d", "1", "-c", "99")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@needs_tsc
def test_every_line_and_column_is_that_of_19(printed: str) -> None:
    lines = masked(printed)
    assert re.fullmatch(
        r"TSC frequency source: x86(, hypervisor)?, (calibration|cpuid 0x\w+)", lines[-5]
    )
    lines[-5] = "TSC frequency source: x86"
    if "will not be used" in lines[-1]:
        lines[-1] = WHOLE[-1]
    assert lines == WHOLE


@needs_tsc
def test_the_figures_of_a_section_agree_with_each_other(printed: str) -> None:
    sections = re.split(r"^(?:System |Fast )?[Cc]lock source: .*$", printed, flags=re.MULTILINE)
    assert len(sections) == 4
    for section in sections[1:]:
        mean = float(re.search(r"overhead: (\d+\.\d\d) ns", section)[1])  # type: ignore[index]
        histogram, exact = section.split("Observed timing durations up to 99.0000%:")
        buckets = [line.split() for line in histogram.splitlines() if ROW.match(line)]
        assert [int(b[0]) for b in buckets] == [2**i - 1 for i in range(len(buckets))]
        total = sum(int(b[3]) for b in buckets)
        assert float(buckets[-1][2]) == pytest.approx(100, abs=1e-3)
        assert 1e9 / mean == pytest.approx(total, rel=0.1)  # the last batch may end late
        listed = [line.split() for line in exact.splitlines() if ROW.match(line)]
        assert float(listed[-2][2]) >= 99  # the one that reached the cut-off
        assert all(float(row[2]) < 99 for row in listed[:-2])
        assert int(buckets[-1][0]) // 2 < int(listed[-1][0]) <= int(buckets[-1][0])


def test_a_section_of_known_durations() -> None:
    by_ns = {0: 1, 1: 1, 20: 90, 21: 6, 700: 1, 123_456: 1}
    assert pg_test_timing.section(28.4, by_ns, 97.5) == [
        "Average loop time including overhead: 28.40 ns",
        "Histogram of timing durations:",
        "              <= ns   % of total  running %      count",
        "                  0       1.0000     1.0000          1",
        "                  1       1.0000     2.0000          1",
        "                  3       0.0000     2.0000          0",
        "                  7       0.0000     2.0000          0",
        "                 15       0.0000     2.0000          0",
        "                 31      96.0000    98.0000         96",
        "                 63       0.0000    98.0000          0",
        "                127       0.0000    98.0000          0",
        "                255       0.0000    98.0000          0",
        "                511       0.0000    98.0000          0",
        "               1023       1.0000    99.0000          1",
        "               2047       0.0000    99.0000          0",
        "               4095       0.0000    99.0000          0",
        "               8191       0.0000    99.0000          0",
        "              16383       0.0000    99.0000          0",
        "              32767       0.0000    99.0000          0",
        "              65535       0.0000    99.0000          0",
        "             131071       1.0000   100.0000          1",
        "",
        "Observed timing durations up to 97.5000%:",
        "                 ns   % of total  running %      count",
        "                  0       1.0000     1.0000          1",
        "                  1       1.0000     2.0000          1",
        "                 20      90.0000    92.0000         90",
        "                 21       6.0000    98.0000          6",
        "...",
        "             123456       1.0000   100.0000          1",
    ]


def test_the_largest_is_listed_where_it_is_short_too() -> None:
    lines = pg_test_timing.section(20.0, {10: 98, 11: 1, 12: 1}, 98.0)
    assert lines[-3:] == [
        "                 10      98.0000    98.0000         98",
        "...",
        "                 12       1.0000   100.0000          1",
    ]


def test_a_cut_off_that_nothing_reaches_lists_all() -> None:
    lines = pg_test_timing.section(20.0, {10: 1, 9_999: 1}, 100.0)
    assert "..." not in lines
    assert lines[-1] == "               9999      50.0000   100.0000          1"


def test_a_counter_that_stepped_back_is_reported_as_19_reports_the_system_clock() -> None:
    readings = even(1_000, start=10**9)
    readings[500:] -= np.uint64(2_600_025)
    recording = probe.replay(readings)
    assert pg_test_timing.backwards(recording, Distribution.of(recording, 2_600_000_000)) == [
        "Detected clock going backwards in time.",
        "Time warp: -1000000 ns",
    ]


def test_frequencies_more_than_a_tenth_apart_give_a_warning() -> None:
    assert pg_test_timing.apart(NS, NS + NS // 20) is None
    warning = pg_test_timing.apart(NS, NS + NS // 5)
    assert warning is not None
    assert "differ by more than 10%" in warning


def test_the_ending_where_tsc_is_not_the_default() -> None:
    lines = pg_test_timing.ending("x86, calibration", 2_499_682_100, 2_499_681_900, "system")
    assert lines == [
        "TSC frequency source: x86, calibration",
        "TSC frequency in use: 2499682 kHz",
        "TSC frequency from calibration: 2499682 kHz",
        "",
        "TSC clock source will not be used by default, unless timing_clock_source is set to 'tsc'.",
    ]


HINT = 'Try "pg_test_timing --help" for more information.\n'
DURATION = "pg_test_timing: invalid argument for option --duration\n" + HINT
CUTOFF = "pg_test_timing: invalid argument for option --cutoff\n" + HINT


REFUSED: list[tuple[list[str], str]] = [
    (["-d", "0"], "pg_test_timing: --duration must be in range 1..4294967295\n"),
    (["-d", "-1"], DURATION),
    (["--duration=ten"], DURATION),
    (["-d", "4294967296"], DURATION),
    (["-d", "9" * 5000], DURATION),
    (["-d", ""], DURATION),
    (["-c", "101"], "pg_test_timing: --cutoff must be in range 0..100\n"),
    (["-c", "-0.1"], "pg_test_timing: --cutoff must be in range 0..100\n"),
    (["-c", "nan"], "pg_test_timing: --cutoff must be in range 0..100\n"),
    (["--cutoff", "much"], CUTOFF),
    (["-c", "9_9"], CUTOFF),
    (["-d"], "pg_test_timing: option requires an argument -- 'd'\n" + HINT),
    (["--json"], "pg_test_timing: unrecognized option '--json'\n" + HINT),
    (["-x"], "pg_test_timing: invalid option -- 'x'\n" + HINT),
    (
        ["more"],
        'pg_test_timing: too many command-line arguments (first is "more")\n' + HINT,
    ),
]
#: PostgreSQL's own reading of these is not compared.
OURS = (["-d", "9" * 5000], ["-c", "nan"], ["-c", "9_9"])


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_bad_options_are_refused_with_its_words_and_status(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pg_test_timing.main(arguments) == 1
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize(
    ("arguments", "duration", "cutoff"),
    [
        ([], 3, 99.99),
        (["-d1", "-c", "0"], 1, 0.0),
        (["--duration", "4294967295", "--cutoff=100"], 4294967295, 100.0),
    ],
)
def test_good_options_are_taken(arguments: list[str], duration: int, cutoff: float) -> None:
    assert pg_test_timing.parse(arguments) == pg_test_timing.Options(duration, cutoff)


def test_a_probe_that_cannot_be_compiled_ends_in_1_as_every_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise UsageError("the clock probe needs a C compiler")

    monkeypatch.setattr(probe, "library", missing)
    assert pg_test_timing.main(["-d", "1"]) == 1
    assert capsys.readouterr().err == (
        "pg_test_timing: error: the clock probe needs a C compiler\n"
    )


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    done = clock_compat("-?")
    assert (done.returncode, done.stdout) == (
        0,
        "Usage: pg_test_timing [-c CUTOFF] [-d DURATION]\n",
    )
    assert pg_test_timing.main(["-V"]) == 0
    assert capsys.readouterr().out.startswith("pg_test_timing (pgtare ")


@pytest.fixture(scope="module")
def theirs() -> str:
    """pg_test_timing of an installed PostgreSQL 19, or the one that PG_TEST_TIMING_19 names."""
    usual = shutil.which("pg_test_timing", path="/usr/lib/postgresql/19/bin")
    found = os.environ.get("PG_TEST_TIMING_19", usual)
    if found is None:
        pytest.skip("no pg_test_timing of PostgreSQL 19 in /usr/lib/postgresql/19/bin")
    return found


@needs_tsc
def test_a_real_pg_test_timing_19_prints_the_same(printed: str, theirs: str) -> None:
    done = subprocess.run(
        [theirs, "-d", "1", "-c", "99"], capture_output=True, text=True, check=True
    )
    assert masked(printed) == masked(done.stdout)


@pytest.mark.parametrize(
    "arguments", [*(one for one, _ in REFUSED if one not in OURS), ["-?"], ["--help"]]
)
def test_a_real_pg_test_timing_19_says_the_same(
    arguments: list[str], theirs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run([theirs, *arguments], capture_output=True, text=True, check=False)
    assert pg_test_timing.main(arguments) == done.returncode
    # getopt_long names the program as it was called, by its path here
    message = re.sub(r"^\S*/(?=pg_test_timing: )", "", done.stderr)
    assert capsys.readouterr() == (done.stdout, message)
