"""Output that cannot be written ends every command with one sentence and status 1."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

_PGTARE = [sys.executable, "-m", "pgtare"]
_SENTENCE = "pgtare: could not write to standard output: No space left on device\n"


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """The device that is always full."""
    device = Path("/dev/full")
    if device.is_char_device():
        return device
    try:
        os.mknod(tmp_path / "full", stat.S_IFCHR | 0o600, os.makedev(1, 7))
        (tmp_path / "full").write_text("")
    except OSError:
        pytest.skip("no device that is always full here")
    return tmp_path / "full"


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        (["--version"], ""),
        (["--help"], "1"),
        (["instruments", "--json"], ""),
        (["instruments", "--json"], "1"),
    ],
)
def test_on_a_full_device(full: Path, words: list[str], unbuffered: str) -> None:
    with full.open("w") as output:
        done = subprocess.run(
            [*_PGTARE, *words],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=200,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, _SENTENCE)


def test_whose_reader_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*_PGTARE, "instruments"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_closed() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *_PGTARE, "clock", "--help"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )
    assert "Traceback" not in done.stderr
