"""Results on disk: a directory is complete or absent, and opening one says what is wrong with it.

Four kinds build on this: results of `pgtare weigh`, weighings of a fleet, studies of
`pgtare ladder`, and traces. What is written at once goes into a hidden sibling (`Staged`), and one
rename commits it. What grows while it is measured (fleets, studies) consists of files that are each
written whole (`files.write_text`, `npz.write`); a trace is one file of blocks.

Every kind is refused in the same sentences: `not_there`, `other_kind`, `other_version`, `damaged`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pgtare.errors import PgtareError, UsageError
from pgtare.kit import files

Model = TypeVar("Model", bound=BaseModel)

#: What to do about a damaged file.
REMEDY = "restore it from a copy, or measure again"


@dataclass(frozen=True)
class ArtefactKind:
    """A kind of result.

    what: what it is and the command that makes it, as "result of `pgtare weigh`". document: the
    file that describes it. schema: of that file, as pgtare.weigh/2. parts: its other files.
    """

    what: str
    document: str
    schema: str
    parts: tuple[str, ...] = ()

    def open(self, directory: Path) -> dict[str, Any]:
        """The document of an artefact that has all its files.

        Raises UsageError if it is not there, incomplete, of another kind or of a version that this
        pgtare does not read, and PgtareError if it is damaged.
        """
        names = _names(directory, self.what)
        if self.document not in names:
            raise other_kind(directory, self.what, f"it lacks {self.document}")
        document = self.read(directory / self.document)
        for name in self.parts:
            if name not in names:
                raise UsageError(f"{directory} is incomplete: {name} is missing; {REMEDY}")
        return document

    def read(self, path: Path) -> dict[str, Any]:
        """A document of this kind on its own; errors as in `open`."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as ex:
            raise not_there(path, self.what) from ex
        except OSError as ex:
            raise unreadable(path, ex) from ex
        except (ValueError, RecursionError) as ex:
            raise damaged(path, "it is not a JSON document") from ex
        found = document.get("schema") if isinstance(document, dict) else None
        if found == self.schema:
            assert isinstance(document, dict)
            return document
        family, _, version = str(found).rpartition("/")
        known_family, _, known = self.schema.rpartition("/")
        if family == known_family and version.isdecimal():
            raise other_version(path, int(version), int(known))
        raise other_kind(path, self.what, f"its schema is {found!r}")


def _names(directory: Path, what: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError as ex:
        raise not_there(directory, what) from ex
    except NotADirectoryError as ex:
        raise other_kind(directory, what, "it is not a directory") from ex
    except OSError as ex:
        raise unreadable(directory, ex) from ex


def not_there(path: Path, what: str) -> UsageError:
    """The error for a path at which there is nothing."""
    return UsageError(f"there is no {what}: {path} does not exist")


def other_kind(path: Path, what: str, why: str) -> UsageError:
    """The error for what is something else. why: "it lacks x.json"."""
    return UsageError(f"{path} holds no {what}: {why}")


def other_version(path: Path, found: int, known: int) -> UsageError:
    """The error for a version of a format that is not read."""
    return UsageError(
        f"{path} was written in version {found} of the format and this pgtare reads version "
        f"{known}: read it by the pgtare that wrote it"
    )


def unreadable(path: Path, ex: OSError) -> UsageError:
    """The error for what the system does not let us read."""
    why = os.strerror(ex.errno) if ex.errno else str(ex)
    return UsageError(f"{path} cannot be read: {why}")


def damaged(path: Path, why: str, remedy: str = REMEDY) -> PgtareError:
    """The error for what is not as it was written. remedy: what to do."""
    return PgtareError(f"{path} is damaged: {why}; {remedy}")


def parsed(model: type[Model], document: dict[str, Any], path: Path, remedy: str = REMEDY) -> Model:
    """A document as its model. Raises PgtareError, which names the first wrong field."""
    try:
        return model.model_validate(document)
    except ValidationError as ex:
        first = ex.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise damaged(path, f"{where}: {first['msg']}", remedy) from ex


def check_new(directory: Path, kind: ArtefactKind | None = None, *, renamed: bool = True) -> None:
    """Raise UsageError if nothing new can be made at `directory`; call it before measuring.

    kind: what will be there, so that another of its kind is recognised. renamed: whether it is put
    there by a rename, as by `Staged`; else files are written there one by one.
    """
    target = directory.absolute()
    with files.refused(f"cannot make {directory}"):
        taken = target.is_symlink() or (target.exists() and not target.is_dir())
    if taken:
        raise UsageError(
            f"{directory} exists already and is not a directory; "
            "name a directory that does not exist yet"
        )
    files.check_directory(directory)
    if not target.is_dir():
        return
    if not renamed:
        files.check_writable(target, f"cannot make {directory}")
    if renamed and os.path.ismount(target):
        raise UsageError(f"{directory} is a mount point; name a directory in it")
    names = _names(target, kind.what if kind else "directory")
    if kind is not None and kind.document in names:
        raise UsageError(
            f"{directory} already holds a {kind.what}; name another directory or remove it first"
        )
    if names:
        raise UsageError(
            f"{directory} exists already and is not empty; name a directory that does not exist yet"
        )


class Staged:
    """A directory that is being written, in a hidden sibling (`path`), for its owner only.

    What a killed process left of the same directory is removed first. Raises UsageError if the
    place cannot be used, and MeasurementError if the disk has no room.
    """

    def __init__(self, target: Path, kind: ArtefactKind) -> None:
        check_new(target, kind)
        self.target = target.absolute()
        try:
            self._remove_left_over()
            self.path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self.target.parent))
        except OSError as ex:
            if files.is_full(ex):
                raise files.failure(f"{target} cannot be made", ex) from ex
            raise UsageError(f"{target} cannot be made: {ex.strerror}") from ex
        # held as long as this process lives: others see by it that somebody is writing
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
        self._lock: int | None = os.open(self.path, flags)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def _prefix(self) -> str:
        return f".{self.target.name}.partial-"

    def _remove_left_over(self) -> None:
        for path in self.target.parent.iterdir():
            if not path.name.startswith(self._prefix) or path.is_symlink() or not path.is_dir():
                continue
            with contextlib.suppress(OSError):  # somebody writes it, or it is another user's
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                finally:
                    os.close(fd)

    def commit(self) -> None:
        """Put all that was written in its place, by one rename. Raises MeasurementError."""
        try:
            if self._lock is not None:
                files.hand_over(self._lock)
            files.sync(self.path)
            os.rename(self.path, self.target)
            files.sync(self.target.parent)
        except OSError as ex:
            raise files.failure(f"{self.target} could not be written", ex) from ex
        self._unlock()

    def discard(self) -> None:
        """Leave nothing of what is not committed."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def new_directory(target: Path, kind: ArtefactKind, what: str) -> Iterator[Path]:
    """A place to write an artefact in, which becomes `target` at the end, or is removed.

    what: of the error, as "The result could not be saved in DIRECTORY". Raises as `Staged`, and
    MeasurementError for an OSError of the caller.
    """
    staged = Staged(target, kind)
    try:
        yield staged.path
        staged.commit()
    except OSError as ex:
        raise files.failure(what, ex) from ex
    finally:
        staged.discard()  # after the rename there is nothing under this name any more
