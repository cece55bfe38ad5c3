"""A recording on disk: parts in Parquet, and one document that describes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from pgtare.errors import DiskFull
from pgtare.kit import artefact, files, parquet
from pgtare.kit.artefact import ArtefactKind, Staged
from pgtare.server.sql_text import normalised

SCHEMA: Literal["pgtare.waits.recording/1"] = "pgtare.waits.recording/1"
DESCRIPTION = "recording.json"
KIND = ArtefactKind("recording of `pgtare waits record`", DESCRIPTION, SCHEMA)
COLUMNS = {
    "session": np.int32,
    "number": np.int64,
    "kind": np.uint16,
    "depth": np.uint16,
    "event": np.uint32,
    "calls": np.uint32,
    "start_ns": np.int64,
    "value": np.int64,
    "query_id": np.int64,
}

#: Room taken for the description beyond twice its size so far: sessions and waits are to come.
_ROOM = 64 << 10
#: What has no room in as small a part as this many rows is not tried in smaller ones.
_LEAST = 1000

Columns = Mapping[str, np.ndarray[Any, Any]]


class RecordedSession(BaseModel):
    """A session of a recording: records kept, lost to overwriting, and forgotten before it began.

    unwritten: read, but without room on the disk. gone: its ring was given up before the last of it
    was read. refused: no right to read it.
    leader_pid: of a parallel worker.
    """

    model_config = ConfigDict(extra="forbid")

    number: int = Field(description="number of the session, as in the parts")
    pid: int = Field(description="process number")
    started: datetime = Field(description="when the session began")
    user: str | None = Field(description="role")
    database: str | None = Field(description="database")
    application: str | None = Field(description="application_name")
    records: int = Field(default=0, description="records kept")
    lost: int = Field(default=0, description="records overwritten before they were read")
    before: int = Field(default=0, description="records forgotten before the recording began")
    unwritten: int = Field(default=0, description="records read, but without room on the disk")
    leader_pid: int | None = Field(default=None, description="of a parallel worker: its leader")
    gone: bool = Field(
        default=False, description="whether its ring was given up before the last of it was read"
    )
    refused: bool = Field(default=False, description="whether there was no right to read it")


class OpenWait(BaseModel):
    """A wait under way: no trace has it before it ends. blocked_by: of a wait for a lock."""

    model_config = ConfigDict(extra="forbid")

    pid: int = Field(description="process number")
    backend_type: str = Field(description="kind of process")
    type: str = Field(description="class of the event")
    event: str = Field(description="the event")
    idle: bool = Field(description="whether it is a wait for something to do")
    query_id: int = Field(description="query identifier; 0: none")
    started: datetime = Field(description="when the wait began")
    user: str | None = Field(description="role")
    database: str | None = Field(description="database")
    application: str | None = Field(description="application_name")
    blocked_by: list[int] = Field(description="processes that hold the lock it waits for")


class Recording(BaseModel):
    """What a recording holds; events and texts are by number and query identifier.

    stopped_by: time, interrupt, space (the disk was full) or error.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["pgtare.waits.recording/1"] = Field(
        default=SCHEMA, alias="schema", description="name and version"
    )
    started: datetime = Field(description="when it began, by the server's clock")
    duration_s: float = Field(description="how long it took")
    stopped_by: str = Field(
        description="`time`, `interrupt`, `space` (the disk was full) or `error`"
    )
    server: str = Field(description="version of PostgreSQL as a number")
    sessions: list[RecordedSession] = Field(description="the sessions")
    events: dict[str, list[str]] = Field(description="number of an event to its class and name")
    texts: dict[str, str] = Field(description="statements by query identifier")
    waiting_at_start: list[OpenWait] = Field(
        default=[], description="waits under way when it began"
    )
    waiting_at_end: list[OpenWait] = Field(default=[], description="waits under way when it ended")

    @field_validator("texts")
    @classmethod
    def _without_literals(cls, texts: dict[str, str]) -> dict[str, str]:
        """Also those of recordings that were made with them."""
        return {query_id: normalised(text) for query_id, text in texts.items()}

    @property
    def records(self) -> int:
        """Records kept."""
        return sum(session.records for session in self.sessions)

    @property
    def lost(self) -> int:
        """Records lost to overwriting while the recording ran."""
        return sum(session.lost for session in self.sessions)

    @property
    def unwritten(self) -> int:
        """Records that had no room on the disk."""
        return sum(session.unwritten for session in self.sessions)


