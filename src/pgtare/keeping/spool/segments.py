"""Rows as Parquet files: split by UTC day and size, written, read, and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgtare.keeping.spool.tables import TABLES

#: The most rows of a segment.
MOST_ROWS = 500_000
#: Rows that are written, and held in memory, at a time.
GROUP_ROWS = 8_192
DAY_US = 86_400_000_000
DIRECTORY = "segments"

_EPOCH = date(1970, 1, 1)
#: How publications name segments.
_NAME = re.compile(r".+-(?P<seq>\d{10})-(?P<table>\w+)-(?P<day>\d{8})-\d+\.parquet")
#: What Parquet files begin and end with.
_MAGIC = b"PAR1"


@dataclass(frozen=True)
class Segment:
    """A file of rows of one table and one UTC day, as the manifest names it.

    name: below the spool. first_seq, last_seq: the commits that its rows came with. first_us,
    last_us: the earliest and latest ts, µs since 1970.
    """

    name: str
    table: str
    day: str
    first_seq: int
    last_seq: int
    rows: int
    bytes: int
    first_us: int
    last_us: int

    def to_list(self) -> list[Any]:
        """For the manifest."""
        return [*vars(self).values()]

    def day_end(self) -> datetime:
        """When its day is over."""
        start = datetime.fromisoformat(self.day).replace(tzinfo=UTC)
        return start + timedelta(days=1)


class DamagedFile(Exception):
    """A file that is not as it was written. why: "it is missing"."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


