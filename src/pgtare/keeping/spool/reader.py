"""A spool by SQL: every table a view, read-only, without a lock.

A reader names the files of one manifest. The writer keeps replaced files for some minutes; what is
gone all the same (dropped for room) is found when a query is asked again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgtare.errors import PgtareError, UsageError
from pgtare.keeping.spool import manifest, segments
from pgtare.keeping.spool.manifest import KIND, SpoolManifest
from pgtare.keeping.spool.segments import DamagedFile, Segment
from pgtare.keeping.spool.tables import TABLES, Column
from pgtare.kit import artefact

if TYPE_CHECKING:  # it takes a while to load
    import duckdb

#: Memory and processors that a query may use; it writes nothing to disk.
MEMORY, THREADS = "1GB", 2

_TRIES = 3
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": MEMORY,
    "threads": THREADS,
    "temp_directory": "",
}
_TYPES = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "int32": "INTEGER",
    "bool": "BOOLEAN",
    "double": "DOUBLE",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
    "list<item: int32>": "INTEGER[]",
}


@dataclass(frozen=True)
class Answer:
    """Rows of a query. notes: files that were left out, and why."""

    names: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]
    notes: list[str]


def newest(directory: Path) -> tuple[SpoolManifest, str | None]:
    """What a spool holds now, and what was wrong with its manifest, if so.

    Raises UsageError if there is no spool, and PgtareError if it is damaged.
    """
    found = KIND.open(directory).get("uuid")
    try:
        newest, faults = manifest.read(directory)
    except OSError as ex:
        raise artefact.unreadable(directory, ex) from ex
    wrong = "; ".join(fault.sentence for fault in faults)
    return newest or SpoolManifest(str(found)), wrong or None


def locked_connection(*settings: str) -> duckdb.DuckDBPyConnection:
    """A connection without tables, with these settings: they say which files it may open.

    What it says of the time is in UTC, as all times of a spool are: `now()` would be compared with
    them as local time.
    """
    import duckdb

    connection = duckdb.connect(config=CONFIG)
    locked = ("enable_external_access = false", "lock_configuration = true")
    for setting in ("TimeZone = 'UTC'", *settings, *locked):
        connection.execute(f"SET {setting}")
    return connection


def query(directory: Path, sql: str) -> Answer:
    """The answer to one SELECT. A damaged file is left out, with a note.

    Raises UsageError if it is none, or DuckDB does not understand it, and PgtareError if it needs
    too much memory.
    """
    import duckdb

    damaged: set[str] = set()
    for left in reversed(range(_TRIES)):
        notes: list[str] = []
        try:
            with connect(directory, damaged, notes) as connection:
                _check_select(connection, sql)
                return _fetch(connection, sql, notes)
        except duckdb.OutOfMemoryException as ex:
            raise PgtareError(
                f"the query needs more than {MEMORY} of memory: select fewer rows or columns"
            ) from ex
        except duckdb.Error as ex:
            _learn(directory, damaged, ex, left)
    raise AssertionError


def _learn(directory: Path, damaged: set[str], error: duckdb.Error, left: int) -> None:
    """Find out which files to leave out after an error, or raise what the error means."""
    found = set() if _is_of_query(error) else _damaged_files(directory, damaged)
    if not found and not _files_gone(error):
        raise UsageError(f"DuckDB refuses the query: {first_line(error)}") from error
    damaged |= found
    if not left:
        raise PgtareError(
            f"files of {directory} went away while they were read: ask again"
        ) from error


def _is_of_query(error: duckdb.Error) -> bool:
    """Whether no file can be the cause. Errors on damaged files are of many kinds, and of none."""
    import duckdb

    if isinstance(error, duckdb.InvalidInputException):
        text = str(error).lower()
        return "file" not in text and "parquet" not in text and "unicode" not in text
    of_query = (
        duckdb.ParserException,
        duckdb.BinderException,
        duckdb.CatalogException,
        duckdb.PermissionException,
        duckdb.DataError,
    )
    return isinstance(error, of_query)


def connect(
    directory: Path, damaged: Collection[str] = (), notes: list[str] | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection in which every table of a spool is a view, as of now.

    It can open no other file, and its configuration is locked. Close it after use; files that are
    replaced stay for ten minutes. damaged: segments to leave out. notes: takes what was left out.
    Raises as `newest` does, and duckdb.Error if another file is damaged.
    """
    content, wrong = newest(directory)
    notes = [] if notes is None else notes
    notes.extend([wrong] if wrong else [])
    root = directory.absolute()
    usable: dict[str, list[str]] = {name: [] for name in TABLES}
    for segment in content.segments.values():
        why = _fault(root, segment, damaged)
        if why:
            notes.append(f"left out {root / segment.name}, {segment.rows} rows: {why}")
        elif segment.table in usable:
            usable[segment.table].append(str(root / segment.name))
    # DuckDB checks the pattern as well as the file that it finds by it
    opened = {name for names in usable.values() for file in names for name in (file, pattern(file))}
    files = [quoted(name) for name in sorted(opened)]
    connection = locked_connection(f"allowed_paths = [{', '.join(files)}]")
    try:
        for table, names in usable.items():
            connection.execute(f"CREATE VIEW {table} AS {_select(TABLES[table].columns, names)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _fault(root: Path, segment: Segment, damaged: Collection[str]) -> str | None:
    if segment.name in damaged:
        return "it cannot be read as Parquet"
    try:
        segments.check(root, segment)
    except DamagedFile as ex:
        return ex.why
    return None


def _select(columns: Iterable[Column], files: list[str]) -> str:
    if not files:
        return no_rows(columns)
    names = ", ".join(column.name for column in columns)
    listed = ", ".join(quoted(pattern(file)) for file in files)
    return f"SELECT {names} FROM read_parquet([{listed}])"


def type_name(column: Column) -> str:
    """The type of a column, as DuckDB names it."""
    return _TYPES[str(column.type)]


def no_rows(columns: Iterable[Column]) -> str:
    """The SELECT of a table that is empty."""
    empty = ", ".join(f"NULL::{type_name(column)} AS {column.name}" for column in columns)
    return f"SELECT {empty} WHERE false"


def pattern(path: str) -> str:
    """A path is a glob pattern to DuckDB: "run[1]" would read "run1"."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def _check_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as ex:
        raise UsageError(f"DuckDB refuses the query: {first_line(ex)}") from ex
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("a spool answers one SELECT at a time (or SHOW, DESCRIBE, SUMMARIZE)")


def _fetch(connection: duckdb.DuckDBPyConnection, sql: str, notes: list[str]) -> Answer:
    relation = connection.sql(sql)
    names, types = list(relation.columns), [str(one) for one in relation.types]
    # Python would need another package for times with a zone; all times are in UTC
    zoned = "TIMESTAMP WITH TIME ZONE"
    if zoned in types:
        columns = (
            f"#{i}{'::TIMESTAMP' if one == zoned else ''} AS {_identifier(name)}"
            for i, (name, one) in enumerate(zip(names, types, strict=True), start=1)
        )
        relation = relation.project(", ".join(columns))
        types = [str(one) for one in relation.types]
    return Answer(names, types, relation.fetchall(), notes)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def first_line(ex: Exception) -> str:
    """What DuckDB refuses, in one line."""
    text = str(ex).split("\n")[0]
    return text.partition("Error: ")[2] or text


def _files_gone(ex: Exception) -> bool:
    return "No files found" in str(ex) or "No such file" in str(ex) or "Cannot open" in str(ex)


def _damaged_files(directory: Path, known: set[str]) -> set[str]:
    """Segments that cannot be decoded."""
    found = set()
    content, _ = newest(directory)
    for segment in content.segments.values():
        if segment.name in known:
            continue
        try:
            for _ in segments.groups(directory, segment):
                pass
        except DamagedFile:
            found.add(segment.name)
    return found


def shown_value(value: Any) -> str:
    """A value as tables and CSV have it; NULL is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return str(value)


def as_csv(answer: Answer) -> str:
    """Names of the columns, then the rows."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(answer.names)
    lines.writerows([shown_value(value) for value in row] for row in answer.rows)
    return text.getvalue()
