"""One commit: its files are written first, then one rename of the manifest makes them count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pgtare.keeping.spool import manifest as manifests
from pgtare.keeping.spool import rollup, segments
from pgtare.keeping.spool.manifest import READINGS, KeptReading, Retired, SpoolManifest
from pgtare.keeping.spool.segments import Segment, times_us
from pgtare.keeping.spool.tables import TABLES, rollups
from pgtare.keeping.spool.volume import Volume

#: Files set aside of which the manifest keeps the names.
_MOST_DAMAGED = 100


def segment_id(uuid: str, seq: int) -> str:
    """How a commit is named in the column `segment` and in names of files."""
    return f"{uuid}-{seq:010d}"


class Publication:
    """Changes of a spool that take effect together. Errors are OSErrors; then call `abandon`."""

    def __init__(self, volume: Volume, manifest: SpoolManifest, seq: int) -> None:
        self.seq, self.id = seq, segment_id(manifest.uuid, seq)
        self._volume, self._old, self._new = volume, manifest, manifest.following(seq)
        self._rows: dict[str, list[pa.Table]] = {}
        self._written: list[str] = []

    def add_rows(self, table: str, rows: pa.Table) -> None:
        """Rows of a table; those without the column `segment` get this commit's.

        Those that are behind the watermark of a rolled-up table are summed up there.
        """
        if not rows.num_rows:
            return
        schema = TABLES[table].schema
        if "segment" not in rows.schema.names:
            rows = with_segment(rows, self.id)
        rows = segments.as_types(rows.select(schema.names), schema)
        self._rows.setdefault(table, []).append(rows)
        for rolled in rollups(table):
            # the old watermark: rows that this commit rolls up are in segments already
            behind = rollup.between(rows, -(1 << 63), self._old.rolled_us.get(rolled.name, 0))
            if behind.num_rows:
                self.add_rows(rolled.name, rollup.summed(behind, rolled))

    def set_rolled(self, table: str, to_us: int) -> None:
        """Move the watermark of a rolled-up table; back, if a clock was ahead.

        What is summed up beyond it stays, and is known by its commits.
        """
        was = self._old.seq, self._new.rolled_us.get(table, 0)
        early = (*self._new.rolled_early.pop(table, ()), was)
        self._new.rolled_us[table] = to_us
        if left := tuple((seq, us) for seq, us in early if us > to_us):
            self._new.rolled_early[table] = left

    def set_reading(self, server: str, part: str, rows: pa.Table | None) -> None:
        """The reading that the rows end at; None: there is none any more."""
        self._new.readings.pop((server, part), None)
        if rows is None:
            return
        name = f"{READINGS}/{self.id}-{len(self._written)}.parquet"
        self._written.append(name)
        size = self._volume.write(name, segments.encoded(rows))
        self._new.readings[server, part] = KeptReading(name, size)

    def segment_name(self, table: str, day: str, number: int) -> str:
        """The name of a new segment; it is removed again if the commit fails."""
        day = day.replace("-", "")
        name = f"{segments.DIRECTORY}/{self.id}-{table}-{day}-{number}.parquet"
        self._written.append(name)
        return name

    def add_segment(self, segment: Segment) -> None:
        """Add a segment whose file is already written."""
        self._new.segments[segment.name] = segment

    def retire(self, replaced: Iterable[Segment], at_s: float) -> None:
        """Segments whose rows are in another one now; their files stay for readers for a while."""
        for segment in replaced:
            del self._new.segments[segment.name]
            self._new.retired[segment.name] = Retired(at_s, self.seq, segment.bytes)

    def drop(self, segment: Segment) -> None:
        """Give up the rows of a segment."""
        del self._new.segments[segment.name]
        table, last_us = segment.table, segment.last_us
        dropped, dropped_us = self._new.dropped, self._new.dropped_us
        dropped[table] = dropped.get(table, 0) + segment.rows
        dropped_us[table] = max(dropped_us.get(table, last_us), last_us)

    def set_aside(self, name: str, why: str) -> None:
        """Set a damaged file aside, a segment or a reading."""
        self._new.segments.pop(name, None)
        for key in [key for key, r in self._new.readings.items() if r.name == name]:
            del self._new.readings[key]
        damaged = self._new.damaged
        damaged[name] = why
        while len(damaged) > _MOST_DAMAGED:
            del damaged[next(iter(damaged))]

    def forget_retired(self, names: Iterable[str]) -> None:
        """Forget retired files that are gone."""
        for name in names:
            self._new.retired.pop(name, None)

    def publish(self) -> SpoolManifest:
        """Write what is left to write, then the manifest, which is returned."""
        if self._rows:
            self._write_rows()
        directories = {name.rpartition("/")[0] for name in self._written}
        for name in sorted(directories):
            self._volume.sync(name)
        return manifests.write(self._volume, self._new)

    def _write_rows(self) -> None:
        for table, some in self._rows.items():
            for day, number, rows in segments.parts(pa.concat_tables(some)):
                name = self.segment_name(table, day, number)
                size = self._volume.write(name, segments.encoded(rows))
                times = times_us(rows)
                first, last = int(np.min(times)), int(np.max(times))
                self.add_segment(
                    Segment(name, table, day, self.seq, self.seq, rows.num_rows, size, first, last)
                )

    def abandon(self) -> None:
        """Remove what was written if the system lets us; the next start removes the rest."""
        unnamed = (f"{manifests.CATALOGUES}/{self.id}.json", f"{manifests.NEWEST}.new")
        for name in (*self._written, *unnamed):
            with contextlib.suppress(OSError):
                self._volume.remove(name)


def with_segment(rows: pa.Table, segment: str) -> pa.Table:
    """Rows with the column that names their commit."""
    return rows.append_column("segment", pa.repeat(pa.scalar(segment, pa.string()), rows.num_rows))
