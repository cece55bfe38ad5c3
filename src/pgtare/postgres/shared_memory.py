"""Shared memory that a killed server leaves behind, which only its next start would free.

A server keeps dynamic segments as files in /dev/shm; the control segment lists them (dsm.c). The
few bytes of System V memory by which PostgreSQL knows a running server stay as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import struct
from pathlib import Path

from pgtare.postgres import processes
from pgtare.postgres.settings import replace_file

_FILES = Path("/dev/shm")  # noqa: S108
_MAGIC = 0x9A503D32
_HEADER = struct.Struct("=III4x")  # magic, items used, items there are
_ITEM = struct.Struct("=IIQQQB7x")  # handle, references, first page, pages, private, pinned
_IPC_RMID = 0


def note(pid: int, data: Path, file: Path) -> None:
    """Write down in `file` what shared memory a postmaster that has just started holds."""
    lines = processes.read_pid_file(data)
    key = [int(word) for word in lines[6].split() if word.isdigit()] if len(lines) > 6 else []
    with contextlib.suppress(OSError):
        # not psutil's memory_maps, which reads smaps: that takes long with large shared buffers
        maps = Path(f"/proc/{pid}/maps").read_text()
        names = sorted(set(re.findall(r"/dev/shm/(PostgreSQL\.\d+)", maps)))  # noqa: S108
        noted = {"segments": names, "system_v": [*key, data.stat().st_uid]}
        replace_file(file, json.dumps(noted), 0o600)


def free(file: Path) -> None:
    """Free what `note` wrote down, and what its server has made since. It must have ended."""
    try:
        noted = json.loads(file.read_text())
    except (OSError, ValueError):
        return
    for name in noted["segments"]:
        _free_segments(_FILES / name)
    _free_system_v(noted["system_v"])


def _free_segments(control: Path) -> None:
    """Remove a control segment and those that it lists, if they are its owner's."""
    with contextlib.suppress(OSError):
        fd = os.open(control, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            owner, content = os.fstat(fd).st_uid, file.read()
        for handle in _listed(content):
            path = _FILES / f"PostgreSQL.{handle}"
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == owner:
                    path.unlink()
        control.unlink()


def _listed(content: bytes) -> list[int]:
    if len(content) < _HEADER.size:
        return []
    magic, used, most = _HEADER.unpack_from(content)
    items = (len(content) - _HEADER.size) // _ITEM.size
    if magic != _MAGIC or used > most or used > items:
        return []
    found = (_ITEM.unpack_from(content, _HEADER.size + i * _ITEM.size) for i in range(used))
    return [handle for handle, references, *_ in found if references]


def _free_system_v(noted: list[int]) -> None:
    """Remove a System V segment of this key, number and owner that nobody is attached to."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            key, number, _, _, _, _, attached, owner = (int(word) for word in line.split()[:8])
            if [key & 0xFFFFFFFF, number, owner] == noted and not attached:
                ctypes.CDLL(None).shmctl(number, _IPC_RMID, None)
