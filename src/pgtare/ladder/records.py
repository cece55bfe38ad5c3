"""What is kept of a study: its plan's steps, the runs made so far, and the facts about them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


#: The variant of a step that plays all of them at once.
ALL = "all at once"


class Step(_Model):
    """One thing to do: prove a workload's profile, run one variant, or play one duet round.

    variant: with the floor's ending where it is the floor's second run; ALL in a duet round.
    roles: of a duet round, the variant that each cluster plays; seed: of its load. layout: the
    number of the linking that built servers have in it, 0 for the build's own.
    """

    id: str
    kind: Literal["proof", "run"]
    workload: str
    variant: str
    round: int = 0
    position: int = 0
    roles: tuple[str, ...] = ()
    seed: int = 0
    layout: int = 0


class Wait(_Model):
    """One wait event in a run, over the load's sessions.

    of_sessions: share of the time of all sessions; of_waits: share of the time waited, where the
    wait is not one for something to do. histogram: by powers of two, as the module counts.
    """

    event: str
    idle: bool
    waits: int
    total_ms: float
    mean_us: float | None
    of_sessions: float
    of_waits: float
    per_transaction: float
    histogram: tuple[int, ...] = ()


class Part(_Model):
    """What a duet round gave for one of its variants; events: as of a run."""

    metrics: dict[str, float]
    transactions: int
    events: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    evidence: tuple[str, ...] = ()


class Run(_Model):
    """A step that was done, with what it gave and whether it may be used.

    failed: gates it did not pass, in words. events: checkpoints and the like which fell into it;
    they spoil its block unless every run of the block had them. parts: of a duet round, by variant.
    """

    step: Step
    began: str
    seconds: float
    metrics: dict[str, float] = {}
    transactions: int = 0
    failed: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    machine: dict[str, float] = {}
    evidence: tuple[str, ...] = ()
    latency_samples: int = 0
    parts: dict[str, Part] = {}

    @property
    def made(self) -> bool:
        """Whether it could be made at all."""
        return bool(self.metrics or self.parts)

    @property
    def usable(self) -> bool:
        """Whether it passed every gate of its own."""
        return not self.failed


class Facts(_Model):
    """A study directory's first file: what is being run. It never changes once written."""

    schema_: Literal["pgtare.ladder.study/1"] = Field(
        default="pgtare.ladder.study/1", alias="schema"
    )
    created: str
    pgtare_version: str
    seed: int
    quick: bool
    workloads: tuple[str, ...]
    study_file: str
    study_directory: str
    source: str
    command: tuple[str, ...]
    machine: dict[str, Any]
    planned_s: float


class Rate(_Model):
    """How fast a workload went at full speed, and the rate that was made of it."""

    workload: str
    saturation: dict[str, Any]
    rate_tps: float
