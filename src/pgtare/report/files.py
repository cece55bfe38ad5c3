"""Writing one file so that it is either the old one or the new one, never half of it."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from pgtare.errors import MeasurementError, UsageError


def check_target(path: Path | None) -> None:
    """Find out before a measurement, not after it, whether a file can go there; UsageError.

    None and - (standard output) are always fine.
    """
    if path is None or str(path) == "-":
        return
    parent = path.resolve().parent
    if not parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {parent}")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory; name a file in it")


def check_directory(path: Path) -> None:
    """The same for a new directory: a mistyped path makes none above it; UsageError."""
    parent = path.resolve().parent
    if not parent.is_dir():
        raise UsageError(f"cannot make {path}: there is no directory {parent}")


def check_unused(directory: Path) -> None:
    """Raise UsageError where something stands there, other than an empty directory."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists already; name a directory that does not exist yet")


def write_text(path: Path, text: str) -> None:
    """Put `text` (UTF-8) at `path`, replacing what was there, readable by its owner only.

    Under sudo that is who called it. A device or a pipe is written to, and stays what it is. Raises
    MeasurementError with the cause; `path` is untouched then.
    """
    staging: str | None = None
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        fd, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            _hand_over(file.fileno())
            os.fsync(file.fileno())
        os.replace(staging, path)
        staging = None
    except OSError as ex:
        full = ex.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full else os.strerror(ex.errno or 0)
        raise MeasurementError(f"{path} could not be written: {why}.") from ex
    finally:
        if staging is not None and os.path.exists(staging):
            os.unlink(staging)


def hand_over(directory: Path) -> None:
    """Give a directory of ours and the files in it to who ran us by sudo, if somebody did."""
    for path in (*directory.iterdir(), directory):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            _hand_over(fd)
        finally:
            os.close(fd)


def _hand_over(fd: int) -> None:
    if os.geteuid() != 0:
        return
    # where they cannot have it (a file system that squashes root) it stays ours
    with contextlib.suppress(KeyError, ValueError, OSError):
        os.fchown(fd, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))
