"""Our own modules in another process: what the current directory holds is never run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import pgtare
from pgtare.kit.interpreter import module_command

SOURCES = Path(pgtare.__file__).parent


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


def test_no_other_place_starts_the_interpreter() -> None:
    """Nor processes of multiprocessing."""
    starts = {path for path in SOURCES.rglob("*.py") if "sys.executable" in path.read_text()}
    assert starts == {SOURCES / "kit" / "interpreter.py"}
    assert not [path for path in SOURCES.rglob("*.py") if "multiprocessing" in path.read_text()]
