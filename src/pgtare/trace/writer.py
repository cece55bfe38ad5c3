"""Writes a trace: rows are collected by table and written as whole blocks, in files that rotate."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pgtare.errors import MeasurementError, UsageError
from pgtare.report import files
from pgtare.trace import blocks, limits
from pgtare.trace.columns import Column
from pgtare.trace.limits import LimitReached, Limits
from pgtare.trace.tables import COLUMNS, OF_BYTES, Table

#: Rows of a block, and bytes of the stream in one, after which it is written.
BLOCK_ROWS = 1 << 17
#: Begins and ends of waits are kept in units of so many ns: reading the clock takes as long.
WAIT_UNIT_NS = 8
_STREAM_BYTES = 4 << 20


class Writer:
    """A trace being written: one file where its name ends in .pgtrace, else a directory of files.

    Every file begins with the recording's description and with the rings and events known so
    far, so that those that remain of a directory can be read. Raises UsageError where the place
    cannot be used; LimitReached where a limit ends the recording, MeasurementError where the disk
    does. What was written until then stays and can be read. taken: rows by table, of the
    stream bytes; unwritten: what of that is in no file.
    """

    def __init__(self, target: Path, recording: bytes, sizes: Limits | None = None) -> None:
        self.sizes = sizes or Limits()
        self.single = target.suffix == blocks.SUFFIX
        self.directory = target.parent if self.single else target
        self.target = target
        self.written = 0
        self.rows: dict[Table, int] = defaultdict(int)
        self.taken: dict[Table, int] = defaultdict(int)
        self.unwritten: dict[Table, int] = defaultdict(int)
        self._id = secrets.token_bytes(16)
        self._recording = recording
        self._file: int | None = None
        self._path: Path | None = None
        self._files = self._number = self._in_file = self._stream_bytes = 0
        self._repeated: dict[Table, list[dict[str, Column]]] = {Table.RINGS: [], Table.EVENTS: []}
        self._rows: dict[Table, list[Mapping[str, Column]]] = defaultdict(list)
        self._collected: dict[Table, int] = defaultdict(int)
        self._made = not self.target.exists()
        try:
            self._claim()
            self._begin_file()
        except LimitReached as ex:
            self._unclaim()
            raise UsageError(f"nothing was begun: {ex}") from ex

    def _unclaim(self) -> None:
        """Leave the place as it was found."""
        self.abandon()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._made and not self.single:
            with contextlib.suppress(OSError):  # somebody else has put something there
                self.directory.rmdir()

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return self._files == 1 and not any(self.taken.values())

    def discard(self) -> None:
        """Leave no trace of a recording that is empty."""
        assert self.empty
        self._unclaim()
        self.written = 0

    def _claim(self) -> None:
        files.check_directory(self.target)
        if not self.single:
            files.check_unused(self.target)
        elif self.target.exists():
            raise UsageError(f"{self.target} exists already; name a file that does not")
        try:
            if not self.single:
                self.directory.mkdir(mode=0o700, exist_ok=True)
                self.directory.chmod(0o700)
            limits.check(self.directory, self.sizes, 0, 0)
        except OSError as ex:
            raise UsageError(f"{self.target} cannot be made: {ex.strerror}") from ex

    def _begin_file(self) -> None:
        path = self._path = (
            self.target if self.single
            else self.directory / f"trace-{self._files:05}{blocks.SUFFIX}"
        )  # fmt: skip
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as ex:
            raise UsageError(f"{path} cannot be written: {ex.strerror}") from ex
        self._number = self._in_file = 0
        self._put(blocks.file_header(blocks.FileHeader(self._id, self._files)))
        self._files += 1
        self._write(Table.RECORDING, {"json": [self._recording]}, 1)
        for table, known in self._repeated.items():
            if known:
                joined = _joined(table, known)
                self._write(table, joined, len(joined[COLUMNS[table][0]]))

    def add(self, table: Table, columns: Mapping[str, Column]) -> None:
        """Take rows; they are on disk after the next flush.

        gap_ns of waits is given as their start (ns since 1970): it becomes a gap when written.
        """
        assert tuple(columns) == COLUMNS[table]
        rows = len(columns[COLUMNS[table][0]])
        if not rows:
            return
        self._rows[table].append(columns)
        self._collected[table] += rows
        self.rows[table] += rows
        size = _taken(table, columns)
        self._stream_bytes += size if table is Table.STREAM else 0
        self.taken[table] += size
        self.unwritten[table] += size
        if self._collected[table] >= BLOCK_ROWS or self._stream_bytes >= _STREAM_BYTES:
            self.flush()

    def define(self, table: Table, columns: dict[str, Column]) -> None:
        """Rows of RINGS or EVENTS, which every later file repeats."""
        assert tuple(columns) == COLUMNS[table]
        self._write(table, columns, len(columns[COLUMNS[table][0]]))
        self._repeated[table].append(columns)

    def flush(self, sync: bool = False) -> None:
        """Write what was taken, and begin the next file where this one is large enough.

        What has no room is given up, and stays in `unwritten`; other tables may still have some.
        """
        reached: LimitReached | None = None
        for table in list(self._rows):
            parts, rows = self._rows.pop(table), self._collected.pop(table)
            size = sum(_taken(table, part) for part in parts)
            try:
                self._write(table, _joined(table, parts), rows)
                self.unwritten[table] -= size
            except LimitReached as ex:
                reached = reached or ex
        self._stream_bytes = 0
        if reached is not None:
            raise reached
        if not self.single and self._in_file >= self.sizes.file:
            self._end_file()
            self._begin_file()
        elif sync and self._file is not None:
            self._sync()

    def close(self, end: bytes) -> None:
        """Write the rest, and how the recording ended; without room for them, what has room."""
        try:
            self.flush()
            self._write(Table.END, {"json": [end]}, 1)
        except LimitReached:
            # the end takes some hundred bytes: it may go into the reserve
            self._rows.clear()
            self._collected.clear()
            with contextlib.suppress(LimitReached):  # not even that: it ends without
                self._put(blocks.block(Table.END, 1, self._number, {"json": [end]}))
        finally:
            self._end_file()

    def abandon(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, table: Table, columns: dict[str, Column], rows: int) -> None:
        data = blocks.block(table, rows, self._number, columns)
        limits.check(self.directory, self.sizes, self.written, len(data))
        self._put(data)
        self._number += 1

    def _put(self, data: bytes) -> None:
        """Append in one go; a torn end is cut off again, and recognised where that fails, too."""
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as ex:
            os.ftruncate(self._file, self._in_file)
            if ex.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise LimitReached("space", f"the disk of {self.target} is full") from ex
            raise MeasurementError(f"{self.target} cannot be written: {ex.strerror}") from ex
        self._in_file += len(data)
        self.written += len(data)

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file if self._file is not None else -1)
        except OSError as ex:
            raise MeasurementError(f"{self.target} cannot be written: {ex.strerror}") from ex

    def _end_file(self) -> None:
        if self._file is not None:
            try:
                self._sync()
            finally:
                self.abandon()


def _taken(table: Table, columns: Mapping[str, Column]) -> int:
    """Bytes of the stream, rows of other tables."""
    if table is Table.STREAM:
        return sum(len(row) for row in columns["data"])
    return len(columns[COLUMNS[table][0]])


def _joined(table: Table, parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    joined: dict[str, Column] = {}
    for name in COLUMNS[table]:
        if name in OF_BYTES:
            joined[name] = [row for part in parts for row in part[name]]
        else:
            arrays: list[Any] = [part[name] for part in parts]
            joined[name] = np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])
    if table is Table.WAITS:
        return _with_gaps(joined)
    return joined


def _in_units(ns: Any) -> Any:
    """Rounded, up or down: sums of lengths stay what they are."""
    return (ns + WAIT_UNIT_NS // 2) // WAIT_UNIT_NS * WAIT_UNIT_NS


def _with_gaps(columns: dict[str, Column]) -> dict[str, Column]:
    """Waits in order of ring and time; the start of each becomes the gap since the one before.

    The first of all counts from 0. Gaps are small where starts are not: they take a byte or two.
    """
    ring, start = np.asarray(columns["ring"]), np.asarray(columns["gap_ns"])
    order = np.lexsort((start, ring))
    sorted_columns = {name: np.asarray(values)[order] for name, values in columns.items()}
    ends = _in_units(sorted_columns["gap_ns"] + sorted_columns["length_ns"])
    start = _in_units(sorted_columns["gap_ns"])
    sorted_columns["length_ns"] = ends - start
    gaps = start.copy()
    gaps[1:] -= ends[:-1]
    sorted_columns["gap_ns"] = gaps
    return {name: sorted_columns[name] for name in COLUMNS[Table.WAITS]}
