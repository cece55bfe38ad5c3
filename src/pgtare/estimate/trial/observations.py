"""The table of observations: one row a measured transaction, as numpy columns."""

from __future__ import annotations

from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt


class UnitFlag(IntFlag):
    """What happened in a unit; the values are those of server/pgtare/pgtare.h."""

    FIRST_RUN = 1 << 0  # in the first run of a session that began during the trial
    ABORTED = 1 << 1  # a transaction of the unit failed: an error ended it, not a ROLLBACK
    SWITCH_FAILED = 1 << 2  # a setting of the arm could not be applied
    APP_CHANGED = 1 << 3  # the application changed one of the arm's settings, be it for a while
    NO_ARRIVAL = 1 << 4  # request was already buffered; starts where the last switch ended
    COPY = 1 << 5  # a COPY ran in the unit
    LOGGED = 1 << 6  # at least one line went to the server log
    INSTRUMENTED = 1 << 7  # a plan ran with per-node instrumentation
    TOTAL_TIMED = 1 << 8  # a plan ran with whole-query instrumentation
    QUERY_ID = 1 << 9  # a plan carried a query identifier
    BLOCKS_READ = 1 << 10  # a block was read from outside shared buffers
    IO_TIMED = 1 << 11  # time of block reads or writes was accounted
    EXECUTED = 1 << 12  # a plan was executed
    RELOADED = 1 << 13  # the configuration was read again: arm not surely in force
    STRADDLED = 1 << 14  # its answer came after the end of its slice
    MIXED = 1 << 15  # in a slice in which each session draws its arm
    OPEN = 1 << 16  # not finished when its trial or its session ended: times are those so far
    UNDRAWN = 1 << 17  # under way before its arm could be drawn
    SYSTEM_CLOCK = 1 << 18  # the server took times from the system's clock, as always before 19


#: In such a unit the arm was not, or not surely, in force.
UNUSABLE = UnitFlag.SWITCH_FAILED | UnitFlag.APP_CHANGED | UnitFlag.RELOADED | UnitFlag.UNDRAWN

#: The slice of a unit in a trial without slices.
NO_SLICE = 0xFFFFFFFF
#: The block of a unit in a session's first run, and in a trial in slices.
NO_BLOCK = 0xFFFFFFFF

#: One observation as the server module writes it (72 bytes, little endian).
OBSERVATION = np.dtype(
    [
        ("start_ns", "<i8"),  # request arrival, ns since the trial began
        ("service_ns", "<i8"),  # request arrived -> answered, without sending, over requests
        ("client_ns", "<i8"),  # waiting for the client inside the transaction, and sending
        ("cpu_ns", "<i8"),  # thread CPU of the cycle, -1 if not taken
        ("backend", "<u4"),  # ordinal of the session in the trial, from 0
        ("unit", "<u4"),  # running number within the backend, from 0
        ("block", "<u4"),  # running number of the permuted block within the backend, or NO_BLOCK
        ("position", "u1"),  # position within the run, or within the slice (255 = that or more)
        ("arm", "u1"),  # index of the arm
        ("requests", "<u2"),  # client requests in the unit (65535 = that or more)
        ("flags", "<u4"),  # UnitFlag
        ("switch_ns", "<u4"),  # cost of the switch before this unit
        ("pid", "<i4"),
        ("slice", "<u4"),  # running number of the slice in the trial, NO_SLICE without slices
        ("run", "<u4"),  # number of the run within the block, from 0
        ("stratum", "<u4"),  # a hash of the session's role and database
    ]
)

Observations = npt.NDArray[Any]  # structured array of dtype OBSERVATION


def empty() -> Observations:
    """An observation table with no rows."""
    return np.empty(0, dtype=OBSERVATION)


def finished(obs: Observations) -> Observations:
    """The rows of units that were seen to their end."""
    rows: Observations = obs[(obs["flags"] & UnitFlag.OPEN) == 0]
    return rows


def decode(data: bytes) -> Observations:
    """Decode what the server module's drain returned: whole records of OBSERVATION.

    Raises ValueError if the length is no multiple of the record size.
    """
    return np.frombuffer(data, dtype=OBSERVATION)
