"""What a spool holds, as `pgtare spool info` shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pgtare.keeping.spool import lock, reader, retention
from pgtare.keeping.spool.documents import SpoolGaps, SpoolInfo, SpoolTable
from pgtare.keeping.spool.manifest import DroppedRows, SpoolManifest
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.volume import Volume

_US = 1_000_000
_GAPS = "SELECT server, kind, count(*), max(ts) FROM gaps GROUP BY ALL ORDER BY ALL"


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


def _table(content: SpoolManifest, name: str) -> SpoolTable:
    segments = content.of_table(name)
    dropped = content.dropped.get(name, DroppedRows())
    rolled_us = content.rolled_us.get(name)
    return SpoolTable(
        name=name,
        segments=len(segments),
        rows=sum(segment.rows for segment in segments),
        bytes=sum(segment.bytes for segment in segments),
        first=_time(min((segment.first_us for segment in segments), default=None)),
        last=_time(max((segment.last_us for segment in segments), default=None)),
        rolled_up_to=_time(rolled_us),
        dropped_rows=dropped.rows,
        dropped_bytes=dropped.bytes,
        dropped_unsent_rows=dropped.unsent_rows,
    )


def _time(us: int | None) -> str | None:
    return None if us is None else _iso(datetime.fromtimestamp(us / _US, UTC))


def _iso(when: datetime) -> str:
    return when.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
