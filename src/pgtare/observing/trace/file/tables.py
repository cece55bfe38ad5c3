"""The tables of a trace file: their numbers and columns; docs/trace-format.md describes them."""

from __future__ import annotations

from enum import IntEnum


class Table(IntEnum):
    """What the rows of a block are; a number is never used for anything else later."""

    RECORDING = 1
    RINGS = 2
    EVENTS = 3
    WAITS = 4
    MARKS = 5
    STREAM = 6
    LOSSES = 7
    PROCESSOR = 8
    TEXTS = 9
    END = 127


#: In the place of a ring's number: of all sessions that ended before anybody had read their traces.
NO_RING = 0
#: Column names by table. All are integers but those OF_BYTES.
COLUMNS: dict[Table, tuple[str, ...]] = {
    Table.RECORDING: ("json",),
    Table.RINGS: ("ring", "pid", "started_ns", "json"),
    Table.EVENTS: ("event", "code", "class", "name"),
    Table.WAITS: ("ring", "event", "gap_ns", "length_ns", "calls"),
    Table.MARKS: ("ring", "kind", "depth", "when_ns", "value"),
    Table.STREAM: ("ring", "position", "data"),
    Table.LOSSES: ("ring", "when_ns", "lost"),
    Table.PROCESSOR: ("ring", "when_ns", "cpu_ns", "queue_ns"),
    Table.TEXTS: ("query_id", "text"),
    Table.END: ("json",),
}
#: Columns of a table that are stored in the order of another.
GROUPED: dict[int, dict[str, str]] = {Table.WAITS: {"gap_ns": "event", "length_ns": "event"}}
#: Columns of bytes; the others are 64-bit integers.
OF_BYTES = frozenset({"json", "class", "name", "data", "text"})
