"""What `pgtare spool info` prints: what a spool holds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from pgtare.keeping.spool import lock, reader, retention
from pgtare.keeping.spool.manifest import SpoolManifest
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.volume import Volume
from pgtare.kit.document import Document, Model, schema_name

_US = 1_000_000
_GAPS = "SELECT server, kind, count(*), max(ts) FROM gaps GROUP BY ALL ORDER BY ALL"


class HeldTable(Model):
    """A table of a spool."""

    name: str = Field(description="name of the table")
    segments: int = Field(description="files")
    rows: int = Field(description="rows")
    bytes: int = Field(description="size of its files, bytes")
    first: str | None = Field(description="earliest ts, UTC; null: no rows")
    last: str | None = Field(description="latest ts, UTC; null: no rows")
    rolled_up_to: str | None = Field(
        description="of a rolled-up table: the ts up to which its source is summed up, UTC"
    )
    dropped_rows: int = Field(
        description="rows dropped so far, because they were old or to make room"
    )


class SpoolGaps(Model):
    """Rows of `gaps` of one server and kind."""

    server: str = Field(description="name of the server; empty: not known")
    kind: str = Field(
        description="restart, reset, absence, lost, disk_full, dropped, busy or unexpected"
    )
    rows: int = Field(description="their number")
    last: str = Field(description="the latest ts, UTC")


class SpoolInfo(Document):
    """What a spool holds."""

    schema_: Literal["pgtare.spool.info/1"] = schema_name("pgtare.spool.info/1")
    directory: str = Field(description="the directory")
    uuid: str = Field(description="UUID of the spool")
    commits: int = Field(description="number of the newest commit")
    writer_pid: int | None = Field(description="the process that writes it; null: none does")
    bytes: int = Field(description="size of all its files, bytes")
    free_bytes: int = Field(description="room left on its disk, bytes")
    waiting_bytes: int = Field(
        description="size of replaced files that are kept for readers for some minutes, bytes"
    )
    tables: list[HeldTable] = Field(description="the tables that have or had rows")
    gaps: list[SpoolGaps] = Field(description="what is missing")
    damaged: dict[str, str] = Field(description="files that were set aside, and why")
    notes: list[str] = Field(description="what was wrong while reading")


def info(directory: Path) -> SpoolInfo:
    """What a spool holds. Raises as `reader.newest` does."""
    content, _ = reader.newest(directory)
    gaps = reader.query(directory, _GAPS)
    tables = (_table(content, name) for name in TABLES)
    return SpoolInfo(
        directory=str(directory),
        uuid=content.uuid,
        commits=content.seq,
        writer_pid=lock.holder(directory),
        bytes=retention.total_bytes(content),
        free_bytes=Volume(directory).free_bytes(),
        waiting_bytes=sum(retired.bytes for retired in content.retired.values()),
        tables=[table for table in tables if table.rows or table.dropped_rows],
        gaps=[
            SpoolGaps(server=server, kind=kind, rows=rows, last=_iso(last))
            for server, kind, rows, last in gaps.rows
        ],
        damaged=dict(content.damaged),
        notes=gaps.notes,
    )


def _table(content: SpoolManifest, name: str) -> HeldTable:
    segments = content.of_table(name)
    rolled_us = content.rolled_us.get(name)
    return HeldTable(
        name=name,
        segments=len(segments),
        rows=sum(segment.rows for segment in segments),
        bytes=sum(segment.bytes for segment in segments),
        first=_time(min((segment.first_us for segment in segments), default=None)),
        last=_time(max((segment.last_us for segment in segments), default=None)),
        rolled_up_to=_time(rolled_us),
        dropped_rows=content.dropped.get(name, 0),
    )


def _time(us: int | None) -> str | None:
    return None if us is None else _iso(datetime.fromtimestamp(us / _US, UTC))


def _iso(when: datetime) -> str:
    return when.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
