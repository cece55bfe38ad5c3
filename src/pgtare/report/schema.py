"""The result of a weighing, schema `pgtare.weigh/1`: what `--json` writes and reports read."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pgtare.report.verdicts import Verdict

SCHEMA: Final = "pgtare.weigh/1"

ArmRole = Literal["base", "control", "instrument", "injected"]
ContentionState = Literal[
    "spillover", "not_shown", "none", "not_separable", "inconclusive", "not_verified"
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null", populate_by_name=True)


class Interval(_Model):
    """An estimate with its 95 % interval (another level where the field says so)."""

    estimate: float | None = Field(description="the estimate, null where there is none")
    lo: float | None = Field(description="lower end of the interval")
    hi: float | None = Field(description="upper end of the interval")


class Effect(_Model):
    """Differences of an arm from the base arm; _us in microseconds, _pct of the base's body."""

    total_us: Interval = Field(description="cost when left on: body + excess, with carry-over")
    total_pct: Interval = Field(description="the total as a share of the base's body")
    body_us: Interval = Field(description="own effect + carry-over of the mean below the threshold")
    body_pct: Interval = Field(description="the body as a share of the base's body")
    excess_us: Interval = Field(description="the same of the mean above the threshold (the tail)")
    own_us: Interval = Field(description="body: effect on the transaction itself")
    carry_over_us: Interval = Field(description="body: effect on the next transaction")
    second_lag_us: Interval = Field(description="body: effect on the one after, a check")
    mean_us: Interval = Field(description="raw difference of means, descriptive")
    p50_us: Interval = Field(description="difference of medians, descriptive")
    p95_us: Interval = Field(description="difference of 95th percentiles, descriptive")
    p99_us: Interval = Field(description="difference of 99th percentiles, descriptive")
    cpu_us: Interval | None = Field(description="CPU time per cycle, null where not taken")
    runs_us: Interval | None = Field(
        default=None, description="body: cost when left on, by runs; null without runs"
    )
    long_carry_over_us: Interval | None = Field(
        default=None, description="runs_us less body_us: what outlasts the next transaction"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, given: Any) -> Any:
        """Earlier results also had a trimmed mean, which was biased with two base slots."""
        if isinstance(given, dict):
            return {name: value for name, value in given.items() if name != "typical_us"}
        return given


class Proof(_Model):
    """Evidence that the instrument really ran in its arm."""

    state: Literal["active", "idle", "missing"] = Field(
        description="active: it ran; idle: on, but this load gave it nothing to do; missing"
    )
    evidence: str = Field(description="what was counted or seen, in words")


class ArmResult(_Model):
    """One arm; the base has no effect, p-values or verdict."""

    name: str = Field(description="name of the arm, as given on the command line")
    role: ArmRole = Field(description="base, control (base again), instrument, or injected delay")
    settings: dict[str, str] = Field(description="settings the arm puts in force")
    inject_ns: int = Field(default=0, description="busy-wait added to each transaction, in ns")
    n: int = Field(description="transactions that entered the estimate")
    excluded: int = Field(description="transactions left out of it (incomplete blocks, flags)")
    mean_us: float | None = Field(description="mean service time of the arm")
    p50_us: float | None = Field(description="median service time of the arm")
    p99_us: float | None = Field(description="99th percentile of the arm's service time")
    run_pairs: int = Field(default=0, description="pairs of runs, of the arm and of the base")
    aborted: int = Field(default=0, description="of the n: transactions that ended in an error")
    open: int = Field(
        default=0, description="transactions still open when the trial or their session ended"
    )
    longest_open_us: float | None = Field(
        default=None, description="how long the longest of them had lasted so far"
    )
    threshold_us: float | None = Field(
        default=None, description="99.9th percentile of arm and base, between body and excess"
    )
    effect: Effect | None = Field(default=None, description="difference from the base, null there")
    outlasts: bool = Field(
        default=False,
        description="whether an effect that outlasts the next transaction is shown, and matters",
    )
    tail_rate_ratio: Interval | None = Field(
        default=None, description="rate of exceeding the threshold, relative to the base's"
    )
    p_value: float | None = Field(default=None, description="two-sided p-value of the body")
    p_total: float | None = Field(
        default=None, description="the same of the total, null where the tail is not judged"
    )
    p_aborted: float | None = Field(
        default=None, description="p-value of 'its transactions fail as often as the base's'"
    )
    p_randomisation: float | None = Field(
        default=None, description="p-value of the sign-flip check of plain block differences"
    )
    p_adjusted: float | None = Field(
        default=None,
        description="p-value of the body after Holm's correction over all bodies and totals",
    )
    p_total_adjusted: float | None = Field(
        default=None, description="the same of the total, null where the tail is not judged"
    )
    equivalence_us: Interval | None = Field(
        default=None, description="90 % interval of the body, for the two one-sided tests"
    )
    at_most_us: float | None = Field(
        default=None, description="one-sided 95 % upper bound of what it costs"
    )
    at_most_pct: float | None = Field(
        default=None, description="the same as a share of the base's body"
    )
    tail_bounded: bool = Field(
        default=False, description="whether at_most is of the total, else of the body"
    )
    settles_pct: float | None = Field(
        default=None,
        description="margin that a trial of this length settles with 80 % power, if no effect",
    )
    verdict: Verdict | None = Field(default=None, description="what may be said of the arm")
    verdict_reason: str = Field(default="", description="why, where the verdict needs a reason")
    seconds_needed: float | None = Field(
        default=None, description="further seconds of measuring that may settle it"
    )
    proof: Proof | None = Field(default=None, description="proof of activity, null if none is due")


