"""A recording on disk: its samples as Parquet, everything else as one JSON document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import get_args

import numpy as np

from pgtare.kit import artefact, files, parquet
from pgtare.kit.artefact import ArtefactKind
from pgtare.seeing.flame.record import FlameRecording
from pgtare.seeing.flame.samples import Mode, StackSamples

SCHEMA = "pgtare.flame.recording/1"
DOCUMENT, _SAMPLES = "flame.json", "samples.parquet"
KIND = ArtefactKind("recording of `pgtare flame`", DOCUMENT, SCHEMA, parts=(_SAMPLES,))
_COLUMNS = ("start_ns", "pid", "stack", "kind", "weight_ns")


def save(directory: Path, recording: FlameRecording) -> None:
    """Write a recording, whole or not at all.

    Raises UsageError if something is there, MeasurementError if it cannot be written.
    """
    facts = {
        field.name: getattr(recording, field.name)
        for field in dataclasses.fields(recording)
        if field.name != "samples"
    }
    document = {"schema": SCHEMA, **facts, "stacks": [list(s) for s in recording.samples.stacks]}
    with artefact.new_directory(directory, KIND, f"{directory} could not be written") as place:
        parquet.write(
            place / _SAMPLES, {name: getattr(recording.samples, name) for name in _COLUMNS}
        )
        files.write_text(place / DOCUMENT, json.dumps(document) + "\n")


def load(directory: Path) -> FlameRecording:
    """Read a recording. Raises UsageError if there is none, PgtareError if it is damaged."""
    document = KIND.open(directory)
    columns = parquet.read(directory / _SAMPLES, _COLUMNS)
    try:
        del document["schema"]
        if document["mode"] not in get_args(Mode):
            raise ValueError("its mode is unknown")
        stacks = tuple(tuple(stack) for stack in document.pop("stacks"))
        samples = StackSamples(stacks, *(np.asarray(columns[name]) for name in _COLUMNS))
        if len(samples) and samples.stack.max() >= len(stacks):
            raise ValueError("a stack is missing")
        return FlameRecording(samples=samples, **document)
    except (ValueError, KeyError, TypeError, AttributeError) as ex:
        raise artefact.damaged(directory / DOCUMENT, str(ex)) from ex
