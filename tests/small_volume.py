"""A file system of a given size, to be filled; and a full one, pretended."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest


@contextlib.contextmanager
def small_volume(options: str) -> Iterator[Path]:
    """Mounted with these options of tmpfs, as size=1m; takes root, and skips without the right."""
    path = Path(tempfile.mkdtemp(prefix="pgtare-small-", dir="/var/tmp"))
    command = ["mount", "-t", "tmpfs", "-o", options, "pgtare-test", path]
    try:
        if subprocess.run(command, check=False).returncode != 0:
            pytest.skip("cannot mount a small file system here")
        try:
            yield path
        finally:
            subprocess.run(["umount", path], check=True)
    finally:
        path.rmdir()


def fill(directory: Path, leave: int = 0) -> None:
    """Fill a volume up to some bytes, or to the last one."""
    with contextlib.suppress(OSError), open(directory / "others", "wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
    size = (directory / "others").stat().st_size
    with open(directory / "others", "r+b") as file:
        file.truncate(size - leave)


def raise_no_space(*_: object) -> NoReturn:
    """What a call of the system does on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")
