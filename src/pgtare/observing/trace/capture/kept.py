"""Traces that a server kept because a trigger fired: which there are, and taking one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import artefact, files
from pgtare.observing.trace.capture.server import Server, require_outside, telling
from pgtare.observing.trace.documents import KeptTrace, TraceKept
from pgtare.observing.trace.file import blocks
from pgtare.observing.trace.file.reader import Trace, load, recording_of

#: Traces of one number are of one incident only if they are no further apart.
_ONE_INCIDENT = timedelta(hours=1)
#: So many others of an incident are shown with a trace.
_OTHERS = 8
_KEPT = """
SELECT k.id, k.pid, r.rolname, d.datname, k.application_name, k.cause, k.detail, k.query_id, k.at,
       k.bytes, k.file, k.incident
FROM {trace}.sql_trace_kept() k LEFT JOIN pg_roles r ON r.oid = k.userid
LEFT JOIN pg_database d ON d.oid = k.dbid ORDER BY k.id
"""


def of_server(server: Server) -> TraceKept:
    """What a server has kept since it started. Raises UsageError if a right is missing."""
    with telling(), _rights(server):
        found = server.rows(_KEPT)
        ((started, ever, skipped, refused, directory),) = server.rows(
            "SELECT since, kept, skipped, refused, directory FROM {trace}.sql_trace_kept_info()"
        )
    return TraceKept(
        traces=[KeptTrace.of_row(row) for row in found],
        started=started,
        ever=ever,
        skipped=skipped,
        refused=refused,
        directory=directory,
    )


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


def of_directory(path: Path) -> TraceKept:
    """What the files of a directory tell; those that cannot be read are left out with a note.

    Raises UsageError if there is no such directory, or none of its files can be read.
    """
    try:
        if not path.is_dir():
            raise UsageError(f"{path} is no directory: name the server's sql_trace.keep_directory")
        names = sorted(name for name in path.iterdir() if name.suffix == blocks.SUFFIX)
    except PermissionError as ex:
        raise UsageError(
            f"{ex.filename} cannot be read: the files belong to the server's user"
        ) from ex
    except OSError as ex:
        raise artefact.unreadable(path, ex) from ex
    traces, notes = [], []
    for name in names:
        try:
            if (found := _of_file(name, recording_of(name))) is not None:
                traces.append(found)
        except OSError as ex:  # the server gave it up meanwhile
            notes.append(str(artefact.unreadable(name, ex)))
        except UsageError as ex:
            notes.append(str(ex))
    if notes and not traces:
        raise UsageError(notes[0])
    traces.sort(key=lambda kept: kept.at)
    return TraceKept(traces=traces, directory=str(path), notes=notes)


def _of_file(path: Path, recording: Mapping[str, Any]) -> KeptTrace | None:
    """None: its description tells nothing of a trigger."""
    told = recording.get("kept")
    if not isinstance(told, Mapping):
        return None
    try:
        at = datetime.fromisoformat(str(told["at"]))
        if at.tzinfo is None:
            return None  # it cannot be told which of two is earlier
        return KeptTrace(
            id=int(told["id"]),
            pid=int(told["pid"]),
            user=str(told["role"]),
            database=str(told["database"]),
            application=str(told["application"]),
            cause=str(told["cause"]),
            detail=str(told["detail"]),
            query_id=int(told["query_id"]) or None,
            at=at,
            bytes=path.stat().st_size,
            file=path.name,
            incident=int(told["incident"]) or None,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def of_incident(found: TraceKept, number: int) -> tuple[KeptTrace, list[KeptTrace]]:
    """A kept trace, and the others of the same incident. Raises MeasurementError if it is none."""
    mine = [kept for kept in found.traces if kept.id == number]
    if not mine:
        raise MeasurementError(
            f"there is no kept trace {number}: `pgtare trace kept` lists those that there are"
        )
    kept = mine[-1]  # numbers begin anew when a server restarts, and its files stay
    return kept, _others(found, kept)


def _others(found: TraceKept, kept: KeptTrace) -> list[KeptTrace]:
    return [
        other
        for other in found.traces
        if kept.incident is not None
        and other.incident == kept.incident
        and (other.id, other.at) != (kept.id, kept.at)
        and abs(other.at - kept.at) < _ONE_INCIDENT
    ]


def next_to(trace: Trace) -> list[Trace]:
    """What was kept in the same incident as a kept trace, of the files next to it."""
    directory = trace.path.parent
    found = []
    # we may not list the directory, or the server has removed files from it
    with contextlib.suppress(UsageError, OSError):
        if (kept := _of_file(trace.path, trace.recording)) is not None:
            for other in _others(of_directory(directory), kept)[:_OTHERS]:
                with contextlib.suppress(UsageError):  # the server gave it up meanwhile
                    found.append(load(directory / str(other.file)))
    return found


def read(server: Server | Path, kept: KeptTrace) -> Trace:
    """A kept trace, from a server or from its directory. Raises as `take` does.

    A trace of a server goes through a temporary file: MeasurementError if that cannot be written.
    """
    if isinstance(server, Path):
        return load(server / str(kept.file))
    data = _fetch(server, kept.id)
    try:
        with tempfile.TemporaryDirectory(prefix="pgtare-kept-") as directory:
            path = Path(directory, f"kept-{kept.id}{blocks.SUFFIX}")
            path.touch(0o600)
            path.write_bytes(data)
            return load(path)
    except OSError as ex:
        what = f"kept trace {kept.id} could not be written into a directory for temporary files"
        raise files.failure(what, ex) from ex


def _fetch(server: Server, number: int) -> bytes:
    try:
        with _rights(server):
            ((data,),) = server.rows("SELECT {trace}.sql_trace_kept_file(%s::int8)", number)
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
