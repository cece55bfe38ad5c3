"""Traces that a server kept because a trigger fired: which there are, and taking one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import files
from pgtare.observing.trace.capture.server import Server, require_outside, telling
from pgtare.observing.trace.file import blocks
from pgtare.observing.trace.file.reader import Trace, load

#: What the server's worker names its files.
_FILES = f"kept-*{blocks.SUFFIX}"
#: Traces of one number are of one incident only if they are no further apart.
_ONE_INCIDENT = timedelta(hours=1)
_KEPT = """
SELECT k.id, k.pid, r.rolname, d.datname, k.application_name, k.cause, k.detail, k.query_id, k.at,
       k.bytes, k.file, k.incident
FROM {trace}.sql_trace_kept() k LEFT JOIN pg_roles r ON r.oid = k.userid
LEFT JOIN pg_database d ON d.oid = k.dbid ORDER BY k.id
"""


@dataclass(frozen=True)
class KeptTrace:
    """A kept trace. bytes: of the server's memory, 0 once it is in a file; file: None if in none.

    incident: a number that sessions have in common of which one held up another.
    """

    id: int
    pid: int
    user: str | None
    database: str | None
    application: str
    cause: str
    detail: str
    query_id: int | None
    at: datetime
    bytes: int
    file: str | None
    incident: int | None


@dataclass(frozen=True)
class KeptTraces:
    """All of them, and what is known of the others.

    started: when the server began to count; ever: how many there have been; skipped: not kept
    because of their limits; refused: for lack of memory; None of a directory. directory: where they
    are, or the server writes them; None: in its memory alone.
    """

    traces: tuple[KeptTrace, ...]
    started: datetime | None = None
    ever: int | None = None
    skipped: int | None = None
    refused: int | None = None
    directory: str | None = None


def of_server(server: Server) -> KeptTraces:
    """What a server has kept since it started. Raises UsageError if a right is missing."""
    with telling(), _rights(server):
        found = server.rows(_KEPT)
        ((started, ever, skipped, refused, directory),) = server.rows(
            "SELECT since, kept, skipped, refused, directory FROM {trace}.sql_trace_kept_info()"
        )
    traces = tuple(KeptTrace(*row) for row in found)
    return KeptTraces(traces, started, ever, skipped, refused, directory)


@contextlib.contextmanager
def _rights(server: Server) -> Any:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as ex:
        ((user,),) = server.rows("SELECT quote_ident(current_user)")
        raise UsageError(
            "kept traces hold values of everybody's statements: a superuser has to run "
            f"GRANT pg_read_all_stats TO {user};"
        ) from ex


def of_directory(path: Path) -> KeptTraces:
    """What the files of a directory tell. Raises UsageError if there is no such directory."""
    if not path.is_dir():
        raise UsageError(f"{path} is no directory: name the server's sql_trace.keep_directory")
    try:
        names = sorted(path.glob(_FILES))
        traces = [found for name in names if (found := _of_file(name)) is not None]
    except PermissionError as ex:
        raise UsageError(
            f"{ex.filename} cannot be read: the files belong to the server's user"
        ) from ex
    return KeptTraces(tuple(sorted(traces, key=lambda kept: kept.at)), directory=str(path))


def _of_file(path: Path) -> KeptTrace | None:
    """None: it tells nothing of a trigger."""
    told = load(path).recording.get("kept")
    if not isinstance(told, Mapping):
        return None
    try:
        return KeptTrace(
            int(told["id"]),
            int(told["pid"]),
            str(told["role"]),
            str(told["database"]),
            str(told["application"]),
            str(told["cause"]),
            str(told["detail"]),
            int(told["query_id"]) or None,
            datetime.fromisoformat(str(told["at"])),
            path.stat().st_size,
            path.name,
            int(told["incident"]) or None,
        )
    except (KeyError, TypeError, ValueError):
        return None


def of_incident(found: KeptTraces, number: int) -> tuple[KeptTrace, list[KeptTrace]]:
    """A kept trace, and the others of the same incident. Raises MeasurementError if it is none."""
    mine = [kept for kept in found.traces if kept.id == number]
    if not mine:
        raise MeasurementError(
            f"there is no kept trace {number}: `pgtare trace kept` lists those that there are"
        )
    kept = mine[-1]  # numbers begin anew when a server restarts, and its files stay
    return kept, [
        other
        for other in found.traces
        if kept.incident is not None
        and other.incident == kept.incident
        and (other.id, other.at) != (kept.id, kept.at)
        and abs(other.at - kept.at) < _ONE_INCIDENT
    ]


def read(server: Server | Path, kept: KeptTrace) -> Trace:
    """A kept trace, from a server or from its directory. Raises as `take` does."""
    if isinstance(server, Path):
        return load(server / str(kept.file))
    with tempfile.TemporaryDirectory(prefix="pgtare-kept-") as directory:
        path = Path(directory, f"kept-{kept.id}{blocks.SUFFIX}")
        path.touch(0o600)
        path.write_bytes(_fetch(server, kept.id))
        return load(path)


def _fetch(server: Server, number: int) -> bytes:
    try:
        with _rights(server):
            ((data,),) = server.rows("SELECT {trace}.sql_trace_kept_file(%s)", number)
    except psycopg.errors.UndefinedObject as ex:
        raise MeasurementError(
            f"{ex.diag.message_primary}: `pgtare trace kept --dsn …` lists those that there are"
        ) from ex
    return bytes(data)


def take(server: Server, number: int, path: Path) -> int:
    """Write a kept trace to a new file; returns its bytes.

    Raises UsageError if the place cannot be used, or a right is missing, MeasurementError if there
    is no such trace any more; then nothing is written.
    """
    if path.suffix != blocks.SUFFIX:
        raise UsageError(f"{path}: a kept trace is one file; let its name end in {blocks.SUFFIX}")
    files.check_directory(path)
    if path.exists():
        raise UsageError(f"{path} exists already; name a file that does not")
    require_outside(server, path)
    data = _fetch(server, number)
    try:
        files.write_bytes(path, data)
    except MeasurementError as ex:
        raise type(ex)(f"{ex}; the server still has the trace") from ex
    return len(data)
