"""Rows of a range of commits, read from a spool's files while the agent writes others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pgtare.keeping.spool import segments
from pgtare.keeping.spool.manifest import SpoolManifest
from pgtare.keeping.spool.segments import Segment


class CommitReader:
    """Reads rows by their commits. Which group of rows has which is remembered: files stay."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seqs: dict[str, list[tuple[int, int]]] = {}

    def rows(
        self, content: SpoolManifest, table: str, after: int, to: int
    ) -> Iterator[tuple[str, pa.Table]]:
        """Rows of a table that came with commits after one, up to another: by day. No empty ones.

        Raises DamagedFile; a file may only have been replaced: try again with a newer manifest.
        """
        days: dict[str, list[pa.Table]] = {}
        for segment in content.of_table(table):
            if segment.last_seq > after and segment.first_seq <= to:
                for rows in self._of_file(segment, after, to):
                    days.setdefault(segment.day, []).append(rows)
        for day, parts in sorted(days.items()):
            yield day, pa.concat_tables(parts)

    def _of_file(self, segment: Segment, after: int, to: int) -> Iterator[pa.Table]:
        wanted = {
            number
            for number, (first, last) in enumerate(self._groups(segment))
            if last > after and first <= to
        }
        for rows in segments.groups(self._root, segment, wanted) if wanted else ():
            numbers = segments.seqs(rows)
            inside = (numbers > after) & (numbers <= to)
            if np.any(inside):
                yield rows if np.all(inside) else rows.filter(pa.array(inside))

    def _groups(self, segment: Segment) -> list[tuple[int, int]]:
        if segment.name not in self._seqs:
            self._seqs[segment.name] = segments.group_seqs(self._root, segment)
        return self._seqs[segment.name]

    def forget_others(self, content: SpoolManifest) -> None:
        """Files that are gone."""
        for name in self._seqs.keys() - content.segments.keys():
            del self._seqs[name]


def most_rows(content: SpoolManifest, after: int, to: int) -> int:
    """About how many rows of one table these commits have, of the table that has most."""
    found: dict[str, float] = {}
    for segment in content.segments.values():
        shared = min(segment.last_seq, to) - max(segment.first_seq - 1, after)
        if shared > 0:
            span = segment.last_seq - segment.first_seq + 1
            found[segment.table] = found.get(segment.table, 0.0) + segment.rows * shared / span
    return round(max(found.values(), default=0.0))


def next_window(content: SpoolManifest, sent: int, commits: int, most: int) -> int | None:
    """Up to which commit the next window goes; None if it is not complete yet.

    Windows begin at multiples of `commits`, whatever was sent before: an agent that was killed
    forms the same ones again. If many are due, a window has twice, four times … as many commits,
    up to about `most` rows of a table.
    """
    to = (sent // commits + 1) * commits
    if to > content.seq:
        return None
    width = to - sent
    while True:
        width *= 2
        wider = sent + width
        if sent % width or wider > content.seq or most_rows(content, sent, wider) > most:
            return to
        to = wider
