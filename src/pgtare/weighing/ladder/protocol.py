"""What a protocol of the ladder is: a way to compare variants, with all its steps in one object.

A new protocol is one module of `protocols/` with a subclass of `StudyProtocol`. No other module
may ask which protocol it has before it: what differs between protocols is a method or an attribute
of this class.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy.typing as npt
import psycopg

from pgtare.errors import PgtareError
from pgtare.postgres.load import LoadSpec, Saturation, find_pgbench, find_saturation
from pgtare.weighing.ladder.blocks import Gathered
from pgtare.weighing.ladder.declared_study import DeclaredStudy
from pgtare.weighing.ladder.records import Rate, Run, Step
from pgtare.weighing.ladder.study_sections import Workload
from pgtare.weighing.ladder.study_servers import Bench


@dataclass(frozen=True)
class Words:
    """How results speak of a protocol.

    name: after "by"; block: what counts as one in every test; blocks: several, as opposed to other
    protocols'; round: what is done, kept and dropped as one; part: what a variant has in it; usual:
    whether it is taken for granted, so that its name is left out; explained: its name in one
    sentence for a newcomer, if it needs that.
    """

    name: str
    block: str
    blocks: str
    round: str
    part: str
    usual: bool = False
    explained: str = ""


@dataclass(frozen=True)
class StepContext:
    """What every step of a study needs: its servers, its scripts' folder, the workloads' rates.

    rates: in transactions a second, by `StudyProtocol.rate_name`. scratch: a folder for files that
    are gone when a run ends; the usual place, if None.
    """

    study: DeclaredStudy
    bench: Bench
    directory: Path
    rates: dict[str, float]
    scratch: Path | None = None


class StepResult(NamedTuple):
    """A run, and what was sampled in it, by column; no column, or columns of one length."""

    run: Run
    samples: Mapping[str, npt.NDArray[Any]]


class StudyProtocol(ABC):
    """A way to compare variants."""

    #: As study files and results call it.
    name: ClassVar[str]
    words: ClassVar[Words]
    #: What its figures cannot show: one paragraph for the page.
    not_shown: ClassVar[str]
    #: Where a study file has its number of blocks, below [protocol] and [quick]; "" is in them.
    section: ClassVar[str] = ""

    # What follows from the study file

    def why_not(self, study: DeclaredStudy, workload: Workload, cores: int) -> str:
        """Why it cannot play a workload, and what to do; follows "cannot be played by ..., as".

        Empty if it can.

        cores: the usable processors.
        """
        return ""

    @abstractmethod
    def blocks(self, study: DeclaredStudy) -> int:
        """How many blocks are planned: the units of inference."""

    def check_load(self, workload: Workload, spec: LoadSpec) -> None:
        """Raise UsageError if it cannot drive this load."""
        return

    def disk_mb(self, study: DeclaredStudy, workload: Workload) -> float:
        """Disk space in MB for servers of its own, on top of one server for each installation."""
        return 0.0

    # Steps

    @abstractmethod
    def plan(self, study: DeclaredStudy, seed: int) -> tuple[Step, ...]:
        """The runs of its workloads (see `own_workloads`), in order; the same for the same seed.

        Proofs of waits are planned elsewhere, for all protocols alike.
        """

    @abstractmethod
    def seconds(self, study: DeclaredStudy, step: Step) -> float:
        """How long a step takes, in s, about."""

    def rehearse(self, study: DeclaredStudy, bench: Bench, workload: Workload) -> None:
        """Start what only this protocol needs once, before hours are spent.

        Raises UsageError or MeasurementError if that fails.
        """
        return

    def rate_name(self, workload: Workload) -> str:
        """The name under which the rate of an open-loop workload is kept."""
        return workload.name

    def server_rate(
        self, study: DeclaredStudy, workload: Workload, rates: Mapping[str, float]
    ) -> float | None:
        """The transactions a second that each server gets; None in a closed loop.

        rates: by `rate_name`.
        """
        return rates.get(self.rate_name(workload))

    def rate(self, workload: Workload, context: StepContext) -> Rate:
        """Find the rate of an open-loop workload: its share of what the floor does at full speed.

        Raises MeasurementError if the load fails.
        """
        study = context.study
        serving = context.bench.serve(study.analysis.floor, workload)
        spec = study.load_spec(workload, context.directory, None)
        found = find_saturation(find_pgbench(serving.cluster.binaries), serving.dsn, spec)
        return self.rate_of(workload, found)

    def play(self, step: Step, context: StepContext) -> StepResult:
        """Do one step. A run that fails is returned with the reason, not raised."""
        began, clock = datetime.now(UTC), time.monotonic()
        try:
            done = self.measure(step, context)
        except (PgtareError, psycopg.Error, OSError) as ex:
            reason = f"the run failed: {str(ex).strip() or type(ex).__name__}"
            done = StepResult(Run(step=step, failed=(reason,)), {})
        facts = {"started": began.isoformat(), "duration_s": time.monotonic() - clock}
        return StepResult(done.run.model_copy(update=facts), done.samples)

    @abstractmethod
    def measure(self, step: Step, context: StepContext) -> StepResult:
        """One step, whose run need not say when it was. Raises what `play` returns as a reason."""

    @abstractmethod
    def gather(self, study: DeclaredStudy, workload: Workload, runs: Iterable[Run]) -> Gathered:
        """The blocks of a workload, from its runs so far."""

    # Words for people

    @abstractmethod
    def layout(self, study: DeclaredStudy) -> str:
        """What it is about to do, in a few words."""

    @abstractmethod
    def how(self, protocol: Mapping[str, Any], n: int, floor: str) -> str:
        """How runs were laid out, a sentence without its end.

        protocol: the section of the study file; n: members of a block, the floor counted twice.
        """

    # For its own use

    def rate_of(self, workload: Workload, found: Saturation) -> Rate:
        """The rate that a workload has at this speed."""
        assert workload.load is not None
        return Rate(
            workload=self.rate_name(workload),
            saturation=found.describe(),
            rate_tps=found.rate(workload.load),
        )

    def own_workloads(self, study: DeclaredStudy) -> Iterator[tuple[int, Workload]]:
        """The workloads that it plays, with their places in the study."""
        for index, workload in enumerate(study.workload):
            if study.protocol_name(workload) == self.name:
                yield index, workload


def proof_id(workload: Workload) -> str:
    """The id of the step that proves a workload."""
    return f"{workload.name}-proof"
