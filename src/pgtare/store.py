"""Result directories: observations as Parquet, the design and the result as JSON, whole or not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
from pydantic import ValidationError

from pgtare import parquet
from pgtare.design import Arm, Design, Runs, Slices
from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.observations import NO_SLICE, OBSERVATION, Observations
from pgtare.report import files
from pgtare.report.schema import SCHEMA, WeighResult

DESIGN_SCHEMA = "pgtare.design/2"
#: Before there were slices: no "slices" here, and a column "reserved" in the observations.
_WITHOUT_SLICES = "pgtare.design/1"
OBSERVATIONS_FILE = "observations.parquet"
DESIGN_FILE = "design.json"
RESULT_FILE = "result.json"
FILES = (OBSERVATIONS_FILE, DESIGN_FILE, RESULT_FILE)


class Stored(NamedTuple):
    """What a result directory holds."""

    design: Design
    observations: Observations
    result: WeighResult


def check_target(directory: Path) -> None:
    """Raise UsageError where `save` would refuse `directory`; call it before measuring."""
    target = directory.absolute()
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(
            f"{directory} is not a directory; name a directory that does not exist yet."
        )
    if not target.is_dir():
        _check_parent(directory, next(p for p in target.parents if p.exists()))
        return
    try:
        names = os.listdir(target)
    except OSError as ex:
        raise UsageError(f"{directory} cannot be read: {_why(ex)}.") from ex
    if all(name in names for name in FILES):
        raise UsageError(
            f"{directory} already holds a result; name another directory or remove it first."
        )
    if names:
        raise UsageError(f"{directory} is not empty; name a directory that does not exist yet.")


def _check_parent(directory: Path, parent: Path) -> None:
    """Raise UsageError where `directory` cannot be made in its nearest existing ancestor."""
    if not parent.is_dir():
        raise UsageError(f"{directory} cannot be made, as {parent} is not a directory.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{directory} cannot be made, as {parent} is not open for writing.")


def save(directory: Path, design: Design, observations: Observations, result: WeighResult) -> None:
    """Write a result directory as a whole.

    Everything goes into a sibling with a name of its own first, which is synced and renamed
    last, so `directory` either is complete or does not exist. Files are readable by their owner
    only, as they hold settings and host names. Raises UsageError where `directory` is in use,
    and MeasurementError where it could not be written (disk full, no right); what was begun is
    removed then, and the arguments are untouched.
    """
    check_target(directory)
    target = directory.absolute()
    staging: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        _write_parquet(staging / OBSERVATIONS_FILE, observations)
        _write_text(staging / DESIGN_FILE, _design_json(design, len(observations)))
        _write_text(staging / RESULT_FILE, result.to_json() + "\n")
        files.hand_over(staging)
        parquet.sync(staging)
        os.rename(staging, target)
        parquet.sync(target.parent)
    except (OSError, duckdb.Error) as ex:
        raise MeasurementError(f"The result could not be saved in {directory}: {_why(ex)}.") from ex
    finally:
        # Also on Ctrl-C; after the rename there is nothing under this name any more.
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def load(directory: Path) -> Stored:
    """Read a result directory: its design, observations (dtype OBSERVATION) and result.

    Raises UsageError where `directory` is no result directory, and PgtareError where one of its
    files is damaged or of a version this pgtare does not read.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory, so it holds no result.")
    for name in FILES:
        if not (directory / name).is_file():
            raise UsageError(f"{directory} is not a result of pgtare: {name} is missing.")
    design, rows = _read_design(directory / DESIGN_FILE)
    observations = _read_parquet(directory / OBSERVATIONS_FILE)
    result = load_result(directory / RESULT_FILE)
    if len(observations) != rows:
        raise PgtareError(
            f"{directory} is damaged: {OBSERVATIONS_FILE} holds {len(observations)} observations "
            f"where {DESIGN_FILE} counts {rows}."
        )
    if [arm.name for arm in result.arms] != [arm.name for arm in design.arms]:
        raise PgtareError(
            f"{directory} is damaged: {RESULT_FILE} and {DESIGN_FILE} name different arms."
        )
    if rows and int(observations["arm"].max()) >= len(design.arms):
        raise PgtareError(
            f"{directory} is damaged: {OBSERVATIONS_FILE} has an arm that {DESIGN_FILE} lacks."
        )
    return Stored(design, observations, result)


