"""Many small segments of a table and day become a large one: which, and the merging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from pgtare.keeping.spool import segments
from pgtare.keeping.spool.publication import Publication
from pgtare.keeping.spool.segments import MOST_ROWS, Segment
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.volume import Volume

#: During a day, this many segments with about the same number of commits become one.
FAN_IN = 16
#: Files that one step merges, at most.
_MOST_FILES = 64
#: How long after its end a day counts as complete.
_SETTLED = timedelta(minutes=30)


def choose(found: Iterable[Segment], now: datetime) -> list[Segment]:
    """Segments to merge next, in the order of their commits; none if all is well.

    A day that is over becomes as few segments as possible. Of the current day a row is merged
    again only if the segment has grown sixteenfold.
    """
    days: dict[tuple[str, str], list[Segment]] = {}
    for segment in sorted(found, key=lambda one: (one.first_seq, one.name)):
        days.setdefault((segment.table, segment.day), []).append(segment)
    for group in days.values():
        if len(group) < 2:
            continue
        if group[0].day_end() + _SETTLED <= now:
            chosen = _that_fit(sorted(group, key=lambda one: one.rows))
        else:
            chosen = _of_one_tier(group)
        if len(chosen) > 1:
            return sorted(chosen, key=lambda one: (one.first_seq, one.name))
    return []


def _of_one_tier(group: Sequence[Segment]) -> list[Segment]:
    tiers: dict[int, list[Segment]] = {}
    for segment in group:
        tiers.setdefault(_tier(segment), []).append(segment)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= FAN_IN:
            return _that_fit(tiers[tier])
    return []


def _tier(segment: Segment) -> int:
    span, tier = segment.last_seq - segment.first_seq + 1, 0
    while span >= FAN_IN:
        span //= FAN_IN
        tier += 1
    return tier


def _that_fit(found: Sequence[Segment]) -> list[Segment]:
    rows, chosen = 0, []
    for segment in found[:_MOST_FILES]:
        rows += segment.rows
        if rows > MOST_ROWS:
            break
        chosen.append(segment)
    return chosen


def merge(
    volume: Volume, publication: Publication, replaced: Sequence[Segment], at_s: float
) -> None:
    """Write one segment with the rows of these, and retire them.

    Raises DamagedFile if one cannot be read, and OSError.
    """
    first = replaced[0]
    name = publication.segment_name(first.table, first.day, 0)
    with closing(volume.stream(name)) as sink:
        rows = _copy(volume.root, replaced, sink)
        sink.sync()
    assert rows == sum(segment.rows for segment in replaced)
    publication.retire(replaced, at_s)
    publication.add_segment(
        Segment(
            name,
            first.table,
            first.day,
            min(segment.first_seq for segment in replaced),
            max(segment.last_seq for segment in replaced),
            rows,
            sink.size,
            min(segment.first_us for segment in replaced),
            max(segment.last_us for segment in replaced),
        )
    )


def _copy(root: Path, replaced: Sequence[Segment], sink: object) -> int:
    """Copy rows in groups that fit memory; their number."""
    rows, waiting, held = 0, [], 0
    with segments.writer(sink, TABLES[replaced[0].table].schema) as parquet:
        for segment in replaced:
            for group in segments.groups(root, segment):
                waiting.append(group)
                held += group.num_rows
                if held >= segments.GROUP_ROWS:
                    parquet.write_table(segments.as_stored(pa.concat_tables(waiting)))
                    rows, waiting, held = rows + held, [], 0
        if waiting:
            parquet.write_table(segments.as_stored(pa.concat_tables(waiting)))
    return rows + held
