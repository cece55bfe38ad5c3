"""The result document of a ladder study, schema `pgtare.ladder/1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pgtare.weighing.ladder.protocol import Words
from pgtare.weighing.ladder.protocol_registry import PROTOCOLS
from pgtare.weighing.ladder.records import Dropped, Wait
from pgtare.weighing.verdicts import Verdict

SCHEMA: Literal["pgtare.ladder/1"] = "pgtare.ladder/1"


def _told(description: str, **more: Any) -> Any:
    """A field that says what it is; docs/ladder-json.md prints it."""
    return Field(description=description, **more)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="null")


class Effect(_Model):
    """A difference from the base with its 1 − α interval, of 95 % unless the study says else."""

    pct: float | None = _told("arm against base in percent of the base, from the mean log-ratio")
    lo_pct: float | None = _told("lower end; `null` if so few blocks give none")
    hi_pct: float | None = _told("upper end; `null` if so few blocks give none")

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


class OverLayouts(_Model):
    """How far apart linkings of the builds compared came out."""

    layouts: int = _told("linkings of each build")
    sd_layout_pct: float | None = _told("standard deviation of linkings beyond that of rounds")
    sd_layout_lo_pct: float | None = _told("lower end of its 1 − α interval")
    sd_layout_hi_pct: float | None = _told("upper end of its 1 − α interval")
    sd_round_pct: float | None = _told("standard deviation of rounds of one linking")
    p: float | None = _told("p-value of all linkings being alike")


class OtherMetric(_Model):
    """Another metric of a comparison: described, not tested in the family."""

    metric: str = _told("the metric")
    unit: str = _told("its unit")
    effect: Effect = _told("the difference, see below")
    absolute: float | None = _told("the difference in the metric's unit")
    p: float | None = _told("unadjusted p-value of the sign flips")


class Compared(_Model):
    """One comparison on one workload by one protocol."""

    workload: str = _told("`name` of the workload")
    arm: str = _told("the variant that is compared")
    base: str = _told("the variant it is compared with")
    metric: str = _told("what is tested: `tps`, `cpu_us`, `latency_*_us` or `service_*_us`")
    unit: str = _told("the metric's unit")
    rounds: int = _told("blocks that entered: rounds, sets of a duet, trials")
    effect: Effect = _told("the difference, see below")
    se_pct: float | None = _told("standard error of the mean log-ratio")
    absolute: float | None = _told("the difference in the metric's unit")
    p: float | None = _told("unadjusted p-value of the sign flips")
    p_adjusted: float | None = _told("p-value adjusted over the family; `null` in the floor")
    p_equivalence: float | None = _told("the larger p-value of the two one-sided tests")
    within: Effect | None = _told(
        "the difference with the 1 − 2α interval that the two one-sided tests are about; `null` in "
        "a study ended by hand",
        default=None,
    )
    mde_pct: float | None = _told(
        "smallest effect that these tests would find with 80 % power, at Holm's first step; "
        "`null` if so few blocks can find none"
    )
    hodges_lehmann_pct: float | None = _told("Hodges-Lehmann estimate, descriptive")
    positive: int = _told("blocks in which the arm's value is the larger")
    attainable_p: float = _told("the smallest p-value that its blocks can give")
    rounds_to_settle: int | None = _told(
        "blocks, more than there are, that would settle it with 80 % power if the estimate is "
        "exact and later blocks vary as much; `null` if there is no such number"
    )
    verdict: Verdict = _told("`cost`, `gain`, `equivalent`, `inconclusive` or `not_verified`")
    derivation: str = _told("where the p-value comes from, in words")
    over_layouts: OverLayouts | None = _told(
        "of builds compared over linkings, see below; else `null`", default=None
    )
    round_pct: tuple[float, ...] = _told("each block's difference, in their order", default=())
    other_metrics: tuple[OtherMetric, ...] = _told("other metrics, see below", default=())


class Rung(_Model):
    """A variant on a workload: geometric means over the blocks kept, of figures plain ones."""

    variant: str = _told("its name, with ` again` in the floor's second run")
    metrics: dict[str, float] = _told("geometric mean of each metric over the blocks kept")
    figures: dict[str, float] = _told(
        "mean of what was counted apart from the metrics, see `figure_units`", default={}
    )
    cv_pct: float | None = _told("coefficient of variation of the tested metric over the blocks")
    evidence: str = _told("what showed that it was what it says, in the last block", default="")


class OnWorkload(_Model):
    """Everything of one workload by one protocol."""

    name: str = _told("its name, with `@` and the protocol if it is played by several")
    stated: str = _told("its name in the study file")
    title: str = _told("its title")
    protocol: str = _told("`rounds`, `duet` or `units`")
    spent_s: float = _told("time that all its runs took, the proof apart")
    metric: str = _told("what is tested")
    unit: str = _told("the metric's unit")
    clients: int = _told("clients of the load")
    rate_tps: float | None = _told("transactions a second of an open loop; `null` in a closed one")
    proven: bool = _told("whether its waits were as stated")
    profile: tuple[str, ...] = _told("what its waits had to be and what was found, in words")
    waits: tuple[Wait, ...] = _told("its waits in the run that proves them, longest first")
    idle: float | None = _told("share of the processors' time that was idle in that run")
    rounds_planned: int = _told("blocks that were planned: rounds, sets of a duet, trials")
    rounds_kept: int = _told("blocks that count")
    dropped: tuple[Dropped, ...] = _told("blocks that do not, see below")
    caveats: tuple[str, ...] = _told("what fell into all runs of a block alike, in words")
    why_not: str = _told("why its figures do not count; empty if they do")
    stopped_on_width: bool = _told("whether it was ended as every interval was narrow enough")
    figure_units: dict[str, str] = _told(
        "what is counted apart from the metrics: its name and unit", default={}
    )
    rungs: tuple[Rung, ...] = _told("its variants, see below")
    floor: Compared | None = _told("the floor's variant against itself, as a comparison")
    compared: tuple[Compared, ...] = _told("its comparisons, see below")
    by_round: tuple[dict[str, float], ...] = _told(
        "the tested metric of each variant, block by block", default=()
    )
    waits_by_variant: dict[str, tuple[Wait, ...]] = _told(
        "waits of each variant that counts them, in its last run", default={}
    )

    @property
    def words(self) -> Words:
        """How to speak of its protocol."""
        return PROTOCOLS[self.protocol].words

    @property
    def called(self) -> str:
        """Its name for readers: W1, or W1 by duet."""
        several = self.name != self.stated
        return f"{self.stated} by {self.words.name}" if several else self.name


class Way(_Model):
    """What one protocol made of a comparison, and in what time."""

    protocol: str = _told("`rounds`, `duet` or `units`")
    metric: str = _told("what it tests")
    blocks: int = _told("blocks that entered")
    spent_s: float = _told("time that its runs of all variants took, the proof apart")
    effect: Effect = _told("the difference, see above")
    half_width_pct: float | None = _told(
        "half the width of the 1 − α interval; `null` if it lacks an end"
    )
    se_pct: float | None = _told("standard error of the mean log-ratio")
    se_1min_pct: float | None = _told("what that would be after a minute of the protocol")


class SideBySide(_Model):
    """The same comparison by several protocols."""

    workload: str = _told("the workload's name in the study file")
    title: str = _told("its title")
    arm: str = _told("the variant that is compared")
    base: str = _told("the variant it is compared with")
    ways: tuple[Way, ...] = _told("a protocol each, see below")


class Together(_Model):
    """Several arms that share a base, taken together over the workloads."""

    arms: tuple[str, ...] = _told("the arms")
    base: str = _told("their base")
    workloads: tuple[str, ...] = _told("`name` of the workloads, all of one metric")
    mean_pct: float = _told("mean difference in percent")
    p: float = _told(
        "p-value, by dealing the variants of each block anew; outside the family of Holm's "
        "correction"
    )


class LadderResult(_Model):
    """What a study found. Unfinished studies have no figures, so that none can be peeked."""

    schema_: Literal["pgtare.ladder/1"] = _told(
        "name and version: `pgtare.ladder/1`", default=SCHEMA, alias="schema"
    )
    title: str = _told("the study's title")
    about: str = _told("what the study file says of it")
    created: str = _told("when the analysis was made, ISO 8601")
    pgtare_version: str = _told("version of pgtare that wrote it")
    state: Literal["finished", "closed", "unfinished"] = _told(
        "`finished`; `closed`: ended by hand; `unfinished`: without any figure"
    )
    quick: bool = _told("whether it is a quick one")
    seed: int = _told("the seed of every order")
    command: tuple[str, ...] = _told("the command line, one word an element")
    directory: str = _told("where the study is kept")
    machine: dict[str, Any] = _told("processor, kernel, memory")
    servers: dict[str, str] = _told("version of each server, by name", default={})
    protocol: dict[str, Any] = _told("the study file's `protocol`, as it was used")
    alpha: float = _told("level of the tests over the family")
    margin_pct: float = _told("margin of equivalence")
    floor: str = _told("the variant that is run twice a block")
    family: int = _told("how many comparisons Holm's correction is over")
    planned_s: float = _told("how long it was planned to take")
    spent_s: float = _told("how long all runs took")
    runs_done: int = _told("runs that are kept")
    runs_planned: int = _told("those and the ones that are left")
    warnings: tuple[str, ...] = _told("what a reader must know, in plain sentences")
    variants: tuple[dict[str, Any], ...] = _told("the study file's variants")
    workloads: tuple[OnWorkload, ...] = _told("one for each workload and protocol, see below")
    together: tuple[Together, ...] = _told("arms that share a base, see below")
    side_by_side: tuple[SideBySide, ...] = _told(
        "comparisons that several protocols made, see below", default=()
    )

    def to_json(self) -> str:
        """The document."""
        return self.model_dump_json(by_alias=True, indent=2)