def load_result(path: Path) -> WeighResult:
    """Read one result document of schema `pgtare.weigh/1`; errors as in `load`."""
    document = _read_json(path, SCHEMA)
    try:
        return WeighResult.model_validate(document)
    except ValidationError as ex:
        first = ex.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PgtareError(f"{path} does not follow {SCHEMA}: {where}: {first['msg']}.") from ex


def _design_json(design: Design, rows: int) -> str:
    document = {
        "schema": DESIGN_SCHEMA,
        "arms": [
            {
                "name": arm.name,
                "role": arm.role,
                "settings": arm.settings,
                "inject_ns": arm.inject_ns,
            }
            for arm in design.arms
        ],
        "block": list(design.block),
        "seed": design.seed,
        "slices": vars(design.slices) if design.slices else None,
        "runs": vars(design.runs) if design.runs else None,
        "observations": rows,
    }
    return json.dumps(document, indent=2) + "\n"


def _read_design(path: Path) -> tuple[Design, int]:
    document = _read_json(path, DESIGN_SCHEMA, _WITHOUT_SLICES)
    try:
        arms = tuple(
            Arm(
                name=str(arm["name"]),
                role=arm["role"],
                settings={str(k): str(v) for k, v in arm["settings"].items()},
                inject_ns=int(arm["inject_ns"]),
            )
            for arm in document["arms"]
        )
        block = tuple(int(index) for index in document["block"])
        slices, runs = _slices(document.get("slices")), _runs(document.get("runs"))
        design = Design(arms, block, int(document["seed"]), slices, runs)
        return design, int(document["observations"])
    except (KeyError, TypeError, ValueError, AttributeError) as ex:
        raise PgtareError(f"{path} does not describe a design: {_why(ex)}.") from ex


def _slices(described: dict[str, Any] | None) -> Slices | None:
    if described is None:
        return None
    return Slices(
        kinds=tuple(int(kind) for kind in described["kinds"]),
        min_us=int(described["min_us"]),
        max_us=int(described["max_us"]),
        guard_us=int(described["guard_us"]),
    )


def _runs(described: dict[str, Any] | None) -> Runs | None:
    """None also of a design that was written before there were runs."""
    if described is None:
        return None
    return Runs(
        turns=tuple(int(arm) for arm in described["turns"]),
        every=int(described["every"]),
        shortest=int(described["shortest"]),
        longest=int(described["longest"]),
    )


def _read_json(path: Path, *schemas: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {_why(ex)}.") from ex
    except ValueError as ex:
        raise PgtareError(f"{path} is damaged: it is not a JSON document.") from ex
    found = document.get("schema") if isinstance(document, dict) else None
    if found not in schemas:
        raise PgtareError(f"{path} has the schema {found!r} where this pgtare reads {schemas[0]}.")
    assert isinstance(document, dict)
    return document


def _write_text(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _write_parquet(path: Path, observations: Observations) -> None:
    parquet.write(path, {name: observations[name] for name in _names()})


def _read_parquet(path: Path) -> Observations:
    try:
        columns = parquet.read(path)
    except duckdb.Error as ex:
        raise PgtareError(f"{path} is damaged: it cannot be read as Parquet.") from ex
    if "slice" not in columns and "reserved" in columns:
        columns["slice"] = np.full_like(columns["reserved"], NO_SLICE)
    missing = [name for name in _names() if name not in columns]
    if missing:
        raise PgtareError(f"{path} is damaged: it lacks the column {missing[0]}.")
    observations = np.empty(len(columns[_names()[0]]), dtype=OBSERVATION)
    for name in _names():
        if np.ma.is_masked(columns[name]) or not _fits(columns[name], OBSERVATION[name]):
            raise PgtareError(f"{path} is damaged: the column {name} has the wrong type.")
        observations[name] = columns[name]
    return observations


def _fits(values: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> bool:
    """Whether a column has the type, or an earlier version's width of it and no value too large."""
    if values.dtype == wanted:
        return True
    if values.dtype != np.uint16 or wanted.kind != "u":
        return False
    return not values.size or int(values.max()) <= np.iinfo(wanted).max


def _names() -> tuple[str, ...]:
    return OBSERVATION.names or ()


def _why(ex: BaseException) -> str:
    """The cause in a few words: the system's own for an OSError, the first line otherwise."""
    if isinstance(ex, OSError):
        if ex.errno in (errno.ENOSPC, errno.EDQUOT):
            return "the disk is full"
        if ex.errno is not None:
            return os.strerror(ex.errno)
    text = str(ex).strip() or type(ex).__name__
    if "No space left on device" in text:
        return "the disk is full"
    return text.splitlines()[0].rstrip(".")
