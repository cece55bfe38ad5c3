"""Readings of the cumulative counters: information, counters, information again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from pgtare.errors import MeasurementError
from pgtare.keeping.agent import queries
from pgtare.keeping.agent.queries import NAME_END, ROW_END
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres.wait_counters import steady_clock
from pgtare.postgres.wait_counters.counter_table import ACTIVE_NS, WIDTH, Array, CounterTable
from pgtare.postgres.wait_counters.epoch import Origin, Taken

#: How often a reading is taken again if counters were reset meanwhile, and the pause, in s.
_TRIES, _PAUSE_S = 5, 0.05
_WAITS_KEYS = ("backend_type", "type", "event")
#: Columns of the matrices: waits that ended, total_ns, running_ns, max_ns, running_waits, then
#: processes, idle, skipped of waits; skipped, role, database, query, identity of statements.
_WAITS_COLUMNS, _STATEMENTS_COLUMNS = 8, 10


class UnsteadyReading(MeasurementError):
    """The counters were reset again and again while they were read."""


@dataclass(frozen=True)
class TimingInfo:
    """What the module says about itself. losses: cumulative, by name."""

    origin: Origin
    server_us: int
    losses: dict[str, int] = field(compare=False)
    processors: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class WaitsReading:
    """All counters of one server at one moment.

    statements: None if only the waits were read. unread: types of processes that lack a process.
    busy: buckets of statements that were left out.
    """

    origin: Origin
    taken: Taken
    waits: CounterTable
    unread: Array
    info: TimingInfo
    statements: CounterTable | None = None
    busy: int = 0


#: What to do if nothing is counted.
CAPTURE_OFF = (
    "wait_event_timing captures no process: ALTER SYSTEM SET wait_event_timing.capture = 'stats'; "
    "SELECT pg_reload_conf();"
)


def captures(found: WaitsReading) -> bool:
    """Whether the waits of any process are counted now."""
    times = found.waits.keys["type"] == ""
    return bool(np.any(found.waits.processes[times] > 0))


def answered(server_us: int, asked_ns: int) -> Taken:
    """The moment of a reading, by all clocks. asked_ns: when it was asked, by `steady_clock`."""
    ours = steady_clock.now_ns()
    return Taken(integer(server_us), time.time_ns() // 1000, ours, ours - asked_ns)


def integer(value: object) -> int:
    """A value that must be a whole number of 64 bits. Raises ValueError."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r} is no whole number")
    return value


def integer_or_none(value: object) -> int | None:
    """The same, or NULL."""
    return None if value is None else integer(value)


def names_by_oid(rows: Sequence[Sequence[object]]) -> dict[int, str]:
    """Names of roles or databases. Raises ValueError."""
    names = {integer(oid): name for oid, name in rows}
    if not all(type(name) is str for name in names.values()):
        raise ValueError("a name is missing, or is no text")
    return cast(dict[int, str], names)


def matrix_of(found: object, columns: int) -> Array:
    """A matrix of whole numbers with so many columns. Raises ValueError."""
    if (
        not isinstance(found, np.ndarray)
        or found.dtype != np.int64
        or found.ndim != 2
        or found.shape[1] != columns
    ):
        raise ValueError(f"there is no matrix of {columns} columns of whole numbers")
    return found


def read(session: ServerSession, *, statements: bool) -> WaitsReading:
    """Read the counters of a server that has the module.

    Raises UnsteadyReading, and what `ServerSession.look` does.
    """
    for _ in range(_TRIES):
        with session.look("statements" if statements else "waits"):
            before = _info(session)
            reading = _counters(session, before, statements=statements)
            after = _info(session)
        # a reset counts when it begins and when it is done: it runs if the number is odd
        if before.origin == after.origin and (before.origin.resets or 0) % 2 == 0:
            return reading
        time.sleep(_PAUSE_S)
    raise UnsteadyReading("the counters were reset again and again while they were read")


