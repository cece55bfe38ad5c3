"""Columns of equal length in one file: a .npz of NumPy, written whole, read without trust.

`numpy.load(PATH)["COLUMN"]` reads it. Columns are numbers, or texts of a fixed width, so that
nothing has to be unpickled. A reader says which columns it wants, and of which types; what the file
says of sizes is compared with the file before memory is taken for it.
"""

from __future__ import annotations

import os
import re
import struct
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
_CHUNK = 1 << 20
_MAGIC = b"\x93NUMPY\x01\x00"
_LENGTH = struct.Struct("<H")
#: What NumPy writes before the values of a column.
_HEADER = re.compile(
    rb"\{'descr': '(?P<type>[<|][biufSU]\d{1,4})', 'fortran_order': (?:False|True), "
    rb"'shape': \((?P<rows>\d{1,15}),\), \} *\n"
)
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
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
                        member, np.ascontiguousarray(values), (1, 0), allow_pickle=False
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
    return {name: _values(archive, name, kind, rows[name]) for name, kind in types.items()}


def _described(info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> tuple[np.dtype[Any], int]:
    """Type and number of a column's values; ValueError unless they are as long as the file says."""
    with archive.open(info) as member:
        size, header = _header(member)
    found = _HEADER.fullmatch(header)
    if not found:
        raise ValueError("no column")
    kind, rows = np.dtype(found["type"].decode("ascii")), int(found["rows"])
    if size + rows * kind.itemsize != info.file_size or not kind.itemsize:
        raise ValueError("a column of another length")
    return kind, rows


def _header(member: Any) -> tuple[int, bytes]:
    """The length of all that is before the values, and what it says."""
    before = member.read(len(_MAGIC) + _LENGTH.size)
    if not before.startswith(_MAGIC):
        raise ValueError("no column")
    (length,) = _LENGTH.unpack_from(before, len(_MAGIC))
    return len(before) + length, member.read(length)


def _values(
    archive: zipfile.ZipFile, name: str, kind: np.dtype[Any], rows: int
) -> npt.NDArray[Any]:
    values = np.empty(rows, kind)
    octets, done = values.view(np.uint8), 0
    with archive.open(f"{name}.npy") as member:
        _header(member)
        while part := member.read(min(_CHUNK, len(octets) - done) or 1):
            octets[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
    if done != len(octets):
        raise EOFError
    return values


def _too_large(path: Path) -> MeasurementError:
    return MeasurementError(f"{path} needs more memory than this machine can give")
