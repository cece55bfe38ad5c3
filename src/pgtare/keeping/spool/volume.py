"""All changes of files below one directory, each a step of its own; nothing else changes files.

A test stops a process before any step, or inside a write, by `_step` and `_write`.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Volume:
    """Files below `root`, named relative to it, for their owner only. Errors are OSErrors."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """The place of a file."""
        return self.root / name

    def make_directory(self, name: str = "") -> None:
        """Make a directory if it does not exist."""
        if not self.path(name).is_dir():
            self._step("mkdir", name)
            os.mkdir(self.path(name), 0o700)

    def write(self, name: str, data: ReadableBuffer) -> int:
        """Write a whole file, synced; return its size. An old one is replaced, not atomically."""
        with contextlib.closing(self.stream(name)) as sink:
            sink.write(data)
            sink.sync()
        return sink.size

    def stream(self, name: str) -> Sink:
        """Open a file to write it piece by piece."""
        return Sink(self, name)

    def replace(self, old: str, new: str) -> None:
        """Rename a file; one that already has the new name is replaced, atomically."""
        self._step("replace", new)
        os.replace(self.path(old), self.path(new))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        self._step("link", new)
        os.link(self.path(old), self.path(new))

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""
        self._step("remove", name)
        self.path(name).unlink(missing_ok=True)

    def sync(self, name: str = "") -> None:
        """Make the names of a directory safe against a power failure."""
        self._step("sync", name)
        fd = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        """Room that is left for us."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def _step(self, operation: str, name: str) -> None:
        """Called before each change."""

    def _write(self, fd: int, data: memoryview) -> None:
        while data:
            data = data[os.write(fd, data) :]


class Sink(io.RawIOBase):
    """A file that is being written; `sync` before it is closed."""

    def __init__(self, volume: Volume, name: str) -> None:
        self._volume, self._name = volume, name
        self.size = 0
        volume._step("create", name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(volume.path(name), flags, 0o600)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """All of it, at once."""
        view = memoryview(data).cast("B")
        self._volume._step("write", self._name)
        self._volume._write(self._fd, view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def sync(self) -> None:
        """Make what was written safe against a power failure."""
        self._volume._step("fsync", self._name)
        os.fsync(self._fd)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)
