"""The process that queries a spool for the page: `python -m pgtare.keeping.live.query_worker DIR`.

It reads a request a line from standard input and writes an answer a line to standard output, as
JSON. It runs the page's own queries and no others. DuckDB may read the spool's segments and no
other file, and its configuration is locked.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb

from pgtare.errors import PgtareError
from pgtare.interrupt import compute_in_one_thread
from pgtare.keeping.live import query_text, spool_views
from pgtare.keeping.spool import manifest, reader, segments
from pgtare.keeping.spool.manifest import SpoolManifest
from pgtare.keeping.spool.segments import DamagedFile, Segment

#: DuckDB remembers some 70 KB of each file; after this many that are gone it begins anew.
_MOST_GONE = 1000
#: How often a request is tried if files go away meanwhile, as in compaction.
_TRIES = 3


class QueryWorker:
    """A connection to a spool's segments."""

    def __init__(self, directory: Path) -> None:
        self._root = directory.absolute()
        self._connection = self._connected()
        self._gone = 0
        self._read_at: tuple[int, int] | None = None
        self._manifest: SpoolManifest | None = None
        self._checked: set[str] = set()
        self._damaged: dict[str, tuple[int, int] | None] = {}
        """segments that cannot be read, each with its file's `_version` when that was found"""

    def _connected(self) -> duckdb.DuckDBPyConnection:
        """A new connection, which may read the segments."""
        allowed = {f"{self._root}/{segments.DIRECTORY}/"}
        allowed |= {reader.pattern(name) for name in allowed}
        listed = ", ".join(map(reader.quoted, sorted(allowed)))
        # segments never change, so what is known of a file stays true
        known = "parquet_metadata_cache = true"
        return reader.locked_connection(known, f"allowed_directories = [{listed}]")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, or an error in one sentence.

        An answer has columns and rows, and names damaged segments, whose rows it lacks.

        `{"state": true}` asks what the spool holds; else query, identifiers, only (filters),
        values, window, grain.
        """
        for left in reversed(range(_TRIES)):
            try:
                if "state" in request:
                    return self._state()
                return self._query(request, last_try=not left)
            except duckdb.OutOfMemoryException:
                needs = f"this needs more than {reader.MEMORY} of memory"
                return {"error": f"{needs}: choose a shorter window"}
            except PgtareError as ex:
                return {"error": str(ex)}
            except duckdb.Error as ex:
                self._read_at = None
                self._checked.clear()
                of_files = isinstance(ex, duckdb.IOException)
                if of_files and left == _TRIES - 1:
                    continue  # they may only have been replaced
                if not left or not (self._find_damaged(request) or of_files):
                    why = (
                        "files of the spool cannot be read" if of_files else "DuckDB cannot answer"
                    )
                    return {"error": f"{why}: {reader.first_line(ex)}"}
        raise AssertionError

    def _find_damaged(self, request: dict[str, Any]) -> bool:
        """Decode all segments that a request reads, after an error; whether one cannot be.

        DuckDB's errors on damage within a file are of many kinds, and few name the file.
        """
        sql = query_text.filled(request["query"], request["identifiers"], request["only"])
        try:
            found = self._newest()
        except PgtareError:
            return False
        known = len(self._damaged)
        for segment in _read_by(request, query_text.relations(sql), found):
            if segment.name in self._damaged:
                continue
            try:
                for _ in segments.groups(self._root, segment):
                    pass
            except DamagedFile:
                version = self._version(segment.name)
                if version is not None:  # else it was only replaced
                    self._damaged[segment.name] = version
        return len(self._damaged) > known

    def _query(self, request: dict[str, Any], last_try: bool) -> dict[str, Any]:
        sql = query_text.filled(request["query"], request["identifiers"], request["only"])
        found = self._newest()
        named = query_text.relations(sql)
        for relation in named:
            self._check(found, relation, last_try)
            text = spool_views.view(
                relation,
                found,
                str(self._root),
                request["window"],
                request["grain"],
                self._damaged,
            )
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {relation} AS {text}")
        self._connection.execute(query_text.for_duckdb(sql), query_text.values(sql, request))
        names = [column[0] for column in self._connection.description or ()]
        rows = [[_plain(value) for value in row] for row in self._connection.fetchall()]
        read = _read_by(request, named, found) if self._damaged else ()
        left_out = {segment.name for segment in read} & self._damaged.keys()
        return {"columns": names, "rows": rows, "damaged": sorted(left_out)}

    def _state(self) -> dict[str, Any]:
        """The newest commit; of each table the first and the last time, and the rows.

        dropped_us: of tables that have lost rows, the latest time of these.
        """
        found = self._newest()
        spans: dict[str, list[int]] = {}
        for one in found.segments.values():
            first, last, rows = spans.get(one.table, [one.first_us, one.last_us, 0])
            ends = [min(first, one.first_us), max(last, one.last_us)]
            spans[one.table] = [*ends, rows + one.rows]
        return {"seq": found.seq, "spans": spans, "dropped_us": dict(found.dropped_us)}

    def _newest(self) -> SpoolManifest:
        """What the spool holds now; read again if it was replaced.

        A damaged file that has changed, as one that was restored, is checked again.
        """
        try:
            stat = (self._root / manifest.NEWEST).stat()
            read_at = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            read_at = None
        if self._manifest is None or read_at is None or read_at != self._read_at:
            self._manifest, _ = reader.newest(self._root)
            self._read_at = read_at
            self._forget(self._checked - self._manifest.segments.keys())
            for name in self._damaged.keys() - self._manifest.segments.keys():
                del self._damaged[name]
        restored = [
            name for name, version in self._damaged.items() if self._version(name) != version
        ]
        if restored:
            for name in restored:
                del self._damaged[name]
                self._checked.discard(name)
            self._connect_anew()
        return self._manifest

    def _version(self, name: str) -> tuple[int, int] | None:
        """Something that changes if a segment's file is replaced or written; None: no file."""
        try:
            stat = (self._root / name).stat()
            return stat.st_ino, stat.st_ctime_ns
        except OSError:
            return None

    def _forget(self, gone: set[str]) -> None:
        """Forget segments that are gone; DuckDB keeps what it knows of them until it is closed."""
        self._checked -= gone
        self._gone += len(gone)
        if self._gone >= _MOST_GONE:
            self._connect_anew()

    def _connect_anew(self) -> None:
        self._connection.close()
        self._connection, self._gone = self._connected(), 0

    def _check(self, found: SpoolManifest, relation: str, last_try: bool) -> None:
        """Note segments that are damaged; each is looked at once.

        One that is missing may only have been replaced since the manifest was read.
        """
        for segment in found.segments.values():
            if segment.name in self._checked or not segment.table.startswith(relation):
                continue
            try:
                segments.check(self._root, segment)
            except DamagedFile:
                version = self._version(segment.name)
                if not last_try and version is None:
                    continue
                self._damaged[segment.name] = version
            self._checked.add(segment.name)


def _read_by(
    request: dict[str, Any], relations: Iterable[str], found: SpoolManifest
) -> Iterator[Segment]:
    """The segments that a request reads, damaged or not."""
    for relation in relations:
        for _, some in spool_views.segments_of(
            relation, found, request["window"], request["grain"]
        ):
            yield from some


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    compute_in_one_thread()
    worker = QueryWorker(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
