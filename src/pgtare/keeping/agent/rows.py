"""Rows of the spool's tables, from what one server's readings grew by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pgtare.keeping.agent.baseline import arrow
from pgtare.keeping.agent.queries import ACTIVITY_COLUMNS
from pgtare.keeping.spool import tables
from pgtare.postgres.backend_types import BACKGROUND
from pgtare.postgres.wait_counters.counter_table import SUMS, Array, CounterTable
from pgtare.postgres.wait_counters.difference import OUTSIDE, REST, StatementRows
from pgtare.postgres.wait_counters.epoch import WatchGap

EXACT, APPROXIMATE, SAMPLED = "exact", "approximate", "sampled"
#: Names of rows that are of no single role or database.
_NOBODY = {REST: "(rest)", OUTSIDE: "(outside)"}


@dataclass(frozen=True)
class RowInterval:
    """What all rows of one look have in common. ts_us: its end, µs since 1970."""

    server: str
    agent: str
    epoch: int
    ts_us: int
    covered_ns: int
    quality: str

    def columns(self, count: int) -> dict[str, Any]:
        """The common columns of `count` rows."""

        # a text without a type has Arrow look for pandas, on disk, each time
        def text(value: str) -> pa.Array:
            return pa.repeat(pa.scalar(value, pa.string()), count)

        return {
            "server": text(self.server),
            "agent": text(self.agent),
            "epoch": pa.repeat(pa.scalar(self.epoch, pa.int64()), count),
            "ts": pa.repeat(pa.scalar(self.ts_us, pa.timestamp("us", "UTC")), count),
            "covered_ns": pa.repeat(pa.scalar(self.covered_ns, pa.int64()), count),
            "quality": text(self.quality),
        }


@dataclass
class Batch:
    """What the looks of one server or of the agent bring to the next commit.

    rows: tables by name, in parts. readings: by part; the last one counts.
    """

    rows: dict[str, list[pa.Table]] = field(default_factory=dict)
    readings: dict[str, pa.Table] = field(default_factory=dict)

    def add(self, name: str, columns: Mapping[str, Any], interval: RowInterval, count: int) -> None:
        """Add rows to a table; none if there are none."""
        if count:
            table = tables.rows(name, {**interval.columns(count), **columns})
            self.rows.setdefault(name, []).append(table)

    def tick(self, interval: RowInterval, source: str) -> None:
        """Book the time that a look covers, also if nothing happened in it."""
        self.add("ticks", {"source": [source], "ticks": [1]}, interval, 1)

    def gap(self, interval: RowInterval, gap: WatchGap) -> None:
        """Say what is missing."""
        since = pa.array([gap.from_us], pa.timestamp("us", "UTC"))
        columns = {"kind": [gap.kind], "from_ts": since, "detail": [gap.detail]}
        self.add("gaps", columns, interval, 1)

    def figures(self, interval: RowInterval, found: Sequence[tuple[str, float, str]]) -> None:
        """Add figures of the agent itself: kind, value, unit."""
        columns = {
            "kind": [kind for kind, _, _ in found],
            "value": [value for _, value, _ in found],
            "unit": [unit for _, _, unit in found],
        }
        self.add("agent", columns, interval, len(found))

    def waits(self, interval: RowInterval, grown: CounterTable) -> None:
        """Add what waits grew by."""
        columns = {
            **{name: arrow(column) for name, column in grown.keys.items()},
            "background": arrow(np.isin(grown.keys["backend_type"], BACKGROUND)),
            **_sums(grown),
            "sessions": grown.processes.astype(np.int32),
        }
        self.add("waits", columns, interval, len(grown))

    def statements(
        self,
        interval: RowInterval,
        found: StatementRows,
        roles: Mapping[int, str],
        databases: Mapping[int, str],
        text_hashes: Mapping[int, int],
    ) -> None:
        """Add what statements grew by, with names and hashes of texts as far as known."""
        rows, kinds = found.rows, found.kind
        hashes = named(rows.keys["query_id"], text_hashes, None)
        columns = {
            "role_oid": rows.keys["role_oid"],
            "role": _names(rows.keys["role_oid"], kinds, roles),
            "database_oid": rows.keys["database_oid"],
            "database": _names(rows.keys["database_oid"], kinds, databases),
            "query_id": rows.keys["query_id"],
            "text_hash": pa.array(hashes, pa.int64()),
            "kind": arrow(kinds),
            "type": arrow(rows.keys["type"]),
            "event": arrow(rows.keys["event"]),
            "idle": arrow(rows.keys["idle"]),
            **_sums(rows),
        }
        self.add("statements", columns, interval, len(rows))

    def activity(
        self,
        interval: RowInterval,
        grown: Array,
        databases: Mapping[int, str],
        processors: float | None,
        settings: str | None,
    ) -> None:
        """Add what databases did: rows of OID, the columns of activity, sessions."""
        count = len(grown)
        columns = {
            "database_oid": grown[:, 0],
            "database": named(grown[:, 0], databases, ""),
            **{name: grown[:, 1 + number] for number, name in enumerate(ACTIVITY_COLUMNS)},
            "sessions": grown[:, -1].astype(np.int32),
            "processors": pa.array([processors] * count, pa.float64()),
            "settings": pa.array([settings] + [None] * (count - 1), pa.string()),
        }
        self.add("activity", columns, interval, count)


def named(numbers: Array, names: Mapping[int, Any], absent: Any) -> list[Any]:
    """A value for each number; each distinct number is looked up once."""
    distinct, where = np.unique(numbers, return_inverse=True)
    values = np.empty(len(distinct), object)
    values[:] = [names.get(number, absent) for number in distinct.tolist()]
    return list(values[where])


def _names(oids: Array, kinds: Array, names: Mapping[int, str]) -> Array:
    found = np.array(named(oids, names, ""), object)
    for kind, words in _NOBODY.items():
        found[kinds == kind] = words
    return found


def _sums(grown: CounterTable) -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: np.ascontiguousarray(grown.sums[:, number]) for number, name in enumerate(SUMS)
    }
    columns["max_ns"] = pa.array(grown.max_ns, pa.int64(), mask=grown.max_ns < 0)
    return columns
