"""A recording on disk: its samples as Parquet, everything else as one JSON document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import get_args

import duckdb
import numpy as np

from pgtare import parquet
from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.flame.record import Recording
from pgtare.flame.samples import Mode, Samples
from pgtare.report import files

SCHEMA = "pgtare.flame.recording/1"
DOCUMENT, _SAMPLES = "flame.json", "samples.parquet"
_COLUMNS = ("start_ns", "pid", "stack", "kind", "weight_ns")


def save(directory: Path, recording: Recording) -> None:
    """Write a recording. Raises UsageError where something stands there, MeasurementError."""
    files.check_unused(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        parquet.write(
            directory / _SAMPLES, {name: getattr(recording.samples, name) for name in _COLUMNS}
        )
    except (OSError, duckdb.Error) as ex:
        raise MeasurementError(f"{directory} could not be written: {ex}") from ex
    facts = {
        field.name: getattr(recording, field.name)
        for field in dataclasses.fields(recording)
        if field.name != "samples"
    }
    document = {"schema": SCHEMA, **facts, "stacks": [list(s) for s in recording.samples.stacks]}
    files.write_text(directory / DOCUMENT, json.dumps(document) + "\n")


def load(directory: Path) -> Recording:
    """Read a recording. Raises UsageError where there is none, PgtareError where it is damaged."""
    try:
        document = json.loads((directory / DOCUMENT).read_text(encoding="utf-8"))
        if document.pop("schema") != SCHEMA:
            raise ValueError("another version")
        if document["mode"] not in get_args(Mode):
            raise ValueError("its mode is unknown")
        columns = parquet.read(directory / _SAMPLES)
        stacks = tuple(tuple(stack) for stack in document.pop("stacks"))
        samples = Samples(stacks, *(np.asarray(columns[name]) for name in _COLUMNS))
        if len(samples) and samples.stack.max() >= len(stacks):
            raise ValueError("a stack is missing")
        return Recording(samples=samples, **document)
    except OSError as ex:
        raise UsageError(f"{directory} is no recording of `pgtare flame`: {ex.strerror}") from ex
    except (ValueError, KeyError, TypeError, AttributeError, duckdb.Error) as ex:
        raise PgtareError(f"{directory} is damaged or of another version: {ex}") from ex
