"""Columns in a .npz: on full disks, damaged, and made to fool or bring down who reads them."""

from __future__ import annotations

import errno
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.kit import npz
from pgtare.weighing.weigh import store
from tests.commands import failed, in_process
from tests.small_volume import small_volume
from tests.unit import sample_result
from tests.unit.artefacts import clear

COLUMNS = {"number": np.random.default_rng(1).integers(0, 2**62, 100_000)}
NUMBERS = {"number": np.int64}


@pytest.fixture
def full(as_root: None) -> Iterator[Path]:
    with small_volume("size=256k") as path:
        yield path


def test_comes_back_as_it_went_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = np.zeros(3000, [("a", "<i8"), ("b", "u1"), ("c", "<f4"), ("d", "<u2"), ("e", "S5")])
    rows["a"], rows["c"] = rng.integers(-9, 9, 3000), rng.random(3000)
    columns = {name: rows[name] for name in rows.dtype.names or ()}
    columns["text"] = np.array([f"Näme {i}" for i in range(3000)])
    for some in (columns, {name: values[:0] for name, values in columns.items()}):
        npz.write(tmp_path / "r", some)
        found = npz.read(tmp_path / "r", {name: values.dtype for name, values in some.items()})
        assert list(found) == list(some)
        for name, values in some.items():
            assert found[name].dtype == values.dtype
            assert np.array_equal(found[name], values)
    assert os.listdir(tmp_path) == ["r"]


def test_nobody_else_may_read_it_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def seen(source: Path, _: Path) -> None:
        found.append(source.stat().st_mode & 0o777)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", seen)
    before = os.umask(0)
    try:
        with pytest.raises(KeyboardInterrupt):
            npz.write(tmp_path / "r.npz", COLUMNS)
    finally:
        os.umask(before)
    assert found == [0o600]
    assert os.listdir(tmp_path) == []


def test_it_is_synced_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Any] = []
    real = os.fsync

    def seen(fd: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.append(place if place.is_dir() else os.fstat(fd).st_size)
        real(fd)

    monkeypatch.setattr(os, "fsync", seen)
    npz.write(tmp_path / "r.npz", COLUMNS)
    assert synced == [(tmp_path / "r.npz").stat().st_size, tmp_path]


def test_what_has_no_room_is_not_there(full: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        npz.write(full / "r.npz", COLUMNS)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(full) == []
    with pytest.raises(OSError, match="No such file") as caught:
        npz.write(full / "nowhere" / "r.npz", COLUMNS)
    assert caught.value.errno == errno.ENOENT


def report(directory: Path) -> tuple[Path, list[str]]:
    """A file of columns, and the command that reads it."""
    sample_result.save(directory)
    return directory / store.OBSERVATIONS_FILE, ["report", str(directory)]


@pytest.mark.parametrize("kept", [0, 3, 0.5, -1])
def test_a_truncated_file_is_one_sentence(tmp_path: Path, kept: float) -> None:
    """Its name, that it is damaged, and what to do."""
    path, command = report(tmp_path / "r")
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    message = clear(failed(in_process(*command), 1))
    assert f"{path} is damaged: it cannot be read as columns of NumPy; " in message


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    path, command = report(tmp_path / "r")
    path.unlink()
    message = clear(failed(in_process(*command), 2))
    assert path.name in message


def test_whatever_is_damaged(tmp_path: Path) -> None:
    """Cut and overwritten anywhere: it can be read, or it is damaged in one sentence."""
    path = tmp_path / "r.npz"
    texts = np.array([f"text {i}" for i in range(3000)])
    npz.write(path, {"number": np.arange(3000) % 77, "text": texts})
    types: dict[str, npt.DTypeLike] = {"number": np.int64, "text": texts.dtype}
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    refused = []
    for i in range(400):
        data = bytearray(whole)
        for at in rng.integers(len(data) - 250 if i % 3 else 0, len(data), 3).tolist():
            data[at] = int(rng.integers(256))
        path.write_bytes(data if i % 2 else data[: int(rng.integers(len(data)))])
        try:
            npz.read(path, types)
        except PgtareError as ex:
            refused.append(str(ex))
    assert len(refused) > 200
    assert all("damaged" in clear(message) for message in refused)


def header(description: str) -> bytes:
    """What NumPy writes before the values of a column."""
    text = description.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def described(kind: str | list[tuple[str, str]], shape: str) -> bytes:
    return header(f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}")


def refusal(path: Path, member: bytes, **how: Any) -> str:
    """What is said of a file with such a column."""
    with zipfile.ZipFile(path, "w", **{"compression": zipfile.ZIP_DEFLATED} | how) as archive:
        archive.writestr("number.npy", member)
    with pytest.raises(PgtareError) as caught:
        npz.read(path, NUMBERS)
    return clear(str(caught.value))


NO_COLUMN = "r.npz is damaged: it cannot be read as columns of NumPy; restore it"
EIGHT = bytes(8)


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"not a column",
        described("<i8", "(1,)")[:40],
        described("<i8", "(2,)") + EIGHT,  # too few
        described("<i8", "(1,)") + EIGHT * 2,  # too many
        described("<i8", "(1, 1)") + EIGHT,
        described("<i8", "()") + EIGHT,
        described("<i8", "(-1,)"),
        described("<i8", f"({10**14},)") + EIGHT,
        described("<i8", f"({10**400},)") + EIGHT,
        described("|O", "(1,)") + b"cos\nsystem\n(S'false'\ntR.",
        described("<U0", f"({10**14},)"),
        described("<i3", "(1,)") + EIGHT,
        header("{'shape': (1,), }") + EIGHT,
        header("[" * 100) + EIGHT,
        described("<i8", "(1,)").replace(b"\x01\x00", b"\x03\x00", 1) + EIGHT,
    ],
)
def test_what_is_no_column_is_damaged(tmp_path: Path, member: bytes) -> None:
    assert NO_COLUMN in refusal(tmp_path / "r.npz", member)


