"""pgbench's log of single transactions: where it goes, and what it says as arrays."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

_PREFIX = "transactions"
# client, number, latency µs, script, end s, end µs, and with a rate the schedule lag µs
_LATENCY_COLUMN, _LEAST_COLUMNS = 2, 6


@dataclass
class TransactionLog:
    """The log of one run, for `with`: in a directory of its own below `parent`, gone at the end.

    sample: the share of transactions written, drawn by pgbench at random. Their latency counts
    from the scheduled start if the load has a rate, so that a stall is not hidden by requests
    which were never sent (coordinated omission).
    """

    sample: float = 1.0
    parent: Path | None = None
    _directory: Path | None = None

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="pgtare-log-", dir=self.parent))
        return self

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def arguments(self) -> list[str]:
        """pgbench's arguments."""
        assert self._directory is not None
        arguments = ["-l", f"--log-prefix={self._directory / _PREFIX}"]
        if self.sample < 1:
            arguments.append(f"--sampling-rate={self.sample:.6g}")
        return arguments

    def latencies_us(self) -> npt.NDArray[np.float64]:
        """The latencies of all transactions written, in µs, in no particular order."""
        assert self._directory is not None
        found: list[int] = []
        for path in sorted(self._directory.iterdir()):
            for line in path.read_text().splitlines():
                cells = line.split(" ")
                # "skipped" and "failed" take the place of a latency; the run's gate counts them
                if len(cells) >= _LEAST_COLUMNS and cells[_LATENCY_COLUMN].isdigit():
                    found.append(int(cells[_LATENCY_COLUMN]))
        return np.array(found, dtype=np.float64)
