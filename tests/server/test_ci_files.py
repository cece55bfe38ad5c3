"""The files for CI in deploy/ci: they parse, and their commands decide rightly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.instruments.arms import parse_arm

yaml = pytest.importorskip("yaml", reason="comes with the packages that build the documentation")

pytestmark = pytest.mark.server

CI = Path(__file__).parents[2] / "deploy" / "ci"
#: A setting that nothing else of the script depends on decides how much it does.
SCRIPT = (
    "SELECT sum(n) FROM generate_series(1, CASE current_setting('{setting}')"
    " WHEN '{value}' THEN {rows} ELSE 2000 END) n;\n"
)
#: File and rows of the change, of 2,000: what the job's exit status must be.
CASES = {
    (name, rows): status
    for name in ("github.yml", "gitlab.yml")
    for rows, status in ((2_120, 10), (2_000, 0))
}


def commands(name: str) -> list[str]:
    """The commands of a file, in their order."""
    document: Any = yaml.safe_load((CI / name).read_text())
    if name == "github.yml":
        return [step["run"] for step in document["jobs"]["cost"]["steps"] if "run" in step]
    job = document["cost of the settings"]
    return [*job["before_script"], *job["script"]]


@pytest.fixture(scope="module")
def dsn(wheel: Binaries) -> Iterator[str]:
    with Cluster(wheel, {}) as cluster:
        yield cluster.dsn()


def run(
    name: str,
    wheel: Binaries,
    dsn: str,
    place: Path,
    rows: int,
    duration: str = "60s",
    change: str = "work_mem = 8MB",
    schema: str = "SELECT 1;\n",
) -> subprocess.CompletedProcess[str]:
    """Run a file's commands but for what installs programs; the change makes the script do more."""
    setting, _, value = change.split()
    (place / "settings.conf").write_text(f"# the change\n{change}   # was another\n")
    (place / "schema.sql").write_text(schema)
    (place / "cost.sql").write_text(SCRIPT.format(setting=setting, value=value, rows=rows))
    (place / "weigh.sh").write_text((CI / "weigh.sh").read_text())
    lines = [line for line in commands(name) if not line.startswith(("pip install", "apt-get"))]
    assert "sh weigh.sh" in lines
    here = Path(__file__).parents[2] / ".venv" / "bin"
    environment = {
        **os.environ,
        "PATH": f"{here}:{wheel.bindir}:{os.environ['PATH']}",
        "DSN": dsn,
        "DURATION": duration,
        "GITHUB_STEP_SUMMARY": str(place / "step.md"),
    }
    return subprocess.run(
        ["sh", "-ec", "\n".join(lines)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.parametrize(
    "change", [pytest.param("work_mem = 8MB", marks=pytest.mark.slow), "search_path = app"]
)
@pytest.mark.slow
def test_a_dear_change_fails_and_is_said(
    wheel: Binaries, dsn: str, tmp_path: Path, change: str
) -> None:
    done = run("gitlab.yml", wheel, dsn, tmp_path, 4_000, change=change)
    assert done.returncode == 10, done.stdout + done.stderr
    assert "costs more than its limit" in (tmp_path / "cost.md").read_text()


def test_a_wrong_request_ends_with_its_status(wheel: Binaries, dsn: str, tmp_path: Path) -> None:
    done = run("gitlab.yml", wheel, dsn, tmp_path, 2_000, change="work_mem = many")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "work_mem" in done.stderr


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_tables_that_cannot_be_made_end_the_job(
    wheel: Binaries, dsn: str, tmp_path: Path, name: str
) -> None:
    """Without an index, for example, the job would weigh something else, and pass."""
    schema = "CREATE INDEX ON not_there (id);\nSELECT 1;\n"
    done = run(name, wheel, dsn, tmp_path, 2_000, "2s", schema=schema)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "not_there" in done.stderr
    assert not (tmp_path / "cost.md").exists()


def with_stand_in(
    place: Path, conf: str, status: int, script: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run weigh.sh with a pgtare that prints its second argument, the arm, and ends so."""
    (place / "settings.conf").write_text(conf)
    stand_in = place / "pgtare"
    stand_in.write_text(f'#!/bin/sh\nprintf %s "$3" > arm\n{script}\nexit {status}\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{place}:{os.environ['PATH']}", "DSN": "host=/nowhere"}
    return subprocess.run(
        ["sh", CI / "weigh.sh"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("status", [1, 2, 130])
def test_without_a_summary_the_exit_status_is_that_of_the_weighing(
    tmp_path: Path, status: int
) -> None:
    (tmp_path / "cost.md").write_text("**Every instrument costs less than its limit.**\n")
    done = with_stand_in(tmp_path, "work_mem = 8MB\n", status)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    assert not (tmp_path / "cost.md").exists()


def test_the_summary_is_printed_whatever_was_decided(tmp_path: Path) -> None:
    for status, ends in ((0, 0), (10, 10), (11, 0)):
        done = with_stand_in(tmp_path, "work_mem = 8MB\n", status, "echo decided > cost.md")
        assert (done.returncode, done.stdout.split("\n")[0]) == (ends, "decided")
        assert ("warning: not decided" in done.stdout) == (status == 11)


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("work_mem = 8MB", {"work_mem": "8MB"}),
        ("work_mem=8MB\r", {"work_mem": "8MB"}),
        ("  work_mem = 8MB   # was 4", {"work_mem": "8MB"}),
        ("work_mem 8MB", {"work_mem": "8MB"}),
        ("work_mem\t'8MB'# was 4", {"work_mem": "8MB"}),
        ("# work_mem = 4MB\n\n\t# x\nwork_mem = 8MB\njit off", {"work_mem": "8MB", "jit": "off"}),
        ("search_path = app", {"search_path": "app"}),
        ("search_path = 'app, \"a b\", public' # names", {"search_path": 'app, "a b", public'}),
        ("log_line_prefix = '# it''s %m '", {"log_line_prefix": "# it's %m "}),
        ("pg_stat_statements.track = all", {"pg_stat_statements.track": "all"}),
        ("random_page_cost = 1.1#x", {"random_page_cost": "1.1"}),
        ("vacuum_cost_limit = -1", {"vacuum_cost_limit": "-1"}),
    ],
)
def test_lines_of_a_configuration_file_are_read_as_the_server_reads_them(
    tmp_path: Path, line: str, settings: dict[str, str]
) -> None:
    with_stand_in(tmp_path, f"{line}\n", 0)
    assert parse_arm((tmp_path / "arm").read_text()).settings == settings


@pytest.mark.parametrize("line", ["work_mem", "search_path = a, b", "# no more"])
def test_a_line_that_is_none_of_a_configuration_file_is_refused(tmp_path: Path, line: str) -> None:
    with_stand_in(tmp_path, f"jit = off # x\n{line}\n" if line[0] != "#" else line, 0)
    with pytest.raises(UsageError):
        parse_arm((tmp_path / "arm").read_text())


@pytest.mark.slow
def test_what_is_not_decided_passes_with_a_warning(
    wheel: Binaries, dsn: str, tmp_path: Path
) -> None:
    done = run("github.yml", wheel, dsn, tmp_path, 2_060, "2s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning: not decided" in done.stdout
    assert "not decided" in (tmp_path / "step.md").read_text()


def test_both_install_the_command_and_make_the_tables() -> None:
    for name in ("github.yml", "gitlab.yml"):
        lines = commands(name)
        assert "pip install wheels/pgtare-*.whl" in lines
        assert 'psql -v ON_ERROR_STOP=1 "$DSN" -f schema.sql' in lines


@pytest.mark.slow
def test_a_limit_of_3_percent_tells_5_from_0_in_20_of_20(
    wheel: Binaries, dsn: str, tmp_path: Path
) -> None:
    """Five runs of each file for a change that does 6 % more rows, and for one that does no more.

    Half an hour: to show that a change costs nothing takes minutes on a noisy machine.
    """
    for number, (name, rows) in enumerate(5 * list(CASES)):
        place = tmp_path / str(number)
        place.mkdir()
        done = run(name, wheel, dsn, place, rows, "5m")
        table = (place / "cost.md").read_text()
        print(f"{number + 1}: {name}, {rows} rows: exit status {done.returncode}\n{table}")
        assert done.returncode == CASES[name, rows], done.stdout + done.stderr
        assert "not decided" not in table, table
