"""Columns of equal length in one file: a .npz of NumPy, written whole, read without trust.

`numpy.load(PATH)["COLUMN"]` reads it. Columns are numbers, or texts of a fixed width, so that
nothing has to be unpickled. A reader says which columns it wants, and of which types; what the file
says of sizes is compared with the file before memory is taken for it.
"""

from __future__ import annotations

import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import artefact, files

#: Higher levels take several times as long for a few per cent.
_LEVEL = 1
#: How many times longer than what it is made of the output of deflate can be.
_MOST_DEFLATED = 1032
#: Of NumPy's format: any header of our columns fits in.
_VERSION = (1, 0)
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)


def write(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write equally long columns to `path`, whole or not at all, synced, for its owner only.

    Raises OSError with the system's number of the cause.
    """
    assert len({len(values) for values in columns.values()}) == 1
    try:
        with (
            files.staged(path) as staging,
            zipfile.ZipFile(staging, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive,
        ):
            for name, values in columns.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(
                        member, np.ascontiguousarray(values), _VERSION, allow_pickle=False
                    )
    except OSError as ex:
        raise OSError(ex.errno, os.strerror(ex.errno or 0), str(path)) from ex


def read(path: Path, types: Mapping[str, npt.DTypeLike]) -> dict[str, npt.NDArray[Any]]:
    """The columns of these names and types in the file at `path`.

    Raises UsageError if the file cannot be read, PgtareError if it is damaged, and MeasurementError
    if it needs too much memory.
    """
    try:
        file = path.open("rb")
    except OSError as ex:
        raise UsageError(
            f"{path} cannot be read: {ex.strerror}; check that it is there, and yours to read"
        ) from ex
    with file:
        try:
            with zipfile.ZipFile(file) as archive:
                _check_members(archive, os.fstat(file.fileno()).st_size)
                return _columns(path, archive, {n: np.dtype(kind) for n, kind in types.items()})
        except MemoryError as ex:
            raise _too_large(path) from ex
        except _DAMAGED as ex:
            raise artefact.damaged(path, "it cannot be read as columns of NumPy") from ex


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError if they cannot be made of the bytes that the file has."""
    members = archive.infolist()
    for info in members:
        times = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _MOST_DEFLATED}[info.compress_type]
        if info.file_size > times * info.compress_size:
            raise ValueError("more than it can be made of")
    if sum(info.compress_size for info in members) > size:
        raise ValueError("more than there is")


def _columns(
    path: Path, archive: zipfile.ZipFile, types: Mapping[str, np.dtype[Any]]
) -> dict[str, npt.NDArray[Any]]:
    names = set(archive.namelist())
    rows: dict[str, int] = {}
    for name, kind in types.items():
        if f"{name}.npy" not in names:
            raise artefact.damaged(path, f"it lacks the column {name}")
        found, rows[name] = _described(archive.getinfo(f"{name}.npy"), archive)
        if found != kind:
            raise artefact.damaged(path, f"the column {name} has the wrong type")
    if len(set(rows.values())) > 1:
        raise artefact.damaged(path, "its columns differ in length")
    needed = sum(rows[name] * kind.itemsize for name, kind in types.items())
    if needed > psutil.virtual_memory().available:
        raise _too_large(path)
    return {name: _values(archive, name) for name in types}


def _described(info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> tuple[np.dtype[Any], int]:
    """Type and number of a column's values; ValueError unless they are as long as the file says."""
    with archive.open(info) as member:
        if np.lib.format.read_magic(member) != _VERSION:
            raise ValueError("no column")
        shape, _, kind = np.lib.format.read_array_header_1_0(member)
        header = member.tell()
    if len(shape) != 1 or shape[0] < 0 or not kind.itemsize:
        raise ValueError("no column")
    if header + shape[0] * kind.itemsize != info.file_size:
        raise ValueError("a column of another length")
    return kind, shape[0]


def _values(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        values: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return values


def _too_large(path: Path) -> MeasurementError:
    return MeasurementError(f"{path} needs more memory than this machine can give")
