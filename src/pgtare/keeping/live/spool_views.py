"""The relations that the page's queries read, as views over a spool's segments.

Over long windows sums come from rolled-up tables: hours in the middle, minutes and ticks at the
edges and for what is not rolled up yet. So the sums are those of the finest rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pgtare.keeping.spool import reader
from pgtare.keeping.spool.manifest import SpoolManifest
from pgtare.keeping.spool.segments import Segment
from pgtare.keeping.spool.tables import TABLES
from pgtare.postgres.backend_types import BACKGROUND_SQL
from pgtare.postgres.wait_counters.active_sessions import CPU_EVENT, CPU_TYPE

#: How coarse the rows may be that a query reads.
Grain = Literal["tick", "minute", "hour"]

_US = 1_000_000
#: Tables from coarse to fine, for each relation that is rolled up.
_LEVELS = {
    "waits": ("waits_1h", "waits_1m", "waits"),
    "ticks": ("ticks_1h", "ticks_1m", "ticks"),
    "statements": ("statements_1h", "statements"),
    "activity": ("activity_1h", "activity"),
}
#: Relations that are read as a whole: their times are not those at which something happened.
WHOLE = ("texts", "recordings")
#: Times of some relations besides `ts`.
_TIMES = {"findings": ("since", "until"), "gaps": ("from_ts",), "recordings": ("started",)}
#: Active sessions in the form of waits: each row stands for the time since the look before.
SAMPLES = (
    f"SELECT backend_type IN {BACKGROUND_SQL} AS background, "
    "server, ts, ts_us, quality, backend_type, role, database, application, pid, "
    "coalesce(sessions.query_id, 0) AS query_id, query_age_us, "
    "CASE WHEN sessions.query_id IS NULL THEN 'outside' ELSE 'statement' END AS kind, "
    f"coalesce(sessions.type, '{CPU_TYPE}') AS type, "
    f"coalesce(sessions.event, '{CPU_EVENT}') AS event, "
    f"coalesce(sessions.type, '{CPU_TYPE}') = 'Activity' AS idle, "
    "covered_ns AS active_ns, CAST(0 AS BIGINT) AS calls, CAST(0 AS BIGINT) AS total_ns, "
    "nullif(covered_ns, covered_ns) AS max_ns "
    "FROM sessions WHERE state = 'active'"
)


@dataclass(frozen=True)
class RowsSpan:
    """Rows of one table after one time and up to another, µs since 1970."""

    table: str
    after_us: int
    to_us: int


def spans(
    relation: str, after_us: int, to_us: int, grain: Grain, rolled_us: Mapping[str, int]
) -> list[RowsSpan]:
    """Which rows of which tables make up a relation in a window; no row is in it twice."""
    return _spans(levels(relation, grain), after_us, to_us, rolled_us)


def levels(relation: str, grain: Grain) -> list[str]:
    """The tables that a relation may be read from, from coarse to fine."""
    every = _LEVELS.get(relation, (relation,))
    widths = {"tick": 0, "minute": 60, "hour": 3600}
    return [one for one in every if one == every[-1] or TABLES[one].bucket_s <= widths[grain]]


def _spans(
    levels: list[str], after_us: int, to_us: int, rolled_us: Mapping[str, int]
) -> list[RowsSpan]:
    if after_us >= to_us:
        return []
    level, finer = levels[0], levels[1:]
    if not finer:
        return [RowsSpan(level, after_us, to_us)]
    width = TABLES[level].bucket_s * _US
    first = -(-after_us // width) * width
    last = min(to_us // width * width, rolled_us.get(level, 0) // width * width)
    if last <= first:
        return _spans(finer, after_us, to_us, rolled_us)
    before, after = ((after_us, first), (last, to_us))
    return [
        *_spans(finer, *before, rolled_us),
        RowsSpan(level, first, last),
        *_spans(finer, *after, rolled_us),
    ]


def view(
    relation: str,
    found: SpoolManifest,
    root: str,
    window: tuple[int, int],
    grain: Grain,
    left_out: Collection[str] = (),
) -> str:
    """The SELECT of a relation. left_out: segments that cannot be read."""
    if relation == "samples":
        return SAMPLES
    parts = [
        _part(span, [f"{root}/{segment.name}" for segment in of_span], relation)
        for span, of_span in segments_of(relation, found, window, grain, left_out)
        if of_span
    ]
    return union(relation, parts or [reader.no_rows(TABLES[relation].columns)], "epoch_us")


def segments_of(
    relation: str,
    found: SpoolManifest,
    window: tuple[int, int],
    grain: Grain,
    left_out: Collection[str] = (),
) -> Iterator[tuple[RowsSpan, list[Segment]]]:
    """The segments that a relation is read from, by span. left_out: as of `view`."""
    if relation in WHOLE:
        window = (-(1 << 62), 1 << 62)
    for span in spans(relation, *window, grain, found.rolled_us):
        of_span = (
            one
            for one in found.of_table(span.table)
            if one.last_us > span.after_us and one.first_us <= span.to_us
        )
        yield span, [segment for segment in of_span if segment.name not in left_out]


def union(relation: str, parts: Sequence[str], micros: str) -> str:
    """These SELECTs as one, with all times as integers as well, in µs since 1970.

    micros: the function that gives these.
    """
    times = ("ts", *_TIMES.get(relation, ()))
    columns = ", ".join(["*", *(f"{micros}({name}) AS {name}_us" for name in times)])
    return f"SELECT {columns} FROM ({' UNION ALL '.join(parts)})"


def _part(span: RowsSpan, files: list[str], relation: str) -> str:
    names = ", ".join(column.name for column in TABLES[relation].columns)
    listed = ", ".join(reader.quoted(reader.pattern(file)) for file in files)
    condition = ""
    if abs(span.after_us) < 1 << 62:
        condition = (
            f" WHERE ts > make_timestamp({span.after_us}) AND ts <= make_timestamp({span.to_us})"
        )
    return f"SELECT {names} FROM read_parquet([{listed}], union_by_name = true){condition}"
