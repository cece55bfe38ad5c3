"""A plan node in numbers: calls of given length, sampled as the server module samples them."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pgtare.postgres.build import source_dir

Times = NDArray[np.float64]

GAP = np.dtype(
    [("inside", "f4"), ("outside", "f4"), ("gap", "f4"), ("untimed", "u4"), ("timed", "u4")]
)
END = np.dtype([("gap", "f4"), ("untimed", "u4")])
EXACT_CALLS = 64
RAMP = 32


class RowTimes(ctypes.Structure):
    """As in row_estimate.h."""

    _fields_ = [
        ("timed", ctypes.c_uint64),
        ("known", ctypes.c_double),
        ("gaps", ctypes.c_void_p),
        ("ngaps", ctypes.c_int),
        ("ends", ctypes.c_void_p),
        ("nends", ctypes.c_int),
        ("tail", ctypes.c_uint64),
        ("tail_most", ctypes.c_double),
    ]


class RowEstimate(ctypes.Structure):
    """As in row_estimate.h."""

    _fields_ = [
        (name, ctypes.c_double) for name in ("time", "variance", "least", "most", "quantile")
    ]


class RowShare(ctypes.Structure):
    """As in row_estimate.h."""

    _fields_ = [
        ("whole", ctypes.c_int),
        ("summed", ctypes.c_bool),
        ("apart", ctypes.c_bool),
        ("of", RowEstimate),
    ]


@dataclass(frozen=True)
class Interval:
    """Estimate and 95 % interval."""

    time: float
    low: float
    high: float


class Estimator:
    """The module's own estimator, compiled by itself."""

    def __init__(self, directory: Path) -> None:
        library = directory / "row_estimate.so"
        folder = source_dir() / "sql_trace" / "rows"
        names = "estimate", "usual"
        sources = [str(folder / f"row_{name}.c") for name in names]
        subprocess.run(
            ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), *sources, "-lm"], check=True
        )
        self._library = ctypes.CDLL(str(library))
        self._library.row_estimate.restype = RowEstimate
        self._library.row_low.restype = ctypes.c_double
        self._library.row_high.restype = ctypes.c_double
        self._library.row_reconcile.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_double]

    def interval(self, times: RowTimes) -> Interval:
        """What the module would print."""
        found = self._library.row_estimate(ctypes.byref(times))
        of = ctypes.byref(found)
        return Interval(found.time, self._library.row_low(of), self._library.row_high(of))

    def reconcile(self, shares: list[RowShare], most: float) -> list[float]:
        """The times of a whole tree, made consistent."""
        array = (RowShare * len(shares))(*shares)
        self._library.row_reconcile(ctypes.byref(array), len(shares), most)
        return [share.of.time for share in array]

    def sample(
        self,
        inside: Times,
        outside: Times,
        every: int,
        rng: np.random.Generator,
    ) -> Interval:
        """One scan: calls that took `inside`, each followed by `outside` until the next."""
        n = len(inside)
        insides = np.concatenate([[0.0], np.cumsum(inside)])
        cycles = np.concatenate([[0.0], np.cumsum(inside + outside)])
        at = min(EXACT_CALLS, n)
        known, timed = float(insides[at]), at
        gaps: list[tuple[float, float, float, int, int]] = []
        ends: list[tuple[float, int]] = []
        while at < n:
            mean = min(every, max(1, at // RAMP)) - 1
            low = mean - mean // 2 if mean >= 4 else 0
            untimed = int(rng.integers(low, 2 * mean - low + 1))
            if at + untimed >= n:
                # the scan ends in an untimed call, which the clock is read after
                ends.append((float(cycles[n] - cycles[at] - outside[n - 1]), n - at))
                break
            sampled = at + untimed
            gap = float(cycles[sampled] - cycles[at])
            known += float(inside[sampled])
            timed += 1
            if untimed and sampled < n - 1:
                gaps.append((float(inside[sampled]), float(outside[sampled]), gap, untimed, 1))
            elif untimed:
                ends.append((gap, untimed))
            at = sampled + 1
        kept, last = np.array(gaps, dtype=GAP), np.array(ends, dtype=END)
        return self.interval(
            RowTimes(timed, known, kept.ctypes.data, len(kept), last.ctypes.data, len(last), 0, 0.0)
        )
