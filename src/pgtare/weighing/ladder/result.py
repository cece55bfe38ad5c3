"""The result document of a ladder study, schema `pgtare.ladder/1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name
from pgtare.weighing.ladder.records import Dropped, Wait
from pgtare.weighing.verdict_names import Verdict

SCHEMA: Literal["pgtare.ladder/1"] = "pgtare.ladder/1"


def _field(description: str, **more: Any) -> Any:
    """A field that says what it is; docs/json.md shows it."""
    return Field(description=description, **more)


class Effect(Model):
    """A difference from the base with its 1 − α interval, of 95 % unless the study says else."""

    pct: float | None = _field("arm against base in percent of the base, from the mean log-ratio")
    lo_pct: float | None = _field("lower end; `null` if so few rounds give none")
    hi_pct: float | None = _field("upper end; `null` if so few rounds give none")

    @property
    def half_width_pct(self) -> float | None:
        """Half the width of the interval; None if it lacks an end."""
        if self.lo_pct is None or self.hi_pct is None or self.lo_pct <= -100:
            return None
        return (self.hi_pct - self.lo_pct) / 2

    @property
    def covers_zero(self) -> bool:
        """Whether 0 lies in the interval; an open end reaches as far as it must."""
        low = self.lo_pct is None or self.lo_pct <= 0
        return low and (self.hi_pct is None or self.hi_pct >= 0)


class OtherMetric(Model):
    """Another metric of a comparison: described, not tested in the family."""

    metric: str = _field("the metric")
    unit: str = _field("its unit")
    effect: Effect = _field("the difference, see below")
    absolute: float | None = _field("the difference in the metric's unit")
    p: float | None = _field("unadjusted p-value of the sign flips")


class Compared(Model):
    """One comparison on one workload."""

    workload: str = _field("`name` of the workload")
    arm: str = _field("the variant that is compared")
    base: str = _field("the variant it is compared with")
    metric: str = _field("what is tested: `tps`, `cpu_us` or `latency_*_us`")
    unit: str = _field("the metric's unit")
    rounds: int = _field("rounds that entered")
    effect: Effect = _field("the difference, see below")
    se_pct: float | None = _field("standard error of the mean log-ratio")
    absolute: float | None = _field("the difference in the metric's unit")
    p: float | None = _field("unadjusted p-value of the sign flips")
    p_adjusted: float | None = _field("p-value adjusted over the family; `null` in the floor")
    p_equivalence: float | None = _field("the larger p-value of the two one-sided tests")
    within: Effect | None = _field(
        "the difference with the 1 − 2α interval that the two one-sided tests are about; `null` in "
        "a study ended by hand",
        default=None,
    )
    rounds_to_settle: int | None = _field(
        "rounds, more than there are, that would settle it with 80 % power if the estimate is "
        "exact and later rounds vary as much; `null` if there is no such number"
    )
    verdict: Verdict = _field("`cost`, `gain`, `equivalent`, `inconclusive` or `not_verified`")
    round_pct: tuple[float, ...] = _field("each round's difference, in their order", default=())
    other_metrics: tuple[OtherMetric, ...] = _field("other metrics, see below", default=())


class Rung(Model):
    """A variant on a workload: geometric means over the rounds kept, of figures plain ones."""

    variant: str = _field("its name, with ` again` in the floor's second run")
    metrics: dict[str, float] = _field("geometric mean of each metric over the rounds kept")
    figures: dict[str, float] = _field(
        "mean of what was counted apart from the metrics, see `figure_units`", default={}
    )
    cv_pct: float | None = _field("coefficient of variation of the tested metric over the rounds")
    evidence: str = _field("what showed that it was what it says, in the last round", default="")


class OnWorkload(Model):
    """Everything of one workload."""

    name: str = _field("its name")
    title: str = _field("its title")
    spent_s: float = _field("time that all its runs took, the proof apart")
    metric: str = _field("what is tested")
    unit: str = _field("the metric's unit")
    clients: int = _field("clients of the load")
    rate_tps: float | None = _field(
        "transactions a second that each server gets in an open loop; `null` in a closed one"
    )
    proven: bool = _field("whether its waits were as stated")
    profile: tuple[str, ...] = _field("what its waits had to be and what was found, in words")
    waits: tuple[Wait, ...] = _field("its waits in the run that proves them, longest first")
    idle: float | None = _field("share of the processors' time that was idle in that run")
    rounds_planned: int = _field("rounds that were planned")
    rounds_kept: int = _field("rounds that count")
    dropped: tuple[Dropped, ...] = _field("rounds that do not, see below")
    caveats: tuple[str, ...] = _field("what fell into all runs of a round alike, in words")
    why_not: str = _field("why its figures do not count; empty if they do")
    figure_units: dict[str, str] = _field(
        "what is counted apart from the metrics: its name and unit", default={}
    )
    rungs: tuple[Rung, ...] = _field("its variants, see below")
    floor: Compared | None = _field("the floor's variant against itself, as a comparison")
    compared: tuple[Compared, ...] = _field("its comparisons, see below")
    by_round: tuple[dict[str, float], ...] = _field(
        "the tested metric of each variant, round by round", default=()
    )
    waits_by_variant: dict[str, tuple[Wait, ...]] = _field(
        "waits of each variant that counts them, in its last run", default={}
    )

    @property
    def with_floor(self) -> tuple[Compared, ...]:
        """Its comparisons, the floor last."""
        return (*self.compared, *([self.floor] if self.floor else []))


class LadderResult(Document):
    """What a study found. Unfinished studies have no figures, so that none can be peeked."""

    schema_: Literal["pgtare.ladder/1"] = schema_name(SCHEMA)
    title: str = _field("the study's title")
    about: str = _field("what the study file says of it")
    created: str = _field("when the analysis was made, ISO 8601")
    pgtare_version: str = _field("version of pgtare that wrote it")
    state: Literal["finished", "closed", "unfinished"] = _field(
        "`finished`; `closed`: ended by hand; `unfinished`: without any figure"
    )
    quick: bool = _field("whether it is a quick one")
    seed: int = _field("the seed of every order")
    command: tuple[str, ...] = _field("the command line, one word an element")
    directory: str = _field("where the study is kept")
    machine: dict[str, Any] = _field("processor, kernel, memory")
    servers: dict[str, str] = _field("version of each server, by name", default={})
    protocol: dict[str, Any] = _field("the study file's `protocol`, as it was used")
    alpha: float = _field("level of the tests over the family")
    margin_pct: float = _field("margin of equivalence")
    floor: str = _field("the variant that is run twice a round")
    family: int = _field("how many comparisons Holm's correction is over")
    planned_s: float = _field("how long it was planned to take")
    spent_s: float = _field("how long all runs took")
    runs_done: int = _field("runs that are kept")
    runs_planned: int = _field("those and the ones that are left")
    warnings: tuple[str, ...] = _field("what a reader must know, in plain sentences")
    variants: tuple[dict[str, Any], ...] = _field("the study file's variants")
    workloads: tuple[OnWorkload, ...] = _field("one for each workload, see below")
