"""Parquet files on full disks, and damaged ones: one sentence, whatever DuckDB says."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.kit import parquet
from pgtare.observing.trace.output import export
from pgtare.weighing.weigh import store
from tests.commands import failed, in_process
from tests.sample_trace import two_requests
from tests.small_volume import fill, small_volume
from tests.unit import made_traces, sample_result
from tests.unit.artefacts import KINDS, clear

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

    monkeypatch.setattr(parquet, "sync", lambda path: seen(path) if path.is_file() else None)
    monkeypatch.setattr(os, "chmod", lambda *_: None)
    before = os.umask(0o022)
    try:
        parquet.write(tmp_path / "r.parquet", COLUMNS)
    finally:
        os.umask(before)
    assert found == [0o600]


def test_what_has_no_room_is_not_there(full: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        parquet.write(full / "r.parquet", COLUMNS)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(full) == []
    with pytest.raises(OSError, match="No such file") as caught:
        parquet.write(full / "nowhere" / "r.parquet", COLUMNS)
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("format_", export.FORMATS)
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


def flame_show(directory: Path) -> tuple[Path, list[str]]:
    KINDS["flame"].write(directory)
    return directory / "samples.parquet", ["flame", "show", str(directory)]


def flame_diff(directory: Path) -> tuple[Path, list[str]]:
    KINDS["flame"].write(directory)
    other = directory.with_name("other")
    KINDS["flame"].write(other)
    return directory / "samples.parquet", ["flame", "diff", str(other), str(directory)]


def report(directory: Path) -> tuple[Path, list[str]]:
    sample_result.save(directory)
    return directory / store.OBSERVATIONS_FILE, ["report", str(directory)]


@pytest.mark.parametrize("made", [flame_show, flame_diff, report])
@pytest.mark.parametrize("kept", [0, 3, 0.5, -1])
def test_a_truncated_file_is_one_sentence(
    tmp_path: Path, made: Callable[[Path], tuple[Path, list[str]]], kept: float
) -> None:
    """Its name, that it is damaged, and what to do."""
    path, command = made(tmp_path / "r")
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    message = clear(failed(in_process(*command), 1))
    assert f"{path} is damaged: it cannot be read as Parquet; " in message


@pytest.mark.parametrize("made", [flame_show, flame_diff, report])
def test_a_missing_file_is_one_sentence(
    tmp_path: Path, made: Callable[[Path], tuple[Path, list[str]]]
) -> None:
    path, command = made(tmp_path / "r")
    path.unlink()
    message = clear(failed(in_process(*command), 2))
    assert path.name in message or "is no recording" in message


def test_whatever_is_damaged(tmp_path: Path) -> None:
    """Cut and overwritten anywhere: it can be read, or it is damaged in one sentence."""
    path = tmp_path / "r.parquet"
    texts = np.array([f"text {i}" for i in range(3000)], object)
    parquet.write(path, {"number": np.arange(3000) % 77, "text": texts})
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    refused = []
    for i in range(80):
        data = bytearray(whole)
        for at in rng.integers(len(data) - 400 if i % 3 else 0, len(data), 3).tolist():
            data[at] = int(rng.integers(256))
        path.write_bytes(data if i % 2 else data[: int(rng.integers(len(data)))])
        try:
            parquet.read(path)
        except PgtareError as ex:
            refused.append(str(ex))
    assert len(refused) > 40
    assert all("damaged" in clear(message) for message in refused)


def test_other_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; check that it is there"):
        parquet.read(tmp_path / "x")
    with pytest.raises(UsageError, match="Is a directory"):
        parquet.read(tmp_path)
    parquet.write(tmp_path / "r", {"a": np.arange(3)})
    with pytest.raises(PgtareError, match="lacks the column b; restore it"):
        parquet.read(tmp_path / "r", ["a", "b"])