def times_us(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The column ts, in µs since 1970."""
    found: np.ndarray[Any, np.dtype[np.int64]] = rows["ts"].cast(pa.int64()).to_numpy()
    return found


def seqs(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers of the commits that rows came with, from the column segment."""
    codes = rows["segment"].combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    numbers = [int(one.rpartition("-")[2]) for one in codes.dictionary.to_pylist()]
    found: np.ndarray[Any, np.dtype[np.int64]] = np.array(numbers, np.int64)[
        codes.indices.to_numpy()
    ]
    return found


def parts(rows: pa.Table) -> Iterator[tuple[str, int, pa.Table]]:
    """Rows split into segments: day, number within the day, rows."""
    days = times_us(rows) // DAY_US
    found = np.unique(days)
    for day in found:
        name = (_EPOCH + timedelta(days=int(day))).isoformat()
        of_day = rows.filter(pa.array(days == day)) if len(found) > 1 else rows
        for number, start in enumerate(range(0, of_day.num_rows, MOST_ROWS)):
            yield name, number, of_day.slice(start, MOST_ROWS)


def as_stored(rows: pa.Table) -> pa.Table:
    """Rows as files hold them: times without a zone, in UTC.

    DuckDB counts with times that have a zone only after it was given an extension.
    """
    return as_types(rows, _stored_schema(rows.schema))


def as_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the types of a schema with the same names. Raises ValueError if they cannot be.

    Only columns of another type are cast: a cast takes time even if it changes nothing.
    """
    pairs = list(zip(rows.columns, schema, strict=False))
    if rows.schema.names != schema.names or any(
        column.null_count and not field.nullable for column, field in pairs
    ):
        return rows.cast(schema)  # which says what is wrong
    columns = [
        column if column.type == field.type else column.cast(field.type) for column, field in pairs
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _stored_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
        for field in schema
    )


def writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Writes Parquet as all files of a spool are written; give it rows `as_stored`."""
    return pq.ParquetWriter(
        sink,
        _stored_schema(schema),
        compression="zstd",
        use_dictionary=[field.name for field in schema if pa.types.is_string(field.type)],
        write_statistics=[name for name in ("ts", "server") if name in schema.names],
        write_page_checksum=True,
        store_schema=False,
    )


def encoded(rows: pa.Table) -> pa.Buffer:
    """A whole Parquet file."""
    sink = pa.BufferOutputStream()
    with writer(sink, rows.schema) as parquet:
        parquet.write_table(as_stored(rows), row_group_size=GROUP_ROWS)
    return sink.getvalue()


def check(root: Path, segment: Segment) -> None:
    """Raise DamagedFile if a segment's file is missing, cut or overwritten; it is not decoded."""
    try:
        with open(root / segment.name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != segment.bytes:
                raise DamagedFile(segment.name, f"it has {size} of {segment.bytes} bytes")
            ends = [file.read(4)]
            file.seek(-4, os.SEEK_END)
            if {*ends, file.read(4)} != {_MAGIC}:
                raise DamagedFile(segment.name, "it is not a Parquet file")
    except FileNotFoundError as ex:
        raise DamagedFile(segment.name, "it is missing") from ex
    except OSError as ex:
        raise DamagedFile(segment.name, os.strerror(ex.errno or 0)) from ex


def read(root: Path, segment: Segment, columns: list[str] | None = None) -> pa.Table:
    """Rows of a segment in its table's types. Raises DamagedFile."""
    check(root, segment)
    rows = _decoded(root / segment.name, segment.name, columns)
    return as_types(rows, _schema(segment, columns))


def _schema(segment: Segment, columns: list[str] | None) -> pa.Schema:
    schema = TABLES[segment.table].schema
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def recovered(root: Path, name: str, newest_seq: int) -> Segment | None:
    """A segment as its file shows it; None if it is none, or of a commit after `newest_seq`.

    One that cannot be read has no rows and no bytes, so that `check` finds it damaged.
    """
    found = _NAME.fullmatch(Path(name).name)
    if not found or found["table"] not in TABLES or int(found["seq"]) > newest_seq:
        return None
    table, seq = found["table"], int(found["seq"])
    day = date.fromisoformat(found["day"])
    try:
        rows = _decoded(root / name, name, ["ts", "segment"])
        times = times_us(rows)
        commits = [int(one.rpartition("-")[2]) for one in rows["segment"].unique().to_pylist()]
        of_rows = (min(commits), max(commits), rows.num_rows, os.stat(root / name).st_size)
        return Segment(
            name, table, day.isoformat(), *of_rows, int(np.min(times)), int(np.max(times))
        )
    except (DamagedFile, ValueError):
        start = (day - _EPOCH).days * DAY_US
        return Segment(name, table, day.isoformat(), seq, seq, 0, 0, start, start + DAY_US - 1)


def read_file(root: Path, name: str) -> pa.Table:
    """A Parquet file that is no segment. Raises DamagedFile."""
    return _decoded(root / name, name, None)


def groups(
    root: Path,
    segment: Segment,
    wanted: Collection[int] | None = None,
    columns: list[str] | None = None,
) -> Iterator[pa.Table]:
    """Rows of a segment, as many at a time as were written at a time. Raises DamagedFile.

    wanted: numbers of the groups that are read; columns: of these; None: all.
    """
    check(root, segment)
    schema = _schema(segment, columns)
    try:
        with _open(root / segment.name) as file:
            for number in range(file.num_row_groups):  # iter_batches would start threads
                if wanted is None or number in wanted:
                    rows = file.read_row_group(number, columns, use_threads=False)
                    yield as_types(rows, schema)
    except (pa.ArrowException, OSError) as ex:
        raise DamagedFile(segment.name, "it cannot be read as Parquet") from ex


def group_seqs(root: Path, segment: Segment) -> list[tuple[int, int]]:
    """The first and the last commit in each group of a segment's rows. Raises DamagedFile."""
    numbers = (seqs(rows) for rows in groups(root, segment, columns=["segment"]))
    return [(int(found.min()), int(found.max())) for found in numbers]


def _decoded(path: Path, name: str, columns: list[str] | None) -> pa.Table:
    try:
        with _open(path) as file:
            return file.read(columns=columns, use_threads=False)
    except FileNotFoundError as ex:
        raise DamagedFile(name, "it is missing") from ex
    except (pa.ArrowException, OSError) as ex:
        raise DamagedFile(name, "it cannot be read as Parquet") from ex


def _open(path: Path) -> pq.ParquetFile:
    # without pre_buffer no thread reads ahead
    return pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
