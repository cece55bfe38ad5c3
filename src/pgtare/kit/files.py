"""Writing one file so that it is either the old one or the new one, and why one has failed.

Also how many files a process may have open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pgtare.errors import DiskFull, MeasurementError, UsageError

#: What the system answers if a file cannot grow: a full disk, a quota, a limit on file sizes.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: What to do about it.
MAKE_ROOM = "free some space there, or name a place on another volume"


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may. Returns how many these are."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):  # the kernel's own limit was made smaller since
        return now
    return most


def is_full(ex: OSError) -> bool:
    """Whether a file could not grow."""
    return ex.errno in _FULL


def failure(what: str, ex: OSError) -> MeasurementError:
    """The error for a file that could not be written; what: "FILE could not be written"."""
    if is_full(ex):
        return DiskFull(f"{what}: the disk is full; {MAKE_ROOM}")
    return MeasurementError(f"{what}: {os.strerror(ex.errno) if ex.errno else ex}")


def ended_by_full_disk(path: Path, why: str, read_by: str | None) -> DiskFull:
    """The error for a recording that a full disk has ended.

    read_by: the command that reads what was kept; None: nothing was.
    """
    if read_by is None:
        return DiskFull(f"nothing was kept in {path}: {why}; {MAKE_ROOM}")
    return DiskFull(
        f"the recording ended early: {why}; {path} holds what came before, and `{read_by}` reads "
        f"it; before the next recording, {MAKE_ROOM}"
    )


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """What the system refuses is a UsageError; what: "cannot make FILE"."""
    try:
        yield
    except OSError as ex:
        raise UsageError(f"{what}: {ex.strerror}") from ex


def check_target(path: Path | None) -> None:
    """Find out before a measurement, not after it, whether a file can go there; UsageError.

    None is always fine.
    """
    if path is None:
        return
    if str(path) == "-":
        raise UsageError("cannot write -: name a file; standard output is /dev/stdout")
    what = f"cannot write {path}"
    parent = path.resolve().parent
    with refused(what):
        if not parent.is_dir():
            raise UsageError(f"{what}: there is no directory {parent}")
        if path.is_dir():
            raise UsageError(f"{what}: it is a directory; name a file in it")
        if path.exists() and not path.is_file():
            if not os.access(path, os.W_OK):
                raise UsageError(f"{what}: permission denied")
            return
    check_writable(parent, what)


def check_directory(path: Path) -> None:
    """The same for a new directory: a mistyped path makes none above it; UsageError."""
    what = f"cannot make {path}"
    parent = path.resolve().parent
    with refused(what):
        if not parent.is_dir():
            raise UsageError(f"{what}: there is no directory {parent}")
    check_writable(parent, what)


def check_writable(directory: Path, what: str) -> None:
    """Raise UsageError if no file can be made in a directory; what: "cannot make FILE"."""
    # os.access answers root that a read-only file system is writable
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as ex:
        if not is_full(ex):
            raise UsageError(f"{what}: {directory} is not writable ({ex.strerror})") from ex


def sync(path: Path) -> None:
    """Make a file or directory safe against a power failure."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A new file next to `path`, for its owner only; written and synced, it takes its place.

    If the block fails it goes. Raises OSError.
    """
    staging = path.with_name(f".{path.name}.partial")
    try:
        staging.unlink(missing_ok=True)
        staging.touch(mode=0o600, exist_ok=False)  # nobody else reads what is half written either
        yield staging
        sync(staging)
        os.replace(staging, path)
        sync(path.absolute().parent)
    finally:
        staging.unlink(missing_ok=True)


def append_line(path: Path, line: str, *, first: bool) -> None:
    """Add a line (UTF-8) to a file of lines; the first replaces what was there.

    Raises MeasurementError with the cause.
    """
    try:
        if first:
            write_text(path, line + "\n")
            return
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as ex:
        raise failure(f"{path} could not be written", ex) from ex


def write_text(path: Path, text: str) -> None:
    """Put `text` (UTF-8) at `path`, replacing what was there, readable by its owner only.

    Under sudo the owner is the user who called it, in a directory that this user may write. A
    device or a pipe is written to, and stays what it is. Raises MeasurementError with the cause;
    `path` is untouched then.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """The same of bytes."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        directory = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _replace(directory, path.name, data)
        finally:
            os.close(directory)
    except OSError as ex:
        raise failure(f"{path} could not be written", ex) from ex


def _replace(directory: int, name: str, data: bytes) -> None:
    """Put a file into an open directory, wherever the path of that leads by now."""
    staging = f".{name}.{secrets.token_hex(4)}"
    fd = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            if _is_callers(directory):
                _give(file.fileno())
            os.fsync(file.fileno())
        os.replace(staging, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(staging, dir_fd=directory)
        raise


def hand_over(directory: int) -> None:
    """Give a directory of ours and what is in it to the user who ran us by sudo, if there is one.

    directory: its descriptor, as whoever owns the directory above could put another one under its
    name. Nothing is given away where the user could not have made it.
    """
    parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    try:
        if not _is_callers(parent):
            return
    finally:
        os.close(parent)
    for name in os.listdir(directory):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(name, flags, dir_fd=directory)
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
                _give(fd)
        finally:
            os.close(fd)
    _give(directory)


def _is_callers(directory: int) -> bool:
    """Whether the user who ran us by sudo may make files in a directory."""
    caller = os.environ.get("SUDO_UID")
    if os.geteuid() != 0 or caller is None:
        return False
    found = os.fstat(directory)
    return str(found.st_uid) == caller or bool(found.st_mode & stat.S_IWOTH)


def _give(fd: int) -> None:
    # if they cannot have it (a file system that squashes root) it stays ours
    with contextlib.suppress(KeyError, ValueError, OSError):
        os.fchown(fd, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))
