"""Result directories: observations as columns, the design and the result as JSON, whole or not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from pgtare.estimate.trial.bursts import RUN
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import OBSERVATION, Observations
from pgtare.kit import artefact, files, npz
from pgtare.kit.artefact import ArtefactKind
from pgtare.weighing.weigh.schema import SCHEMA, WeighResult

DESIGN_SCHEMA = "pgtare.design/3"
OBSERVATIONS_FILE = "observations.npz"
DESIGN_FILE = "design.json"
RESULT_FILE = "result.json"
FILES = (OBSERVATIONS_FILE, DESIGN_FILE, RESULT_FILE)
RESULT = ArtefactKind(
    "result of `pgtare weigh`", RESULT_FILE, SCHEMA, parts=(OBSERVATIONS_FILE, DESIGN_FILE)
)
_DESIGN = ArtefactKind("design of `pgtare weigh`", DESIGN_FILE, DESIGN_SCHEMA)


class Stored(NamedTuple):
    """What a result directory holds."""

    design: Design
    observations: Observations
    result: WeighResult


def check_target(directory: Path) -> None:
    """Raise UsageError if `save` would refuse `directory`; call it before measuring."""
    artefact.check_new(directory, RESULT)


def save(directory: Path, design: Design, observations: Observations, result: WeighResult) -> None:
    """Write a result directory, whole or not at all.

    Files are readable by their owner only, as they hold settings and host names. Raises UsageError
    if `directory` is in use, and MeasurementError if it could not be written.
    """
    what = f"The result could not be saved in {directory}"
    with artefact.new_directory(directory, RESULT, what) as place:
        npz.write(
            place / OBSERVATIONS_FILE, {name: observations[name] for name in _names(_dtype(design))}
        )
        described = {**dataclasses.asdict(design), "observations": len(observations)}
        document = json.dumps({"schema": DESIGN_SCHEMA, **described}, indent=2)
        files.write_text(place / DESIGN_FILE, document + "\n")
        files.write_text(place / RESULT_FILE, result.to_json() + "\n")


def load(directory: Path) -> Stored:
    """Read a result directory: its design, observations and result.

    The observations are of dtype OBSERVATION, or RUN if a driver weighed from outside.

    Raises UsageError if `directory` is no result directory or of another version, and PgtareError
    if one of its files is damaged.
    """
    document = RESULT.open(directory)
    design, rows = _read_design(directory / DESIGN_FILE)
    observations = _read_observations(directory / OBSERVATIONS_FILE, _dtype(design))
    result = artefact.parsed(WeighResult, document, directory / RESULT_FILE)
    if len(observations) != rows:
        raise artefact.damaged(
            directory,
            f"{OBSERVATIONS_FILE} holds {len(observations)} observations "
            f"where {DESIGN_FILE} counts {rows}",
        )
    if [arm.name for arm in result.arms] != [arm.name for arm in design.arms]:
        raise artefact.damaged(directory, f"{RESULT_FILE} and {DESIGN_FILE} name different arms")
    if rows and int(observations["arm"].max()) >= len(design.arms):
        raise artefact.damaged(
            directory, f"{OBSERVATIONS_FILE} has an arm that {DESIGN_FILE} lacks"
        )
    return Stored(design, observations, result)


def load_result(path: Path) -> WeighResult:
    """Read one result document of schema `pgtare.weigh/2`; errors as in `load`."""
    return artefact.parsed(WeighResult, RESULT.read(path), path)


def _read_design(path: Path) -> tuple[Design, int]:
    document = _DESIGN.read(path)
    try:
        described = {field.name: document[field.name] for field in dataclasses.fields(Design)}
        rows = int(document["observations"])
        return TypeAdapter(Design).validate_python(described), rows
    except ValidationError as ex:
        why = ex.errors()[0]["msg"]
    except (KeyError, TypeError, ValueError) as ex:
        why = str(ex)
    raise artefact.damaged(path, f"it does not describe a design ({why})")


def _dtype(design: Design) -> np.dtype[Any]:
    return RUN if design.driven else OBSERVATION


def _read_observations(path: Path, dtype: np.dtype[Any]) -> Observations:
    names = _names(dtype)
    columns = npz.read(path, {name: dtype[name] for name in names})
    observations = np.empty(len(columns[names[0]]), dtype=dtype)
    for name in names:
        observations[name] = columns[name]
    return observations


def _names(dtype: np.dtype[Any]) -> tuple[str, ...]:
    return dtype.names or ()
