"""A recording on disk: parts in Parquet, and one document that describes them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pgtare import parquet
from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.report import files
from pgtare.sql_text import normalised

SCHEMA: Literal["pgtare.waits.recording/1"] = "pgtare.waits.recording/1"
DESCRIPTION = "recording.json"
COLUMNS = {
    "session": np.int32,
    "number": np.int64,
    "kind": np.uint16,
    "depth": np.uint16,
    "event": np.uint32,
    "calls": np.uint32,
    "start_ns": np.int64,
    "value": np.int64,
    "queryid": np.int64,
}

Columns = Mapping[str, np.ndarray[Any, Any]]


class RecordedSession(BaseModel):
    """A session of a recording: records kept, lost to overwriting, and forgotten before it began.

    gone: its ring was given up before the last of it was read. refused: no right to read it.
    leader_pid: of a parallel worker.
    """

    model_config = ConfigDict(extra="forbid")

    number: int
    pid: int
    started: datetime
    user: str | None
    database: str | None
    application: str | None
    records: int = 0
    lost: int = 0
    before: int = 0
    leader_pid: int | None = None
    gone: bool = False
    refused: bool = False


class OpenWait(BaseModel):
    """A wait under way: no trace has it before it ends. blocked_by: of a wait for a lock."""

    model_config = ConfigDict(extra="forbid")

    pid: int
    backend_type: str
    type: str
    event: str
    idle: bool
    queryid: int
    started: datetime
    user: str | None
    database: str | None
    application: str | None
    blocked_by: list[int]


class Recording(BaseModel):
    """What a recording holds; events and texts are by number and query identifier."""

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["pgtare.waits.recording/1"] = Field(default=SCHEMA, alias="schema")
    began: datetime
    seconds: float
    stopped_by: str
    server: str
    sessions: list[RecordedSession]
    events: dict[str, list[str]]
    texts: dict[str, str]
    waiting_at_begin: list[OpenWait] = []
    waiting_at_end: list[OpenWait] = []

    @field_validator("texts")
    @classmethod
    def _without_literals(cls, texts: dict[str, str]) -> dict[str, str]:
        """Also those of recordings that were made with them."""
        return {queryid: normalised(text) for queryid, text in texts.items()}

    @property
    def records(self) -> int:
        """Records kept."""
        return sum(session.records for session in self.sessions)

    @property
    def lost(self) -> int:
        """Records lost to overwriting while the recording ran."""
        return sum(session.lost for session in self.sessions)


class Writer:
    """Collects columns and writes them as parts, each whole or not there."""

    def __init__(self, directory: Path) -> None:
        """Make the directory. Raises UsageError where something is there or it cannot be made."""
        self.directory = directory
        self.rows = 0
        self.queryids: set[int] = set()
        self._columns: list[Columns] = []
        self._parts = 0
        files.check_unused(directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError as ex:
            raise UsageError(f"{directory} cannot be made: {ex.strerror}") from ex

    def add(self, columns: Columns) -> None:
        """Take rows; they are on disk after the next flush."""
        assert columns.keys() == COLUMNS.keys()
        self._columns.append(columns)
        self.rows += len(columns["kind"])
        self.queryids.update(int(queryid) for queryid in np.unique(columns["queryid"]))

    def flush(self) -> None:
        """Write what was taken as one part. Raises MeasurementError; the rows stay taken then."""
        if not self.rows:
            return
        joined = {
            name: np.concatenate([columns[name] for columns in self._columns]).astype(kind)
            for name, kind in COLUMNS.items()
        }
        target = self.directory / f"part-{self._parts:05}.parquet"
        staging = target.with_name(f".{target.name}")
        try:
            parquet.write(staging, joined)
            os.rename(staging, target)
            parquet.sync(self.directory)
        except (OSError, duckdb.Error) as ex:
            staging.unlink(missing_ok=True)
            raise MeasurementError(
                f"{target} could not be written: {str(ex).splitlines()[0]}"
            ) from ex
        self._columns.clear()
        self.rows = 0
        self._parts += 1

    def close(self, recording: Recording) -> None:
        """Write the rest and the description."""
        try:
            self.flush()
        finally:
            text = recording.model_dump_json(by_alias=True, indent=2)
            files.write_text(self.directory / DESCRIPTION, text + "\n")

    def discard(self) -> None:
        """Leave nothing of a recording that holds nothing."""
        for path in (self.directory / DESCRIPTION, *self.directory.glob("part-*.parquet")):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def load(directory: Path) -> Recording:
    """The description of a recording.

    Raises UsageError where `directory` holds none, PgtareError where it is damaged.
    """
    path = directory / DESCRIPTION
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as ex:
        raise UsageError(
            f"{directory} is no recording of `pgtare waits record`: {DESCRIPTION} cannot be read "
            f"({ex.strerror})"
        ) from ex
    try:
        return Recording.model_validate_json(text)
    except ValidationError as ex:
        raise PgtareError(f"{path} is damaged or does not follow {SCHEMA}") from ex


def parts(directory: Path) -> Iterator[Columns]:
    """The parts of a recording, one after another. Raises PgtareError where one is damaged."""
    for path in sorted(directory.glob("part-*.parquet")):
        try:
            columns = parquet.read(path)
        except duckdb.Error as ex:
            raise PgtareError(f"{path} is damaged: it cannot be read as Parquet") from ex
        if missing := [name for name in COLUMNS if name not in columns]:
            raise PgtareError(f"{path} is damaged: it lacks the column {missing[0]}")
        yield columns
