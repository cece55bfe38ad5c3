"""Some seconds of the fuzzer (`python -m tests.unit.fuzz_trace 300` runs it for minutes)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.fuzz_trace import damaged_files, sample, senseless_files

pytestmark = pytest.mark.timeout(180)


def test_senseless_files_are_survived(tmp_path: Path) -> None:
    senseless_files(60, tmp_path)()


def test_damaged_files_are_survived(tmp_path: Path) -> None:
    damaged_files(sample(), range(60), tmp_path)
