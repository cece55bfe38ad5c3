"""A recording; on disk, its samples as Parquet and everything else as one JSON document."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from pgtare.kit import artefact, files, parquet
from pgtare.kit.artefact import ArtefactKind
from pgtare.seeing.flame import frames
from pgtare.seeing.flame.samples import BLOCKED, COLUMNS, RUNNING, Mode, StackSamples

SCHEMA = "pgtare.flame.recording/1"
DOCUMENT, _SAMPLES = "flame.json", "samples.parquet"
KIND = ArtefactKind("recording of `pgtare flame`", DOCUMENT, SCHEMA, parts=(_SAMPLES,))

StoppedBy = Literal["time", "interrupt", "target", "full", "perf"]


@dataclass
class FlameRecording:
    """Samples, and how they came about. Times are of CLOCK_MONOTONIC."""

    mode: Mode
    target: str
    samples: StackSamples
    begin_ns: int
    duration_s: float
    walk: str
    rate_hz: int
    stopped_by: StoppedBy
    events: int = 0
    lost: int = 0
    unmatched: int = 0
    #: wall-clock time is CLOCK_MONOTONIC plus this
    realtime_ns: int = 0
    notes: list[str] = field(default_factory=list)

    def shown(self, *, idle: bool = False) -> StackSamples:
        """The samples that it is about: computing, or blocked. idle: for something to do as well.

        A process that computes has something to do, even if it then waits for more.
        """
        if self.mode == "on":
            return self.samples.of(RUNNING)
        wanted = [idle or not frames.is_idle(stack) for stack in self.samples.stacks]
        chosen = self.samples.of(BLOCKED)
        return chosen.where(np.array(wanted, np.bool_)[chosen.stack])


def save(directory: Path, recording: FlameRecording) -> None:
    """Write a recording, whole or not at all.

    Raises UsageError if something is there, MeasurementError if it cannot be written.
    """
    samples = recording.samples
    facts = {name: value for name, value in vars(recording).items() if name != "samples"}
    document = {"schema": SCHEMA, **facts, "stacks": samples.stacks}
    with artefact.new_directory(directory, KIND, f"{directory} could not be written") as place:
        parquet.write(place / _SAMPLES, {name: getattr(samples, name) for name in COLUMNS})
        files.write_text(place / DOCUMENT, json.dumps(document) + "\n")


def load(directory: Path) -> FlameRecording:
    """Read a recording. Raises UsageError if there is none, PgtareError if it is damaged."""
    document = KIND.open(directory)
    columns = parquet.read(directory / _SAMPLES, COLUMNS)
    try:
        del document["schema"]
        if document["mode"] not in get_args(Mode):
            raise ValueError("its mode is unknown")
        stacks = tuple(tuple(stack) for stack in document.pop("stacks"))
        samples = StackSamples(stacks, *(np.asarray(columns[name]) for name in COLUMNS))
        if len(samples) and samples.stack.max() >= len(stacks):
            raise ValueError("a stack is missing")
        return FlameRecording(samples=samples, **document)
    except (ValueError, KeyError, TypeError, AttributeError) as ex:
        raise artefact.damaged(directory / DOCUMENT, str(ex)) from ex
