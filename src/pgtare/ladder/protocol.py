"""What a protocol is: the steps it plans from a seed, how long each takes, and how one is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pgtare.ladder.bench import Bench
from pgtare.ladder.records import Run, Step
from pgtare.ladder.study import Study


@dataclass(frozen=True)
class Setting:
    """What every step of a study needs: its servers, its scripts' folder, the workloads' rates.

    scratch: where a run may keep files that are gone at its end; the usual place, if None.
    """

    study: Study
    bench: Bench
    directory: Path
    rates: dict[str, float]
    scratch: Path | None = None


class Done(NamedTuple):
    """A run, and the latencies in µs that were sampled in it."""

    run: Run
    latencies_us: npt.NDArray[np.float64]


class StudyProtocol(Protocol):
    """A way to compare variants. One module each; the conductor knows no other difference."""

    def steps(self, study: Study, seed: int) -> tuple[Step, ...]:
        """Everything to do, in order; the same for the same seed."""

    def seconds(self, study: Study, step: Step) -> float:
        """How long a step takes, about."""

    def execute(self, step: Step, setting: Setting) -> Done:
        """Do one step. A run that fails is returned with the reason, not raised."""
