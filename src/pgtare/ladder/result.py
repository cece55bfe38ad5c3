"""The result document of a ladder study, schema `pgtare.ladder/1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pgtare.ladder.records import Wait
from pgtare.report.verdicts import Verdict

SCHEMA: Literal["pgtare.ladder/1"] = "pgtare.ladder/1"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="null")


class Effect(_Model):
    """A difference in percent of the base, with its 95 % interval; an open end is None."""

    pct: float | None
    lo_pct: float | None
    hi_pct: float | None

    @property
    def covers_zero(self) -> bool:
        """Whether 0 lies in the interval; an open end reaches as far as it must."""
        low = self.lo_pct is None or self.lo_pct <= 0
        return low and (self.hi_pct is None or self.hi_pct >= 0)


class OverLayouts(_Model):
    """How far apart linkings of the builds compared came out; standard deviations in percent.

    sd_layout: beyond what rounds explain, with its 95 % interval. p: of "all linkings are alike".
    """

    layouts: int
    sd_layout_pct: float | None
    sd_layout_lo_pct: float | None
    sd_layout_hi_pct: float | None
    sd_round_pct: float | None
    p: float | None


class Beside(_Model):
    """Another metric of a comparison: described, not tested in the family."""

    metric: str
    unit: str
    effect: Effect
    absolute: float | None
    p: float | None


class Compared(_Model):
    """One comparison on one workload."""

    workload: str
    arm: str
    base: str
    metric: str
    unit: str
    rounds: int
    effect: Effect
    absolute: float | None
    p: float | None
    p_holm: float | None
    p_equivalence: float | None
    mde_pct: float | None
    hodges_lehmann_pct: float | None
    positive: int
    attainable_p: float
    rounds_to_settle: int | None
    verdict: Verdict
    derivation: str
    over_layouts: OverLayouts | None = None
    round_pct: tuple[float, ...] = ()
    beside: tuple[Beside, ...] = ()


class Rung(_Model):
    """A variant on a workload: geometric means over the rounds kept."""

    variant: str
    metrics: dict[str, float]
    cv_pct: float | None
    evidence: str = ""


class Dropped(_Model):
    """A round that does not count, and why."""

    round: int
    reasons: tuple[str, ...]


class OnWorkload(_Model):
    """Everything of one workload. why_not: why its figures do not count, empty where they do.

    rounds: of a duet its sets of rounds, which count as one each. spent_s: on all its runs.
    """

    name: str
    title: str
    protocol: Literal["rounds", "duet"]
    spent_s: float
    metric: str
    unit: str
    clients: int
    rate_tps: float | None
    proven: bool
    profile: tuple[str, ...]
    waits: tuple[Wait, ...]
    idle: float | None
    rounds_planned: int
    rounds_kept: int
    dropped: tuple[Dropped, ...]
    caveats: tuple[str, ...]
    why_not: str
    stopped_on_width: bool
    rungs: tuple[Rung, ...]
    floor: Compared | None
    compared: tuple[Compared, ...]
    by_round: tuple[dict[str, float], ...] = ()
    waits_by_variant: dict[str, tuple[Wait, ...]] = {}


class Together(_Model):
    """Several arms that share a base, taken together over the workloads."""

    arms: tuple[str, ...]
    base: str
    workloads: tuple[str, ...]
    mean_pct: float
    p: float


class LadderResult(_Model):
    """What a study found. state: unfinished studies have no figures, so that none can be peeked."""

    schema_: Literal["pgtare.ladder/1"] = Field(default=SCHEMA, alias="schema")
    title: str
    about: str
    created: str
    pgtare_version: str
    state: Literal["finished", "closed", "unfinished"]
    quick: bool
    seed: int
    command: tuple[str, ...]
    directory: str
    machine: dict[str, Any]
    protocol: dict[str, Any]
    alpha: float
    margin_pct: float
    floor: str
    family: int
    planned_s: float
    spent_s: float
    runs_done: int
    runs_planned: int
    warnings: tuple[str, ...]
    variants: tuple[dict[str, Any], ...]
    workloads: tuple[OnWorkload, ...]
    together: tuple[Together, ...]

    def to_json(self) -> str:
        """The document."""
        return self.model_dump_json(by_alias=True, indent=2)
