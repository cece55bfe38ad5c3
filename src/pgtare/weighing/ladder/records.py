"""What is kept of a study: its plan's steps, the runs made so far, and the facts about them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pgtare.kit.document import schema_name


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Step(_Model):
    """One thing to do: prove a profile, or run one variant.

    variant: with the floor's ending if it is the floor's second run.
    """

    id: str
    kind: Literal["proof", "run"]
    workload: str
    variant: str
    round: int = 0
    position: int = 0


class Wait(_Model):
    """One wait event in a run, over the load's sessions."""

    event: str = Field(description="class and name, as in `IO/DataFileRead`")
    idle: bool = Field(description="whether it is a wait for something to do")
    waits: int = Field(description="how many ended")
    total_ms: float = Field(description="time waited, in ms, also in waits that have not ended")
    mean_ms: float | None = Field(description="mean length of those that ended, from their begin")
    of_sessions: float = Field(description="share of the time of all sessions")
    of_waits: float = Field(description="share of the time waited; 0 if it is idle")
    per_transaction: float = Field(description="waits a transaction")


class Run(_Model):
    """A step that was done, with what it gave and whether it may be used.

    figures: what was counted apart from the metrics. failed: gates it did not pass, in words.
    events: checkpoints and the like which fell into it; they spoil its block unless every run of
    the block had them. remarks: what only some variants can show, as those that count waits;
    reported, but no reason to drop a run, since a gate that meets one side of a comparison only
    would choose among its rounds.
    """

    step: Step
    started: str = ""
    duration_s: float = 0.0
    metrics: dict[str, float] = {}
    figures: dict[str, float] = {}
    transactions: int = 0
    failed: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    machine: dict[str, float] = {}
    evidence: tuple[str, ...] = ()
    latency_samples: int = 0

    @property
    def made(self) -> bool:
        """Whether it could be made at all."""
        return bool(self.metrics)

    @property
    def usable(self) -> bool:
        """Whether it passed every gate of its own."""
        return not self.failed


class Dropped(_Model):
    """A block that does not count, and why."""

    round: int = Field(description="its number, from 1")
    reasons: tuple[str, ...] = Field(description="the gates that it did not pass, in words")
    variants: tuple[str, ...] = Field(
        description="the variants that did not pass; empty if it was the machine under all of them",
        default=(),
    )


class StudyFacts(_Model):
    """A study directory's first file: what is being run. It never changes once written.

    servers: by name, the version of each as its pg_config says it.
    left_out: variants that this machine cannot have, with the reason.
    """

    schema_: Literal["pgtare.ladder.study/1"] = schema_name("pgtare.ladder.study/1")
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
    servers: dict[str, str] = {}
    planned_s: float
    left_out: dict[str, str] = {}


class Rate(_Model):
    """How fast a workload went at full speed, and the rate that was made of it."""

    workload: str
    saturation: dict[str, Any]
    rate_tps: float
