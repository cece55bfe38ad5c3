"""A study's directory: its facts, its rates and its runs, each file whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from pydantic import BaseModel, TypeAdapter, ValidationError

from pgtare.errors import UsageError
from pgtare.kit import artefact, files, npz
from pgtare.kit.artefact import ArtefactKind
from pgtare.weighing.ladder.records import Rate, Run, StudyFacts

FACTS = "study.json"
RATES = "rates.json"
RUNS = "runs"
CLOSED = "closed"
_LOCK = ".lock"
_SCRATCH = ".scratch"
#: There while a study is begun.
_BEGINNING = ".beginning"
STUDY = ArtefactKind("study of `pgtare ladder`", FACTS, "pgtare.ladder.study/1", parts=(RUNS,))
_RATES = TypeAdapter(dict[str, Rate])


class Directory:
    """The directory of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def begun(self) -> bool:
        """Whether a study has been begun here."""
        return (self.path / FACTS).is_file()

    def begin(self, facts: StudyFacts, fill: Callable[[Path], None]) -> None:
        """Make the directory, let `fill` put the scripts in it, and write down what is to be run.

        The last says that the study has been begun, so that one which has lacks nothing.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if (self.path / _BEGINNING).exists():
                self._clear()  # a process that began a study here was killed at it
            if self._holdings():
                raise UsageError(
                    f"{self.path} is not empty and holds no study: name a new directory"
                )
            (self.path / _BEGINNING).touch(mode=0o600)
            (self.path / RUNS).mkdir(mode=0o700)
        except OSError as ex:
            raise UsageError(f"cannot make the directory {self.path}: {ex.strerror}") from ex
        try:
            fill(self.path)
            self._write(FACTS, facts)
        except BaseException:
            self._clear()
            raise
        (self.path / _BEGINNING).unlink()

    def _clear(self) -> None:
        """Remove all but the lock."""
        for path in self._holdings():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _holdings(self) -> list[Path]:
        return [path for path in self.path.iterdir() if path.name != _LOCK]

    def facts(self) -> StudyFacts:
        """What is being run. Raises UsageError if there is no study."""
        return artefact.parsed(StudyFacts, STUDY.open(self.path), self.path / FACTS)

    def rates(self) -> dict[str, Rate]:
        """The rates found so far, by workload."""
        path = self.path / RATES
        if not path.exists():
            return {}
        try:
            return _RATES.validate_json(path.read_bytes())
        except ValidationError as ex:
            raise artefact.damaged(
                path, "it holds no rates", "remove it, and rates are found anew"
            ) from ex

    def keep_rate(self, rate: Rate) -> None:
        """Add a workload's rate."""
        rates = {**self.rates(), rate.workload: rate}
        files.write_text(self.path / RATES, _RATES.dump_json(rates, indent=1).decode() + "\n")

    def keep(self, run: Run, samples: Mapping[str, npt.NDArray[Any]]) -> None:
        """Keep a run: its samples first, so that a run which is there has them."""
        try:
            if any(len(column) for column in samples.values()):
                npz.write(self._samples(run.step.id), samples)
        except OSError as ex:
            raise files.failure(
                f"the run {run.step.id} could not be kept in {self.path}", ex
            ) from ex
        self._write(f"{RUNS}/{run.step.id}.json", run)

    def forget(self, steps: Iterable[str]) -> None:
        """Let these steps be done again."""
        for step in steps:
            (self.path / RUNS / f"{step}.json").unlink(missing_ok=True)
            self._samples(step).unlink(missing_ok=True)

    def runs(self) -> dict[str, Run]:
        """The runs kept so far, by their step's id."""
        return {path.stem: _run(path) for path in sorted((self.path / RUNS).glob("*.json"))}

    def close(self) -> None:
        """Mark the study as ended by hand, for good."""
        files.write_text(self.path / CLOSED, "ended by hand\n")

    @property
    def closed(self) -> bool:
        """Whether it was ended by hand before its plan was done."""
        return (self.path / CLOSED).exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from running the same study. Raises UsageError if one does."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as ex:
            raise UsageError(f"cannot use the directory {self.path}: {ex.strerror}") from ex
        try:
            if not _take(fd):
                raise UsageError(f"the study in {self.path} is being run by another process")
            yield
        finally:
            os.close(fd)

    def running(self) -> bool:
        """Whether somebody runs the study just now."""
        try:
            fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _take(fd)
        finally:
            os.close(fd)

    def scratch(self) -> Path:
        """An empty folder for files of a run under way; what a killed process left is removed."""
        path = self.path / _SCRATCH
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        return path

    def _samples(self, step: str) -> Path:
        return self.path / RUNS / f"{step}.npz"

    def _write(self, name: str, model: BaseModel) -> None:
        files.write_text(self.path / name, model.model_dump_json(indent=1, by_alias=True) + "\n")


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _run(path: Path) -> Run:
    try:
        return Run.model_validate_json(path.read_bytes())
    except OSError as ex:
        raise artefact.unreadable(path, ex) from ex
    except ValidationError as ex:
        remedy = "remove it, and that run is done again"
        raise artefact.damaged(path, "it is no run of this version of pgtare", remedy) from ex
