"""The wheel without extras: how large it is, and all of weighing from outside by it alone.

It is installed into a virtual environment of its own, by pip and a package index.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import failed, read, words
from tests.fleet_data import MadeServer, write_server

ROOT = Path(__file__).parents[2]
#: What README.md and docs/install.md say that it takes at most.
MOST_BYTES = 150_000_000
#: What every environment has, whatever is installed.
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
SOURCES = ("src", "server", "hatch_build.py", "pyproject.toml")
SOURCES += ("README.md", "CHANGELOG.md", "LICENSE")

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and nothing else of ours."""
    place = tmp_path_factory.mktemp("base")
    copy = place / "source"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.o")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy)
    building = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(building, cwd=copy, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "venv", with_pip=True)
    installing = [place / "venv" / "bin" / "pip", "install", "--quiet", wheel]
    without_ours = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(installing, check=True, env=without_ours)
    return place / "venv"


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Runs the installed command with an empty home, and without a compiler on its path."""
    (tmp_path / "home").mkdir()
    environment = {"HOME": str(tmp_path / "home"), "PATH": "/nowhere", "COLUMNS": "120"}
    environment |= {"LANG": "C.UTF-8"}

    def runs(template: str, *values: object) -> subprocess.CompletedProcess[str]:
        command = [str(installed / "bin" / "pgtare"), *words(template, *values)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    return runs


@pytest.fixture(scope="module")
def dsn(binaries_without_modules: Binaries) -> Iterator[str]:
    """Of a role that may look and set one parameter, on a server without any module of ours."""
    with Cluster(binaries_without_modules, {}) as cluster:
        with cluster.connect(autocommit=True) as conn:
            conn.execute("CREATE ROLE tenant LOGIN")
            conn.execute("GRANT pg_monitor TO tenant")
            conn.execute("GRANT SET ON PARAMETER track_io_timing TO tenant")
        yield f"{cluster.dsn('postgres')} user=tenant"


@pytest.fixture(
    scope="module",
    params=[pytest.param("wheel"), pytest.param("debian15", marks=pytest.mark.debian)],
)
def binaries_without_modules(request: pytest.FixtureRequest) -> Binaries:
    found: Binaries = request.getfixturevalue(request.param)
    return found


def test_it_takes_at_most_150_mb(installed: Path) -> None:
    (packages,) = installed.glob("lib/python*/site-packages")
    ours = [path for path in packages.iterdir() if not path.name.startswith(TOOLS)]
    names = {path.name.partition("-")[0] for path in ours}
    assert {"pgtare", "numpy", "psycopg"} <= names
    assert not names & {"duckdb", "plotly", "pyarrow", "scipy", "zstandard"}
    files = [file for path in ours for file in (path, *path.rglob("*"))]
    taken = sum(file.lstat().st_blocks * 512 for file in files)
    assert taken <= MOST_BYTES, f"{taken:,} bytes"


def test_a_server_is_weighed_from_outside(run: Run, dsn: str, tmp_path: Path) -> None:
    out = tmp_path / "w"
    summary = tmp_path / "summary.md"
    done = run(
        "weigh track_io_timing --dsn {} --duration 10 --out {} --at-most 300% --summary {}",
        dsn,
        out,
        summary,
    )
    assert done.returncode in (0, 11), done.stderr  # ten seconds need not decide it
    assert "weighed from outside" in " ".join(done.stdout.split())
    assert "weighed from outside" in summary.read_text()
    page = (out / "report.html").read_text()
    assert "* plotly.js v" in page
    assert '<script type="application/json" id="charts">[{' in page
    again = run("report {}", out)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    found = run("report {} --json", out)
    assert "track_io_timing" in [arm["name"] for arm in json.loads(found.stdout)["arms"]]


def test_results_of_other_weighings_are_read(run: Run, tmp_path: Path) -> None:
    write_server(MadeServer("db"), tmp_path / "r")
    for command in ("report {}", "report {} --html {}/again.html", "bill {} --core-month 40"):
        done = run(command.replace("{}", str(tmp_path / "r")))
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_two_servers_are_compared(run: Run, dsn: str, tmp_path: Path) -> None:
    done = run(
        "weigh --server {} --server {} --duration 5 --outside --output {}",
        f"old: {dsn}",
        f"new: {dsn}",
        tmp_path / "w.json",
    )
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "w.json")["arms"][-1]["name"] == "new"


@pytest.mark.parametrize(
    "command", ["doctor --dsn {} --interval 1s", "support", "clock --duration 1", "instruments"]
)
def test_these_work_as_well(run: Run, dsn: str, command: str) -> None:
    done = run(command, *([dsn] if "{}" in command else []))
    assert done.returncode in (0, 10), done.stderr  # the doctor may find something
    assert done.stdout
    assert "Traceback" not in done.stderr


def test_waits_need_a_module_of_the_server(run: Run, dsn: str) -> None:
    assert "wait_event_timing" in failed(run("waits top --dsn {} --iterations 1", dsn), 2)


@pytest.mark.parametrize(
    "command",
    [
        "agent --dsn {} --spool {}/s",
        "live --spool {}",
        "spool info {}",
        "store check --store clickhouse://u@h/d",
    ],
)
def test_what_needs_the_extra_says_so(run: Run, tmp_path: Path, command: str) -> None:
    done = run(command.replace("{}", str(tmp_path)))
    assert failed(done, 2) == (
        f"pgtare: `pgtare {command.split()[0]}` needs packages that are not installed: "
        "install pgtare's wheel with its extra, pip install 'WHEEL[agent]'\n"
    )


def test_an_export_as_parquet_needs_it_too(run: Run, tmp_path: Path) -> None:
    message = failed(run("trace export {} {}", tmp_path / "t", tmp_path / "tables"), 2)
    assert message.endswith("with its extra, pip install 'WHEEL[agent]'\n")
    lines = run("trace export {} {} --format jsonl", tmp_path / "t", tmp_path / "tables")
    assert "does not exist" in failed(lines, 2)
