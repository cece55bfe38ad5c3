"""Parquet files of an export on full disks: one sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from pgtare.kit import files
from pgtare.observing.trace.output import export
from tests.commands import failed, in_process
from tests.sample_trace import two_requests
from tests.small_volume import fill, small_volume
from tests.unit import made_traces
from tests.unit.artefacts import clear

COLUMNS = {"number": np.random.default_rng(1).integers(0, 2**62, 100_000)}


@pytest.fixture
def full(as_root: None) -> Iterator[Path]:
    with small_volume("size=256k") as path:
        yield path


def test_nobody_else_may_read_it_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def seen(path: Path) -> None:
        found.append(path.stat().st_mode & 0o777)

    monkeypatch.setattr(files, "sync", lambda path: seen(path) if path.is_file() else None)
    monkeypatch.setattr(os, "chmod", lambda *_: None)
    before = os.umask(0o022)
    try:
        export.write_parquet(tmp_path / "r.parquet", COLUMNS)
    finally:
        os.umask(before)
    assert found == [0o600]


def test_what_has_no_room_is_not_there(full: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        export.write_parquet(full / "r.parquet", COLUMNS)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(full) == []
    with pytest.raises(OSError, match="No such file") as caught:
        export.write_parquet(full / "nowhere" / "r.parquet", COLUMNS)
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("format_", get_args(export.Format))
def test_an_export_says_that_the_disk_is_full(full: Path, tmp_path: Path, format_: str) -> None:
    trace = made_traces.trace(
        tmp_path / "t.pgtrace",
        two_requests().data,
        [(0, i * 1000, 1 + i * 7 % 977) for i in range(20_000)],
    )
    assert trace.waits
    fill(full, leave=4096)
    message = failed(
        in_process("trace", "export", tmp_path / "t.pgtrace", full / "x", "--format", format_), 1
    )
    last = clear(message.strip().splitlines()[-1])
    assert f"{full / 'x'}" in last
    assert "the disk is full; free some space" in last
