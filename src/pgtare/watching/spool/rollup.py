"""Rows summed up over minutes and hours: which are due, and their sums; no files.

A rolled-up table has a watermark: every row of its source with ts up to it is summed up, and none
after it. Rows that arrive behind it are summed up at once, into correcting rows: the sums of a
bucket are the sums of all its rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgtare.watching.spool.segments import times_us
from pgtare.watching.spool.tables import SpoolTable

#: Buckets that one step sums up, at most.
MOST_BUCKETS = 60
_US = 1_000_000


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


def summed(rows: pa.Table, table: SpoolTable) -> pa.Table:
    """One row for each bucket and key; without the column `segment`."""
    width = table.bucket_s * _US
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
