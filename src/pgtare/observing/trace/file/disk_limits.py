"""What a trace may take of a disk: its size, and the space to be left free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pgtare.kit import files
from pgtare.kit.numbers import volume

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """In bytes. total: of a recording."""

    total: int = 1024 * MIB
    reserve: int = 512 * MIB


class LimitReached(Exception):
    """A limit that ends a recording: its name (space, size), and a sentence."""

    def __init__(self, limit: str, sentence: str) -> None:
        super().__init__(sentence)
        self.limit = limit


class NoRoom(LimitReached):
    """The disk is full, whatever is to be left free of it."""

    def __init__(self, directory: Path) -> None:
        super().__init__("space", f"the disk of {directory} is full")


def full(directory: Path, ex: OSError) -> NoRoom | None:
    """The limit that an error of the system tells of: the disk is full; None: it is another."""
    return NoRoom(directory) if files.is_full(ex) else None


def check(directory: Path, limits: Limits, written: int, size: int) -> None:
    """Raise LimitReached if `size` more bytes, after those written, would pass a limit."""
    if written + size > limits.total:
        raise LimitReached("size", f"the trace has reached {volume(limits.total)} (--max-size)")
    volume_now = os.statvfs(directory)
    left = volume_now.f_bavail * volume_now.f_frsize - size
    if left < 0:
        raise NoRoom(directory)
    if left < limits.reserve:
        raise LimitReached(
            "space",
            f"the volume of {directory} would have {volume(left)} left, less than "
            f"the reserve of {volume(limits.reserve)} (--reserve)",
        )
