"""Rows that could not be written yet: held in memory for some minutes, then counted as lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pgtare.keeping.spool import retention
from pgtare.keeping.spool.publication import Publication
from pgtare.keeping.spool.tables import TABLES

#: Rows of tables that are never dropped by age are written only once: this much of them is not
#: given up.
_MOST_LASTING_BYTES = 64 << 20


@dataclass
class _Loss:
    """What was lost of a server: rows by table, and their times in µs."""

    first_us: int
    last_us: int
    rows: dict[str, int] = field(default_factory=dict)


class Held:
    """Rows of commits, or of looks, with the readings that they end at, the oldest first."""

    def __init__(self) -> None:
        self._commits: deque[tuple[float, Mapping[str, pa.Table]]] = deque()
        self._readings: dict[tuple[str, str], pa.Table | None] = {}
        self._losses: dict[str, _Loss] = {}
        self._lasting: list[tuple[str, pa.Table]] = []

    def __len__(self) -> int:
        return len(self._commits)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self._commits or self._readings or self._losses or self._lasting)

    @property
    def readings(self) -> Mapping[tuple[str, str], pa.Table | None]:
        """By server and part, the readings that the held rows end at; None: there is none."""
        return self._readings

    def add(
        self,
        rows: Mapping[str, pa.Table],
        readings: Mapping[tuple[str, str], pa.Table | None],
        at_s: float,
    ) -> None:
        """A commit or a look, at a time of a clock that is never set."""
        self._commits.append((at_s, rows))
        self._readings.update(readings)

    def expire(self, before_s: float) -> None:
        """Give up the rows from before that time; they become rows of `gaps`.

        Rows of tables without an age stay: the readings say that they were written.
        """
        while self._commits and self._commits[0][0] < before_s:
            for table, rows in self._commits.popleft()[1].items():
                if TABLES[table].age is None and self._has_room(rows):
                    self._lasting.append((table, rows))
                else:
                    self._lose(table, rows)

    def _has_room(self, rows: pa.Table) -> bool:
        held = sum(other.nbytes for _, other in self._lasting)
        return bool(held + rows.nbytes <= _MOST_LASTING_BYTES)

    def _lose(self, table: str, rows: pa.Table) -> None:
        for server, (number, first, last) in retention.lost_by_server(rows).items():
            loss = self._losses.setdefault(server, _Loss(first, last))
            loss.first_us, loss.last_us = min(loss.first_us, first), max(loss.last_us, last)
            loss.rows[table] = loss.rows.get(table, 0) + number

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """By table, all rows that are held, and those on what was given up."""
        yield from self._lasting
        for _, rows in self._commits:
            yield from rows.items()
        for gap in self._gaps():
            yield "gaps", gap

    def put_into(self, publication: Publication) -> None:
        """All that is held."""
        for table, rows in self.rows():
            publication.add_rows(table, rows)
        for (server, part), reading in self._readings.items():
            publication.set_reading(server, part, reading)

    def _gaps(self) -> Iterator[pa.Table]:
        for server, loss in self._losses.items():
            lost = ", ".join(f"{table} {number}" for table, number in sorted(loss.rows.items()))
            detail = f"rows that could not be written in time: {lost}"
            yield retention.gap("disk_full", detail, loss.first_us, loss.last_us, server=server)

    def clear(self) -> None:
        """Forget everything: it was written."""
        self._commits, self._readings, self._losses, self._lasting = deque(), {}, {}, []