@pytest.mark.parametrize("kind", ["<i4", ">i8", "<f8", "<U2", "|S8", "|V8", [("a", "<i8")]])
def test_another_type_is_damaged(tmp_path: Path, kind: str | list[tuple[str, str]]) -> None:
    size = np.dtype(kind).itemsize
    message = refusal(tmp_path / "r.npz", described(kind, "(3,)") + bytes(3 * size))
    assert "is damaged: the column number has the wrong type" in message


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_a_small_file_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    """It says that it unfolds to a thousand times what it can, or to more than the machine has."""

    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(np, "empty", never)
    path, rows = tmp_path / "r.npz", 50_000_000
    start = described("<i8", f"({rows},)")
    with zipfile.ZipFile(path, "w", compression=method) as archive:
        archive.writestr("number.npy", start + EIGHT * 100)
    data, length = path.read_bytes(), len(start) + 800
    whole = struct.pack("<I", len(start) + 8 * rows)
    assert data.count(struct.pack("<I", length)) >= 2
    path.write_bytes(data.replace(struct.pack("<I", length), whole))
    with pytest.raises(PgtareError) as caught:
        npz.read(path, NUMBERS)
    assert NO_COLUMN in clear(str(caught.value))


def test_more_than_there_is_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz.write(tmp_path / "r.npz", {"number": np.zeros(1_000_000, np.int64)})
    least = type("", (), {"available": 7_999_999})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: least)
    with pytest.raises(MeasurementError, match="needs more memory than this machine can give"):
        npz.read(tmp_path / "r.npz", NUMBERS)


def test_columns_of_different_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", a=np.arange(3), b=np.arange(4))
    with pytest.raises(PgtareError, match="damaged: its columns differ in length; restore it"):
        npz.read(tmp_path / "r.npz", {"a": np.int64, "b": np.int64})


def test_what_numpy_wrote_can_be_read(tmp_path: Path) -> None:
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "r.npz", number=np.arange(3), unwanted=np.array([None]))
        found = npz.read(tmp_path / "r.npz", NUMBERS)
        assert found["number"].tolist() == [0, 1, 2]


def test_other_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; check that it is there"):
        npz.read(tmp_path / "x", NUMBERS)
    with pytest.raises(UsageError, match="Is a directory"):
        npz.read(tmp_path, NUMBERS)
    npz.write(tmp_path / "r", {"a": np.arange(3)})
    with pytest.raises(PgtareError, match="lacks the column b; restore it"):
        npz.read(tmp_path / "r", {"a": np.int64, "b": np.int64})