class Writer:
    """Collects columns and writes them as parts into a directory that is complete or absent.

    It takes room for the description first, without which no part can be read.
    """

    def __init__(self, directory: Path) -> None:
        """Begin the directory, which is there when it is closed.

        Raises UsageError if something is there or it cannot be made, DiskFull if it has no room.
        """
        self.directory = directory
        self.rows = 0
        self.query_ids: set[int] = set()
        self._columns: list[Columns] = []
        self._parts = 0
        self.staged = Staged(directory, KIND)
        self._room = files.Room(self.staged.path / DESCRIPTION)
        try:
            self._room.keep(_ROOM)
        except DiskFull:
            self.discard()
            raise

    def add(self, columns: Columns) -> None:
        """Take rows; they are on disk after the next flush."""
        assert columns.keys() == COLUMNS.keys()
        self._columns.append(columns)
        self.rows += len(columns["kind"])
        self.query_ids.update(int(query_id) for query_id in np.unique(columns["query_id"]))

    def keep_room(self, recording: Recording) -> None:
        """Have room for a description twice as long as this. Raises MeasurementError."""
        self._room.keep(2 * len(_document(recording).encode()) + _ROOM)

    def flush(self) -> None:
        """Write what was taken as one part.

        Raises MeasurementError; rows without room stay taken then, and DiskFull says that this is
        why.
        """
        if not self.rows:
            return
        joined = {
            name: np.concatenate([columns[name] for columns in self._columns]).astype(kind)
            for name, kind in COLUMNS.items()
        }
        name = f"part-{self._parts:05}.parquet"
        rows, full = self.rows, None
        while True:
            try:
                parquet.write(
                    self.staged.path / name, {of: values[:rows] for of, values in joined.items()}
                )
                break
            except OSError as ex:
                full = files.failure(f"{self.directory / name} could not be written", ex)
                if not isinstance(full, DiskFull) or rows < 2 * _LEAST:
                    raise full from ex
                rows //= 2
        self._columns = [{name: values[rows:] for name, values in joined.items()}]
        self.rows -= rows
        self._parts += 1
        if full is not None:
            raise full

    def unwritten(self) -> dict[int, int]:
        """Rows taken that are in no part, by session."""
        taken = [np.asarray(columns["session"]) for columns in self._columns]
        found = np.unique(np.concatenate([np.zeros(0, np.int32), *taken]), return_counts=True)
        return {int(session): int(rows) for session, rows in zip(*found, strict=True)}

    def close(self, recording: Recording) -> None:
        """Write the description, and put all of it in its place.

        Without the texts of statements if they have no room.
        """
        try:
            files.write_text(self.staged.path / DESCRIPTION, _document(recording))
        except DiskFull:
            self._room.write_text(_document(recording.model_copy(update={"texts": {}})))
        finally:
            self._room.give_back()
        self.staged.commit()

    def discard(self) -> None:
        """Leave nothing of a recording that holds nothing."""
        self.staged.discard()
        for path in (self.directory / DESCRIPTION, *self.directory.glob("part-*.parquet")):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def _document(recording: Recording) -> str:
    return recording.model_dump_json(by_alias=True, indent=2) + "\n"


def load(directory: Path) -> Recording:
    """The description of a recording.

    Raises UsageError if `directory` holds none, PgtareError if it is damaged.
    """
    return artefact.parsed(Recording, KIND.open(directory), directory / DESCRIPTION)


def unwritten_note(records: int) -> str:
    """Tell what there was when nothing more could be written."""
    return f"{records:,} records came before the disk was full, and could not be written"


def parts(directory: Path) -> Iterator[Columns]:
    """The parts of a recording, one after another. Raises PgtareError if one is damaged."""
    for path in sorted(directory.glob("part-*.parquet")):
        yield parquet.read(path, COLUMNS, "move it away, and the rest can be read")
