"""The files for CI in deploy/ci: they parse, and their commands decide rightly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster

yaml = pytest.importorskip("yaml", reason="comes with the packages that build the documentation")

pytestmark = pytest.mark.server

CI = Path(__file__).parents[2] / "deploy" / "ci"
#: A setting that nothing else of the script depends on decides how much it does.
SCRIPT = (
    "SELECT sum(n) FROM generate_series(1, CASE current_setting('work_mem')"
    " WHEN '8MB' THEN {} ELSE 2000 END) n;\n"
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
    name: str, wheel: Binaries, dsn: str, place: Path, rows: int, duration: str = "60s"
) -> subprocess.CompletedProcess[str]:
    """Run a file's commands but for what installs programs; the change makes the script do more."""
    (place / "settings.conf").write_text("# the change\nwork_mem = 8MB\n")
    (place / "schema.sql").write_text("SELECT 1;\n")
    (place / "cost.sql").write_text(SCRIPT.format(rows))
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


def test_a_dear_change_fails_and_is_said(wheel: Binaries, dsn: str, tmp_path: Path) -> None:
    done = run("gitlab.yml", wheel, dsn, tmp_path, 4_000)
    assert done.returncode == 10, done.stdout + done.stderr
    assert "costs more than its limit" in (tmp_path / "cost.md").read_text()


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
        assert 'psql "$DSN" -f schema.sql' in lines


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
