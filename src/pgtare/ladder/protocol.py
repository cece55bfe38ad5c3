"""What a protocol is: the steps it plans from a seed, how long each takes, and how one is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
import psycopg

from pgtare.errors import PgtareError
from pgtare.ladder.bench import Bench
from pgtare.ladder.records import Run, Step
from pgtare.ladder.sections import Workload
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
    """A run, and what was sampled in it, by column; no column, or columns of one length."""

    run: Run
    samples: Mapping[str, npt.NDArray[Any]]


class StudyProtocol(Protocol):
    """A way to compare variants. One module each; the conductor knows no other difference."""

    def steps(self, study: Study, seed: int) -> tuple[Step, ...]:
        """What to do for the workloads of this protocol, in order; the same for the same seed."""

    def seconds(self, study: Study, step: Step) -> float:
        """How long a step takes, about."""

    def execute(self, step: Step, setting: Setting) -> Done:
        """Do one step. A run that fails is returned with the reason, not raised."""


def proof_id(workload: Workload) -> str:
    """The id of the step that proves a workload; one, by however many protocols it is played."""
    return f"{workload.stated}-proof"


def attempt(step: Step, setting: Setting, measure: Callable[[Step, Setting], Done]) -> Done:
    """Do a step by `measure`; a failure becomes a run that says so."""
    began, clock = datetime.now(UTC), time.monotonic()
    try:
        done = measure(step, setting)
    except (PgtareError, psycopg.Error, OSError) as ex:
        reason = f"the run failed: {str(ex).strip() or type(ex).__name__}"
        done = Done(Run(step=step, began="", seconds=0.0, failed=(reason,)), {})
    facts = {"began": began.isoformat(), "seconds": time.monotonic() - clock}
    return Done(done.run.model_copy(update=facts), done.samples)
