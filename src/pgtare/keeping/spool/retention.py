"""How much a spool may take, which segments are given up for that, and the rows that say so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgtare.keeping.spool import segments, tables
from pgtare.keeping.spool.manifest import SpoolManifest
from pgtare.keeping.spool.segments import Segment
from pgtare.keeping.spool.tables import KEPT_S, TABLES, Age, rollups

_US = 1_000_000
_GIB = 1 << 30


@dataclass(frozen=True)
class SpoolLimits:
    """What a spool keeps to.

    most_bytes: of all its files. reserve_bytes: of the disk, left free for others. held_s: how long
    rows are held in memory while there is no room for them. reader_s: how long a replaced file
    stays for those who read it. grace_s: how long after its end a bucket is rolled up. kept_s: the
    age at which rows are dropped.
    """

    most_bytes: int = 10 * _GIB
    reserve_bytes: int = _GIB
    held_s: float = 600
    reader_s: float = 600
    grace_s: float = 20
    kept_s: Mapping[Age, float] = field(default_factory=lambda: dict(KEPT_S))


#: The tables whose rows are dropped if room is short, in this order; the others stay.
PRESSURE_ORDER = (
    "sessions",
    "agent",
    "recordings",
    "findings",
    "statements",
    "activity",
    "statements_1h",
    "activity_1h",
    "texts",
    "waits",
    "ticks",
    "waits_1m",
    "ticks_1m",
    "waits_1h",
    "ticks_1h",
)

#: Of these, the tables that are not dropped to leave room for others: the hours and minutes, which
#: are small and the whole history, and the texts that belong to them.
KEPT_FROM_OTHERS = (*(name for name in PRESSURE_ORDER if name[-3:] in ("_1m", "_1h")), "texts")


def known_us(manifest: SpoolManifest) -> int | None:
    """A time that was reached when a spool was written, in µs; None: it has no rows.

    A watermark is better than a row: rows may come from a clock that was ahead for a while.
    """
    if manifest.rolled_us:
        return max(manifest.rolled_us.values())
    return max((segment.last_us for segment in manifest.segments.values()), default=None)


def too_old(
    manifest: SpoolManifest,
    now_us: int,
    kept_s: Mapping[Age, float] = KEPT_S,
    sent_seq: int | None = None,
) -> list[Segment]:
    """Segments of which all rows are older than their table keeps them.

    sent_seq: those with rows of later commits wait for their store.
    """
    found = []
    for segment in manifest.segments.values():
        age = TABLES[segment.table].age
        if age is None or not _rolled_up(manifest, segment):
            continue
        if sent_seq is not None and segment.last_seq > sent_seq:
            continue
        if segment.last_us < now_us - kept_s[age] * _US:
            found.append(segment)
    return found


def first_to_go(manifest: SpoolManifest) -> Segment | None:
    """The segment that is dropped next if room is short: by table, then the oldest."""
    return next(_droppable(manifest, PRESSURE_ORDER), None)


def first_for_others(manifest: SpoolManifest, short_bytes: int) -> Segment | None:
    """The segment that is dropped next if others need that much of the disk.

    If all that may go is less than that, only sessions go: the rest would be lost for nothing.
    """
    tables = [table for table in PRESSURE_ORDER if table not in KEPT_FROM_OTHERS]
    some = list(_droppable(manifest, tables))
    if sum(segment.bytes for segment in some) < short_bytes:
        some = [segment for segment in some if segment.table == "sessions"]
    return some[0] if some else None


def _droppable(manifest: SpoolManifest, tables: Iterable[str]) -> Iterator[Segment]:
    for table in tables:
        some = (s for s in manifest.of_table(table) if _rolled_up(manifest, s))
        yield from sorted(some, key=lambda segment: segment.last_us)


def _rolled_up(manifest: SpoolManifest, segment: Segment) -> bool:
    """Whether all its rows are in the rolled-up tables, if its table has any."""
    return all(manifest.is_rolled_up(segment, table.name) for table in rollups(segment.table))


def lost_by_server(rows: pa.Table) -> dict[str, tuple[int, int, int]]:
    """For each server: number of rows, earliest and latest ts in µs."""
    times = rows["ts"].cast(pa.int64())
    found = (
        pa.table({"server": rows["server"], "ts": times})
        .group_by("server", use_threads=False)
        .aggregate([("ts", "count"), ("ts", "min"), ("ts", "max")])
    )
    assert pc.sum(found["ts_count"]).as_py() in (rows.num_rows, None)
    columns = (found[name].to_pylist() for name in ("ts_count", "ts_min", "ts_max"))
    return dict(zip(found["server"].to_pylist(), zip(*columns, strict=True), strict=True))


def gap(
    kind: str, detail: str, from_us: int, to_us: int, *, server: str = "", ts_us: int | None = None
) -> pa.Table:
    """A row of `gaps` of the spool's own.

    server: empty if it is not known whose rows they were. ts_us: when they were given up, if that
    was later than the end of what is missing.
    """
    return tables.rows(
        "gaps",
        {
            "server": [server],
            "agent": [""],
            "epoch": [0],
            "ts": [_time(to_us if ts_us is None else ts_us)],
            "covered_ns": [max(to_us - from_us, 0) * 1000],
            "quality": ["exact"],
            "kind": [kind],
            "from_ts": [_time(from_us)],
            "detail": [detail],
        },
    )


def gaps_of(
    segment: Segment, rows: pa.Table | None, kind: str, why: str, now: datetime
) -> Iterator[pa.Table]:
    """A row of `gaps` for each server that has lost rows of a segment. rows: None if unreadable."""
    found = {"": (segment.rows, segment.first_us, segment.last_us)}
    if rows is not None:
        found = lost_by_server(rows)
    now_us = int(now.timestamp() * _US)
    for server, (number, first, last) in sorted(found.items()):
        detail = f"{segment.table}: {number or 'all'} rows of {segment.day} ({why})"
        yield gap(kind, detail, first, last, server=server, ts_us=now_us)


def gaps_of_file(manifest: SpoolManifest, name: str, why: str, now: datetime) -> Iterator[pa.Table]:
    """Rows of `gaps` for a damaged file: a segment, or a reading that a server's rows went on from.

    What a server did between its last rows and the next reading is in no row.
    """
    if name in manifest.segments:
        yield from gaps_of(manifest.segments[name], None, "lost", why, now)
    now_us = int(now.timestamp() * _US)
    last_us = max((one.last_us for one in manifest.segments.values()), default=now_us)
    for (server, part), reading in manifest.readings.items():
        if reading.name == name:
            detail = f"what came after the last rows: the reading of {part} is damaged ({why})"
            yield gap("lost", detail, min(last_us, now_us), now_us, server=server)


def unsent_rows(segment: Segment, rows: pa.Table | None, sent_seq: int | None) -> int:
    """How many rows of a segment are of commits after `sent_seq`. rows: None if unreadable."""
    if sent_seq is None or segment.last_seq <= sent_seq:
        return 0
    if rows is None:
        return segment.rows
    return int(np.count_nonzero(segments.seqs(rows) > sent_seq))


def total_bytes(manifest: SpoolManifest) -> int:
    """Bytes of a spool's files, with those that were replaced and are still there."""
    parts = (manifest.segments, manifest.readings, manifest.retired)
    return sum(one.bytes for part in parts for one in part.values())


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / _US, UTC)
