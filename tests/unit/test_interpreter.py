"""Our own modules in another process: what the current directory holds is never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pgtare
from pgtare.kit.interpreter import module_command

SOURCES = Path(pgtare.__file__).parent
#: Runs where somebody else's files are: a pool whose processes are started anew.
POOL = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
from pgtare.kit.interpreter import spawning
if __name__ == "__main__":
    with spawning(), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        print(list(pool.map(abs, [-1])))
    print(os.environ.get("PYTHONSAFEPATH"))
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A directory with modules of somebody else, which note that they were run."""
    for name in ("json", "multiprocessing", "pickle", "psutil", "psycopg", "random"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\n")
    return tmp_path


def test_a_module_is_not_taken_from_the_current_directory(foreign: Path) -> None:
    command = module_command("pgtare", "--version")
    done = subprocess.run(command, cwd=foreign, capture_output=True, text=True, check=False)
    assert pgtare.__version__ in done.stdout, done.stderr
    assert not (foreign / "RAN").exists()


def test_nor_by_the_processes_of_a_pool(foreign: Path) -> None:
    program = foreign / "away" / "pool.py"
    program.parent.mkdir()
    program.write_text(POOL)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, program],
        cwd=foreign,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["[1]", "None"], done.stderr
    assert not (foreign / "RAN").exists()


def test_no_other_place_starts_the_interpreter() -> None:
    """Nor processes of multiprocessing, unless by `spawning`."""
    starts = {path for path in SOURCES.rglob("*.py") if "sys.executable" in path.read_text()}
    assert starts == {SOURCES / "kit" / "interpreter.py"}
    pools = [path for path in SOURCES.rglob("*.py") if "import multiprocessing" in path.read_text()]
    assert [path for path in pools if "spawning()" not in path.read_text()] == []
