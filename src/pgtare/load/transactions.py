"""pgbench's log of single transactions: where it goes, and its latencies as an array."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

_PREFIX = "transactions"
# client, number, latency µs, script, start s, start µs, and with a rate the schedule lag µs
_LATENCY_COLUMN = 2


@dataclass
class TransactionLog:
    """The log of one run, for `with`: in a directory of its own below `parent`, gone at the end.

    sample: the share of transactions written, drawn by pgbench at random. Their latency counts
    from the scheduled start where the load has a rate, so that a stall is not hidden by requests
    which were never sent (coordinated omission).
    """

    sample: float = 1.0
    parent: Path | None = None
    _directory: Path | None = None

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="pgtare-log-", dir=self.parent))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        found = []
        for path in sorted(self._directory.iterdir()):
            lines = path.read_text().splitlines()
            # "skipped" and "failed" stand in the place of a latency; the run's gate counts them
            cells = (line.split()[_LATENCY_COLUMN] for line in lines if line.count(" ") >= 5)
            found.append(np.array([float(c) for c in cells if c.isdigit()], dtype=np.float64))
        return np.concatenate(found) if found else np.empty(0)