class Baseline(_Model):
    """The base arm's service time, in microseconds; null where nothing was measured."""

    n: int = Field(description="transactions of the base arm")
    mean_us: float | None = Field(description="mean, raw")
    body_mean_us: float | None = Field(
        description="mean below the threshold, of min(x, c): every percentage is a share of it"
    )
    p50_us: float | None = Field(description="median")
    p95_us: float | None = Field(description="95th percentile")
    p99_us: float | None = Field(description="99th percentile")
    threshold_us: float | None = Field(
        description="99.9th percentile of base and control, that of body_mean_us"
    )
    cpu_us: float | None = Field(description="CPU time per cycle, null where not taken")


class ByBackend(_Model):
    """Body effect of each instrument within one session (heterogeneity)."""

    backend: int = Field(description="ordinal of the session in the trial, from 0")
    pid: int = Field(description="process id of the session's backend")
    n: int = Field(description="transactions of the session that entered")
    body_us: dict[str, Interval] = Field(description="body effect by the name of the arm")


class SliceInfo(_Model):
    """Spans of time in which all sessions follow one arm, or all draw one for each transaction."""

    kinds: list[int] = Field(
        description="slices of one block: index of the arm, -1 for a mixed one; before permutation"
    )
    min_us: int = Field(description="shortest slice")
    max_us: int = Field(description="longest slice")
    guard_us: int = Field(description="time after each switch in which nothing is measured")
    straddled_pct: float | None = Field(
        description="transactions answered after the end of their slice, of the arm with most"
    )


class RunInfo(_Model):
    """Runs of transactions in which a session keeps one arm, in pairs with the base."""

    turns: list[int] = Field(description="arms of one round of pairs, before permutation")
    every: int = Field(description="blocks of a session from one pair to the next, on average")
    shortest: int = Field(description="transactions of the shortest run")
    longest: int = Field(description="transactions of the longest run")
    transactions: int = Field(default=0, description="transactions in runs, of all arms")


class Contention(_Model):
    """Where the cost of the instrument falls: a saturation design; all figures are of the body."""

    name: str = Field(description="name of the instrument's arm")
    state: ContentionState = Field(description="what may be said of the spillover")
    reason: str = Field(description="why, where the state needs a reason")
    base_us: float | None = Field(description="mean in slices in which all sessions have the base")
    total_us: Interval = Field(description="all sessions with the instrument, less all without it")
    total_pct: Interval = Field(description="the same as a share of base_us")
    own_us: Interval = Field(description="effect on the transaction itself, in mixed slices")
    carry_over_us: Interval = Field(
        description="effect on the next two of the same session, in mixed slices"
    )
    spillover_us: Interval = Field(
        description="effect on base transactions among which half carry the instrument"
    )
    spillover_pct: Interval = Field(description="the same as a share of base_us")
    total_less_own_us: Interval | None = Field(
        default=None,
        description="total_us less own_us; below zero where the instrument's slices hold fewer of "
        "the slow transactions that it makes slower, so that the total understates its cost",
    )
    plain_total_us: Interval = Field(description="total by differences of slice means, a check")
    blocks: int = Field(description="blocks of slices that entered")
    blocks_discarded: int = Field(description="blocks of slices left out: cut short or empty")
    sessions: int = Field(description="sessions with transactions in every kind of slice")
    n_base: int = Field(description="transactions in slices of the base")
    n_instrument: int = Field(description="transactions in slices of the instrument")
    n_mixed: int = Field(description="transactions in mixed slices")


