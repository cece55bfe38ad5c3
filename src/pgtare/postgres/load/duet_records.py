"""What the duet driver recorded (driver/records.c): one row a transaction."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from pgtare.errors import MeasurementError

MAGIC = b"PGTDUET\0"
HEADER = struct.Struct("=8sIIIIqqq")
DTYPE = np.dtype(
    [
        ("scheduled_ns", "i8"),
        ("lag_ns", "i8"),
        ("latency_ns", "i8"),
        ("cycle", "u4"),
        ("thread", "u2"),
        ("cluster", "u1"),
        ("turn", "u1"),
        ("script", "u1"),
        ("outcome", "u1"),
        ("sqlstate", "S5"),
        ("unused", "u1"),
    ]
)


class Outcome(IntEnum):
    """How a transaction ended; only OK has a latency that means what it says."""

    OK = 0
    CONFLICT = 1
    """Serialization failure or deadlock: rolled back, counted, not repeated."""
    ERROR = 2
    """Any other SQL error."""
    LOST = 3
    """The connection broke."""
    UNFINISHED = 4
    """No answer until the run ended: its true latency is longer than the one recorded."""
    UNSENT = 5
    """Due, but its connection was taken until the run ended: likewise longer."""


@dataclass(frozen=True)
class Records:
    """The transactions of one run, in no particular order.

    rows: of DTYPE. scheduled_ns counts from the run's zero, warm-up included; lag_ns and
    latency_ns count from scheduled_ns, so that latency − lag is the time from sending to answer.
    """

    rows: np.ndarray[Any, Any]
    n_clusters: int
    n_threads: int
    warmup_ns: int
    duration_ns: int

    @property
    def measured(self) -> np.ndarray[Any, Any]:
        """The rows after the warm-up."""
        return self.rows[self.rows["scheduled_ns"] >= self.warmup_ns]

    def outcomes(self) -> dict[str, int]:
        """How many transactions ended how, the warm-up's included."""
        counts = np.bincount(self.rows["outcome"], minlength=len(Outcome))
        return {outcome.name.lower(): int(counts[outcome]) for outcome in Outcome}

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """The rows as columns, to be kept."""
        columns = {name: self.rows[name] for name in DTYPE.names or () if name != "unused"}
        columns["sqlstate"] = columns["sqlstate"].astype("U5")
        return columns


def read_records(path: Path) -> Records:
    """The records in a driver's file; one cut short by a kill gives all its whole records.

    Raises MeasurementError if it is none.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEADER.size)
            if len(head) < HEADER.size:
                raise MeasurementError(f"{path} ends before its first record")
            magic, size, clusters, threads, _, warmup, duration, _ = HEADER.unpack(head)
            if magic != MAGIC or size != DTYPE.itemsize:
                raise MeasurementError(f"{path} was not written by this version's duet driver")
            data = file.read()
    except OSError as ex:
        raise MeasurementError(f"cannot read {path}: {ex.strerror}") from ex
    whole = len(data) - len(data) % DTYPE.itemsize
    rows = np.frombuffer(data[:whole], dtype=DTYPE)
    return Records(rows, clusters, threads, warmup, duration)
