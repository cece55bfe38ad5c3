"""How often PostgreSQL reads the clock to time an I/O (track_io_timing)."""

from __future__ import annotations

from typing import NamedTuple


class IoReadings(NamedTuple):
    """Readings of the clock for one I/O."""

    least: int
    most: int


def io_readings(major: int) -> IoReadings:
    """For a major version: a pair where an I/O begins, from 18 on another if it is waited for.

    Up to 16 an I/O is of one block, from 17 on of up to io_combine_limit blocks.
    """
    return IoReadings(2, 2) if major < 18 else IoReadings(2, 4)