class DesignInfo(_Model):
    """How the trial was laid out and how it went."""

    seed: int = Field(description="seed of the assignment, 64 bits without sign")
    unit: Literal["transaction", "slice", "both"] = Field(
        description="unit of randomisation; both: a saturation design of slices"
    )
    block: list[int] = Field(description="indexes of the arms of one block, before permutation")
    began: str | None = Field(
        default=None, description="when the trial began, by the server's clock, ISO 8601"
    )
    duration_s: float = Field(description="seconds measured")
    planned_s: float = Field(description="seconds asked for")
    margin_pct: float = Field(description="margin of equivalence, in percent of the base's body")
    confidence: float = Field(description="level of the intervals, such as 0.95")
    blocks: int = Field(description="complete blocks that entered the estimate")
    blocks_discarded: int = Field(description="blocks left out as incomplete or flagged")
    sessions: int = Field(description="sessions that took part")
    sessions_outside: int = Field(description="sessions seen that took no part")
    participation: float | None = Field(
        description="chance of each session to be drawn (--participation), from 0 to 1"
    )
    sessions_took_part_pct: float | None = Field(
        default=None, description="sessions that took part, of those of the database meanwhile"
    )
    transactions_took_part_pct: float | None = Field(
        default=None, description="transactions that took part, of those of the database"
    )
    lost: int = Field(description="observations lost because a ring was full")
    mde_us: float | None = Field(description="minimum detectable effect at 80 % power")
    mde_pct: float | None = Field(description="the same as a share of the base's body")
    stopped_by: Literal["time", "precision", "interrupt", "server"] = Field(
        description="what ended the trial"
    )
    partial: bool = Field(description="true where the trial ended before its plan was met")
    slices: SliceInfo | None = Field(
        default=None, description="how slices were laid out, null where there were none"
    )
    runs: RunInfo | None = Field(
        default=None, description="how runs were laid out, null where there were none"
    )


class CarryOver(_Model):
    """The lags in the regression, and what switching between arms cost the load."""

    lags: int = Field(description="number of lags in the headline")
    switch_us: float | None = Field(description="mean time of a switch, outside every figure")
    switch_throughput_pct: float | None = Field(
        description="throughput the load lost to switching, in percent"
    )


class WeighResult(_Model):
    """Everything one weighing found; `arms[0]` is the base."""

    schema_: Literal["pgtare.weigh/1"] = Field(
        default=SCHEMA, alias="schema", description="name and version of this schema"
    )
    created: str = Field(description="when the trial ended, ISO 8601")
    pgtare_version: str = Field(description="version of pgtare that wrote the result")
    command: list[str] = Field(description="the command line")
    load: dict[str, Any] = Field(description="what drove the server")
    design: DesignInfo = Field(description="layout and course of the trial")
    server: dict[str, Any] = Field(description="version and settings of the server")
    machine: dict[str, Any] = Field(description="processor, clock, kernel, memory")
    baseline: Baseline = Field(description="the base arm's service time")
    carry_over: CarryOver = Field(description="lags and the cost of switching")
    arms: list[ArmResult] = Field(description="the base first, then in the order of the design")
    by_backend: list[ByBackend] = Field(description="effects session by session")
    contention: Contention | None = Field(
        default=None, description="where the cost falls, of a saturation design; else null"
    )
    warnings: list[str] = Field(description="what a reader must know, in plain sentences")

    def to_json(self) -> str:
        """The JSON document, keys as in the schema."""
        return self.model_dump_json(indent=2, by_alias=True)
