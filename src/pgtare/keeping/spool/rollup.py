"""Rows summed up over minutes and hours: which are due, and their sums; no files.

A rolled-up table has a watermark: every row of its source with ts up to it is summed up, and none
after it. Rows that arrive behind it are summed up at once, into correcting rows: the sums of a
bucket are the sums of all its rows. If a clock was ahead, the watermark is set back, and what was
summed up beyond it is known by its commits.

A row belongs to the bucket that it ends in. One that covers long, as after an absence, is spread
over the buckets that it covers, in proportion and in whole numbers: each column of the parts adds
up to the row's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgtare.keeping.spool.segments import seqs, times_us
from pgtare.keeping.spool.tables import TABLES, Rule, SpoolTable

#: Buckets that one step sums up, at most.
MOST_BUCKETS = 60
#: A row that covers more than this, in ns, is spread. Intervals of a minute are not, despite
#: jitter: they would be in two buckets each.
SPREAD_NS = 90 * 10**9
#: A row is spread over at most this many buckets. If it covers more, buckets are wider: 60 of them.
MOST_PARTS, _WIDER = 360, 60
#: This many rows are summed up at once, or as many as there are sums.
_FOLDED_ROWS = 4_096
_US = 1_000_000
_INT64 = np.dtype(np.int64)


def bucket_end(us: int, table: SpoolTable) -> int:
    """The end of the bucket that a row with this ts belongs to: an interval ends at its ts."""
    width = table.bucket_s * _US
    return -(-us // width) * width


def last_closed(us: int, table: SpoolTable) -> int:
    """The end of the last bucket that is over at this time."""
    width = table.bucket_s * _US
    return us // width * width


def between(rows: pa.Table, after_us: int, to_us: int) -> pa.Table:
    """The rows after one time, up to another."""
    times = times_us(rows)
    inside = (times > after_us) & (times <= to_us)
    if not inside.any():
        return rows.slice(0, 0)
    return rows if inside.all() else rows.filter(pa.array(inside))


def without(rows: pa.Table, early: Iterable[tuple[int, int]]) -> pa.Table:
    """The rows that are not of a commit up to one with a ts up to another."""
    for seq, us in early:
        rows = rows.filter(pa.array((seqs(rows) > seq) | (times_us(rows) > us)))
    return rows


def summed(rows: pa.Table, table: SpoolTable) -> pa.Table:
    """One row for each bucket and key; without the column `segment`."""
    return _grouped(_spread(rows, table), table)


def summed_groups(groups: Iterable[pa.Table], table: SpoolTable) -> pa.Table:
    """The same of rows that come group by group; only a few groups are in memory at a time.

    Sums of sums are the sums, in the same order; what was last in a bucket needs all its rows.
    """
    if any(column.rule == "last" for column in table.columns):
        return summed(pa.concat_tables(groups), table)
    schema = table.row_schema
    so_far, waiting, held = schema.empty_table(), [], 0
    for group in groups:
        spread = _spread(group, table).select(schema.names)
        waiting.append(spread)
        held += spread.num_rows
        if held >= max(_FOLDED_ROWS, so_far.num_rows):
            so_far = _grouped(pa.concat_tables([so_far, *waiting]), table)
            waiting, held = [], 0
    return _grouped(pa.concat_tables([so_far, *waiting]), table)


def _grouped(rows: pa.Table, table: SpoolTable) -> pa.Table:
    width = table.bucket_s * _US
    # in one piece: grouped chunk by chunk, many statements take 20 MB more
    rows = rows.combine_chunks()
    times = times_us(rows)
    if any(column.rule == "last" for column in table.columns):
        order = pa.array(np.argsort(times, kind="stable"))
        rows, times = rows.take(order), np.sort(times)
    ends = pa.array(-(-times // width) * width).cast(table.schema.field("ts").type)
    rows = rows.set_column(rows.schema.get_field_index("ts"), "ts", ends)
    keys = [c.name for c in table.columns if c.rule == "key" and c.name != "segment"]
    totals = [
        (c.name, c.rule, pc.ScalarAggregateOptions(skip_nulls=True, min_count=1))
        for c in table.columns
        if c.rule != "key"
    ]
    found = rows.group_by(keys, use_threads=False).aggregate(totals)
    names = {f"{name}_{rule}": name for name, rule, _ in totals}
    found = found.rename_columns([names.get(name, name) for name in found.column_names])
    schema = table.row_schema
    return found.select(schema.names).cast(schema)


def _spread(rows: pa.Table, table: SpoolTable) -> pa.Table:
    """The same rows, with parts in place of those that cover long."""
    if table.source is None or TABLES[table.source].source is not None:
        return rows  # minutes are parts already
    covered = rows["covered_ns"].to_numpy()
    long = covered > SPREAD_NS
    if not long.any():
        return rows
    ends_ns = times_us(rows) * 1000
    numbers, shares, totals, ends_us = [], [], [], []
    for number in np.flatnonzero(long).tolist():
        ends, parts = _parts(int(ends_ns[number]), int(covered[number]), table.bucket_s)
        numbers += [number] * len(ends)
        ends_us += [end // 1000 for end in ends]
        shares += parts
        totals += [int(covered[number])] * len(ends)
    last = np.append(np.diff(numbers) != 0, True)
    whole = rows.take(pa.array(numbers, pa.int64()))
    rules = {column.name: column.rule for column in table.columns}
    columns = []
    for field in whole.schema:
        column = whole[field.name]
        if field.name == "ts":
            column = pa.array(ends_us, pa.int64()).cast(field.type)
        else:
            column = _shared(column, rules[field.name], shares, totals, last)
        columns.append(column)
    parts_table = pa.table(columns, schema=whole.schema)
    return pa.concat_tables([rows.filter(pa.array(~long)), parts_table])


def _parts(end_ns: int, covered_ns: int, bucket_s: int) -> tuple[list[int], list[int]]:
    """Where the parts of a row end, and how much of what it covers is over by then, all in ns."""
    width = bucket_s * _US * 1000
    while covered_ns > MOST_PARTS * width:
        width *= _WIDER
    start_ns = end_ns - covered_ns
    ends = list(range((start_ns // width + 1) * width, end_ns, width))
    ends.append(end_ns)
    return ends, [end - start_ns for end in ends]


def _shared(
    column: pa.ChunkedArray,
    rule: Rule,
    over: Sequence[int],
    totals: Sequence[int],
    last: np.ndarray[Any, np.dtype[np.bool_]],
) -> pa.ChunkedArray | pa.Array:
    """A column of the parts: of a sum each part has its share, and of what was last the last has.

    What is over by the end of a part is rounded, and the part is what that grew by. So the parts
    add up, whatever is rounded. Python's integers hold any product.
    """
    if rule == "last":
        return pc.if_else(pa.array(last), column, pa.scalar(None, column.type))
    if rule != "sum":
        return column
    values, part, whole = (np.array(some, object) for some in (column.to_pylist(), over, totals))
    so_far = (2 * values * part + whole) // (2 * whole)
    first = np.append(True, last[:-1])
    shares = so_far - np.where(first, 0, np.append(0, so_far[:-1]))
    return pa.array(shares.astype(_INT64), column.type)
