"""Writes a trace: rows are collected by table and written as whole blocks of one file."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pgtare.errors import DiskFull, MeasurementError, UsageError
from pgtare.kit import files
from pgtare.observing.trace.file import blocks, disk_limits
from pgtare.observing.trace.file.columns import Column
from pgtare.observing.trace.file.disk_limits import LimitReached, Limits, NoRoom
from pgtare.observing.trace.file.tables import COLUMNS, OF_BYTES, Table

#: Rows of a block, and bytes of the stream in one, after which it is written.
BLOCK_ROWS = 1 << 17
#: Begins and ends of waits are kept in units of this many ns: reading the clock takes as long.
WAIT_UNIT_NS = 16
_STREAM_BYTES = 4 << 20


class Writer:
    """A trace being written, a file of its owner's.

    Raises UsageError if the place cannot be used, DiskFull if it has no room at all; LimitReached
    if a limit or a full disk ends the recording, MeasurementError if another fault of the disk
    does. What was written until then stays and can be read. taken: rows by table, of the stream
    bytes; unwritten: what of that is not in the file.
    """

    def __init__(self, target: Path, recording: bytes, sizes: Limits | None = None) -> None:
        self.sizes = sizes or Limits()
        self.target = target
        self.written = 0
        self.taken: dict[Table, int] = defaultdict(int)
        self.unwritten: dict[Table, int] = defaultdict(int)
        self._file: int | None = None
        self._number = self._stream_bytes = 0
        self._rows: dict[Table, list[Mapping[str, Column]]] = defaultdict(list)
        self._collected: dict[Table, int] = defaultdict(int)
        files.check_directory(target)
        if target.is_symlink() or target.exists():
            raise UsageError(f"{target} exists already; name a file that does not")
        try:
            self._begin(recording)
        except NoRoom as ex:
            raise DiskFull(f"nothing was begun: {ex}; {files.MAKE_ROOM}") from ex
        except LimitReached as ex:
            raise UsageError(f"nothing was begun: {ex}") from ex

    @property
    def holds_nothing(self) -> bool:
        """Whether no call and no wait is in the file."""
        return all(self.taken[of] == self.unwritten[of] for of in (Table.STREAM, Table.WAITS))

    def discard(self) -> None:
        """Leave no trace of a recording that holds nothing of any session."""
        self.abandon()
        self.target.unlink(missing_ok=True)
        self.written = 0

    def _begin(self, recording: bytes) -> None:
        """Begin the file: it gets its name when it can be read."""
        staging = self.target.with_name(f".{self.target.name}.partial")
        try:
            staging.unlink(missing_ok=True)  # of a recorder that was killed, or of anybody
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file = os.open(staging, flags, 0o600)
        except OSError as ex:
            raise disk_limits.full(self.target.parent, ex) or UsageError(
                f"{self.target} cannot be written: {ex.strerror}"
            ) from ex
        try:
            self._put(blocks.file_header())
            self._write(Table.RECORDING, {"json": [recording]})
            os.replace(staging, self.target)
        except BaseException:
            self.abandon()
            staging.unlink(missing_ok=True)
            raise

    def add(self, table: Table, columns: Mapping[str, Column]) -> None:
        """Take rows; they are on disk after the next flush.

        gap_ns of waits is given as their start (ns since 1970): it becomes a gap when written.
        """
        rows = len(columns[COLUMNS[table][0]])
        if not rows:
            return
        self._rows[table].append(columns)
        self._collected[table] += rows
        size = _taken(table, columns)
        self._stream_bytes += size if table is Table.STREAM else 0
        self.taken[table] += size
        self.unwritten[table] += size
        if self._collected[table] >= BLOCK_ROWS or self._stream_bytes >= _STREAM_BYTES:
            self.flush()

    def define(self, table: Table, columns: dict[str, Column]) -> None:
        """Rows of RINGS or EVENTS, which are in the file before the rows that name them."""
        self._write(table, columns)

    def flush(self, sync: bool = False) -> None:
        """Write what was taken.

        What has no room is given up, and stays in `unwritten`; other tables may still have some.
        """
        reached: LimitReached | None = None
        for table in list(self._rows):
            self._collected.pop(table)
            parts = self._rows.pop(table)
            try:
                self._write(table, _joined(table, parts))
                self.unwritten[table] -= sum(_taken(table, part) for part in parts)
            except LimitReached as ex:
                reached = reached or ex
        self._stream_bytes = 0
        if reached is not None:
            raise reached
        if sync:
            self._sync()

    def close(self, end: bytes) -> None:
        """Write the rest, and how the recording ended; without room for them, what has room."""
        try:
            self.flush()
            self._write(Table.END, {"json": [end]})
        except LimitReached:
            # the end takes some hundred bytes: it may go into the reserve
            self._rows.clear()
            self._collected.clear()
            with contextlib.suppress(LimitReached):  # not even that: it ends without
                self._put(blocks.block(Table.END, 1, self._number, {"json": [end]}))
        finally:
            try:
                self._sync()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, table: Table, columns: dict[str, Column]) -> None:
        assert tuple(columns) == COLUMNS[table]
        data = blocks.block(table, len(columns[COLUMNS[table][0]]), self._number, columns)
        disk_limits.check(self.target.parent, self.sizes, self.written, len(data))
        self._put(data)
        self._number += 1

    def _put(self, data: bytes) -> None:
        """Append in one go; a torn end is cut off again, and recognised if that fails, too.

        The file is opened for appending: else what comes next would lie behind a hole.
        """
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as ex:
            os.ftruncate(self._file, self.written)
            raise self._failure(ex) from ex
        self.written += len(data)

    def _sync(self) -> None:
        if self._file is None:
            return
        try:
            os.fdatasync(self._file)
        except OSError as ex:
            raise self._failure(ex) from ex

    def _failure(self, ex: OSError) -> Exception:
        return disk_limits.full(self.target.parent, ex) or MeasurementError(
            f"{self.target} cannot be written: {ex.strerror}"
        )


def row(table: Table, *values: int | bytes) -> dict[str, Column]:
    """The columns of one row, whose values are in the order of the table's columns."""
    return {
        name: [value] if isinstance(value, bytes) else np.array([value])
        for name, value in zip(COLUMNS[table], values, strict=True)
    }


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

    The first of all counts from 0. Gaps are small though starts are not: they take a byte or two.
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
