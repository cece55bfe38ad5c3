"""Where tests put their files: in memory if there is room, else on the disk."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from pgtare.postgres.directories import own_directory

ON_DISK = Path("/var/tmp")  # noqa: S108
_MEMORY = Path("/dev/shm")  # noqa: S108
#: Bytes that must be free in memory; a container's /dev/shm often has 64 MB in all.
_ROOM = 6 << 30


@functools.cache
def memory_directory() -> Path | None:
    """A directory in memory that every account can enter; None if there is no room."""
    try:
        room = shutil.disk_usage(_MEMORY).free
    except FileNotFoundError:
        return None
    if room < _ROOM:
        return None
    return own_directory(_MEMORY / f"pgtare-test-{os.geteuid()}", 0o755)


def files_directory() -> Path:
    """In memory, or `ON_DISK`."""
    return memory_directory() or ON_DISK