def _info(session: ServerSession) -> TimingInfo:
    ((started, reset, resets, server_us, *losses, memory, processors),) = session.rows(queries.INFO)
    names = ("missed", "overflows", "statements_evicted", "statements_missed")
    origin = Origin(
        session.offer.system_identifier,
        integer(started),
        integer_or_none(memory),
        integer_or_none(reset),
        integer_or_none(resets),
    )
    return TimingInfo(
        origin,
        integer(server_us),
        dict(zip(names, map(integer, losses), strict=True)),
        None if processors is None else float(processors),
    )


def _counters(session: ServerSession, info: TimingInfo, *, statements: bool) -> WaitsReading:
    asked = steady_clock.now_ns()
    ((taken_us, names, matrix),) = session.rows(queries.MOMENT)
    taken = answered(info.server_us if taken_us is None else taken_us, asked)
    waits, unread = waits_table(names, matrix)
    if not statements:
        return WaitsReading(info.origin, taken, waits, unread, info)
    ((names, matrix),) = session.rows(queries.STATEMENTS)
    table, busy = statements_table(names, matrix)
    return WaitsReading(info.origin, taken, waits, unread, info, table, busy)


def waits_table(names: bytes | None, matrix: Array | None) -> tuple[CounterTable, Array]:
    """Waits by type of process and event, and the types that could not be read in full.

    Entries without a type of event are the time of processes whose waits are captured.
    """
    columns, values = _columns(names, matrix, _WAITS_KEYS, _WAITS_COLUMNS)
    table = _table({**columns, "idle": values[:, 6] != 0}, values, values[:, 5], _WAITS_COLUMNS)
    return table.distinct(), np.unique(columns["backend_type"][values[:, 7] > 0])


def statements_table(names: bytes | None, matrix: Array | None) -> tuple[CounterTable, int]:
    """Waits by statement and event, one entry each, and how many buckets were left out."""
    columns, values = _columns(names, matrix, ("type", "event"), _STATEMENTS_COLUMNS)
    keys = {
        "role_oid": values[:, 6],
        "database_oid": values[:, 7],
        "query_id": values[:, 8],
        "identity": values[:, 9],
        **columns,
        # a statement waits, for its client too, only while it is carried out
        "idle": np.zeros(len(values), bool),
    }
    table = _table(keys, values, values[:, 4], _STATEMENTS_COLUMNS)
    return table.select(columns["type"] != "").grouped(tuple(keys)), int(values[:, 5].sum())


def _table(
    keys: dict[str, Array], values: Array, processes: Array, first_bucket: int
) -> CounterTable:
    sums = np.empty((len(values), WIDTH), np.int64)
    sums[:, :2] = values[:, :2]
    sums[:, ACTIVE_NS] = values[:, 1] + values[:, 2]
    sums[:, ACTIVE_NS + 1 :] = values[:, first_bucket:]
    return CounterTable(keys, sums, values[:, 3], values[:, 4], processes)


#: The name of a row of counters is a handful of names, of at most 63 bytes each.
_MOST_LETTERS = 512


def _columns(
    names: bytes | None, matrix: Array | None, keys: Sequence[str], columns: int
) -> tuple[dict[str, Array], Array]:
    """Columns of names, each name split once however many rows have it; and the matrix."""
    width = columns + WIDTH - ACTIVE_NS - 1
    if names is None and matrix is None:
        none = np.zeros((0, width), np.int64)
        return {key: np.zeros(0, "U1") for key in keys}, none
    if names is None:
        raise ValueError("there are counters without names")
    values = matrix_of(matrix, width)
    split_names = bytes(names).decode("utf-8", "replace").split(ROW_END)
    if len(split_names) != len(values):
        raise ValueError(f"there are {len(split_names)} names for {len(values)} rows of counters")
    if (longest := max(map(len, split_names))) > _MOST_LETTERS:  # all take as much as the longest
        raise ValueError(f"a name of counters has {longest} letters")
    rows = np.array(split_names)
    distinct, where = np.unique(rows, return_inverse=True)
    # an extension may have given an event any name
    parts = [(name.split(NAME_END) + [""] * len(keys))[: len(keys)] for name in distinct]
    split = np.array(parts).reshape(len(distinct), len(keys))
    return {key: split[where, number] for number, key in enumerate(keys)}, values
