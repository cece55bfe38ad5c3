"""One writer for each spool: the lock that it holds, and who it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from pgtare.errors import UsageError

LOCK = "lock"
#: A reader that looks who writes has the lock for some µs, so a writer tries again.
_TRIES, _PAUSE_S = 5, 0.02


class Lock:
    """A lock until `release`, or until this process ends. UsageError if another has it."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(directory / LOCK, flags, 0o600)
        try:
            self._take()
        except BlockingIOError as ex:
            os.close(self._fd)
            raise UsageError(
                f"{directory} is written by another process ({_named(directory)}): stop it first, "
                "or name another directory"
            ) from ex
        with contextlib.suppress(OSError):  # a full disk has no room for the number
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> None:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(_PAUSE_S)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let another process write."""
        os.close(self._fd)


def holder(directory: Path) -> int | None:
    """The process that writes a spool now; None if none does, 0 if it is not known."""
    try:
        fd = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return _number(os.pread(fd, 32, 0))
    finally:
        os.close(fd)


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() else 0


def _named(directory: Path) -> str:
    try:
        number = _number((directory / LOCK).read_bytes()[:32])
    except OSError:
        number = 0
    return f"process {number}" if number else "its number is not known"
