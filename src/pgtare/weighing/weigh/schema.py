"""The result of a weighing, schema `pgtare.weigh/1`: what `--json` writes and reports read."""

from __future__ import annotations

import math
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field

from pgtare.estimate.inference import Estimate
from pgtare.kit.document import Document, Model, schema_name
from pgtare.kit.interval import Interval
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.verdict_names import Verdict

SCHEMA: Final = "pgtare.weigh/1"

_Document = TypeVar("_Document", bound=BaseModel)

ArmRole = Literal["base", "control", "instrument", "injected"]
ContentionState = Literal[
    "spillover", "not_shown", "none", "not_separable", "inconclusive", "not_verified"
]


def number(x: float | None) -> float | None:
    """A figure of an estimate as documents have it: NaN and infinity become null."""
    return None if x is None or not math.isfinite(x) else float(x)


def interval(e: Estimate) -> Interval:
    """An estimate as documents have it."""
    return Interval(estimate=number(e.estimate), lo=number(e.lo), hi=number(e.hi))


def filled(model: type[_Document], source: Any, **more: Any) -> _Document:
    """The document's model with the fields of an estimate that have the same names.

    So a field is described once, in the schema. NaN becomes null, an estimate with its standard
    error an interval; `more` has the fields that come from elsewhere.
    """
    values = {
        name: _written(getattr(source, name)) for name in model.model_fields if name not in more
    }
    return model(**values, **more)


def _written(value: Any) -> Any:
    """A value of an estimate as the document has it."""
    if isinstance(value, Estimate):
        return interval(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    return value


class Effect(Model):
    """Differences of an arm from the base arm; _us in microseconds, _pct of the base's body."""

    total_us: Interval = Field(
        description="cost when left on: body and excess, carry-over included"
    )
    total_pct: Interval = Field(description="the same as a percentage")
    body_us: Interval = Field(description="the headline: own effect and carry-over of the body")
    body_pct: Interval = Field(description="the same as a percentage")
    excess_us: Interval = Field(description="own effect and carry-over of the excess, the tail")
    own_us: Interval = Field(description="body: effect on the transaction itself")
    carry_over_us: Interval = Field(description="body: effect on the next transaction")
    second_lag_us: Interval = Field(description="body: effect on the one after that, a check")
    mean_us: Interval = Field(description="raw difference of means, descriptive")
    p50_us: Interval = Field(description="difference of medians, descriptive")
    p99_us: Interval = Field(description="difference of 99th percentiles, descriptive")
    cpu_us: Interval | None = Field(
        description="difference of CPU time of a cycle; `null` if not taken"
    )
    runs_us: Interval | None = Field(
        default=None,
        description="body: the cost when left on, by runs, so with effects that last longer; "
        "`null` without runs",
    )
    long_carry_over_us: Interval | None = Field(
        default=None,
        description="`runs_us` less `body_us`: the part that outlasts the next transaction",
    )


class ArmResult(Model):
    """One arm; the base has no effect, p-values or verdict."""

    name: str = Field(description="name of the arm")
    role: ArmRole = Field(
        description="`base`, `control` (the base again), `instrument`, or `injected` (a delay "
        "of known size)",
    )
    settings: dict[str, str] = Field(
        description="settings that the arm puts in force, name to value"
    )
    inject_ns: int = Field(default=0, description="busy-wait added to each transaction")
    n: int = Field(description="transactions that entered the estimate")
    excluded: int = Field(
        description="transactions left out: incomplete blocks, flags; transactions in runs "
        "count neither here nor in `n`",
    )
    mean_us: float | None = Field(description="mean service time of this arm")
    p50_us: float | None = Field(description="median of this arm")
    p99_us: float | None = Field(description="99th percentile of this arm")
    run_pairs: int = Field(
        default=0, description="pairs of runs that entered: one run of the arm and one of the base"
    )
    aborted: int = Field(default=0, description="of the `n`: transactions that ended in an error")
    open: int = Field(
        default=0,
        description="transactions that were not answered when the trial or their session ended",
    )
    longest_open_us: float | None = Field(
        default=None,
        description="how long the longest of them had lasted so far; `null` without any",
    )
    threshold_us: float | None = Field(
        default=None,
        description="99.9th percentile of the arm and the base together, which divides body "
        "from excess; other arms have no part in it",
    )
    effect: Effect | None = Field(
        default=None, description="the difference from the base, see below; `null` for the base"
    )
    outlasts: bool = Field(
        default=False,
        description="whether an effect that lasts longer than the next transaction is shown, "
        "and matters",
    )
    tail_rate_ratio: Interval | None = Field(
        default=None,
        description="interval: how often the threshold is exceeded, relative to the base",
    )
    p: float | None = Field(default=None, description="two-sided p-value of the body")
    p_total: float | None = Field(
        default=None,
        description="the same of the total; `null` if too few transactions are slow to judge it",
    )
    p_aborted: float | None = Field(
        default=None,
        description='p-value of "its transactions fail as often as the base\'s", by counts '
        "within blocks",
    )
    p_randomisation: float | None = Field(
        default=None, description="p-value of the sign-flip check of plain block differences"
    )
    p_adjusted: float | None = Field(
        default=None,
        description="p-value of the body after Holm's correction over the bodies and totals of all "
        "instruments; of the control, over its own two",
    )
    p_total_adjusted: float | None = Field(
        default=None, description="the same of the total; `null` if it is not judged"
    )
    equivalence_us: Interval | None = Field(
        default=None,
        description="90 % interval of the body; the two one-sided tests compare it to the "
        "margin, and allow for the margin's own error",
    )
    at_most_us: float | None = Field(
        default=None,
        description="what leaving it on costs at most: one-sided 95 % bound; by runs if `outlasts`",
    )
    at_most_pct: float | None = Field(default=None, description="the same as a percentage")
    tail_bounded: bool = Field(
        default=False,
        description="whether that bound is of the total; else it is of the body, as too few "
        "transactions are slow",
    )
    settles_pct: float | None = Field(
        default=None,
        description="the margin of equivalence that a trial of this length settles with 80 % "
        "power, if there is no effect",
    )
    verdict: Verdict | None = Field(
        default=None,
        description="`cost`, `gain`, `equivalent`, `inconclusive`, `not_verified`; `null` for "
        "the base",
    )
    verdict_reason: str = Field(default="", description="why, if the verdict needs a reason")
    needed_s: float | None = Field(
        default=None, description="further seconds of measuring that may settle it"
    )
    proof: Proof | None = Field(
        default=None, description="proof of activity, see below; `null` if none is due"
    )


class Baseline(Model):
    """The base arm's service time, in microseconds; null if nothing was measured."""

    n: int = Field(description="transactions of the base arm")
    mean_us: float | None = Field(description="mean service time, raw")
    body_mean_us: float | None = Field(
        description="mean of min(x, c), c being `threshold_us`; every percentage refers to it"
    )
    p50_us: float | None = Field(description="median")
    p99_us: float | None = Field(description="99th percentile")
    threshold_us: float | None = Field(
        description="99.9th percentile of the base and its control, that of `body_mean_us`"
    )
    cpu_us: float | None = Field(
        description="CPU time of a cycle, idle to idle; `null` if not taken"
    )


class ByBackend(Model):
    """Body effect of each instrument within one session (heterogeneity)."""

    backend: int = Field(description="ordinal of the session in the trial, from 0")
    pid: int = Field(description="process id of its backend")
    n: int = Field(description="transactions of the session that entered")
    body_us: dict[str, Interval] = Field(
        description="name of the arm to an interval: the body within this session"
    )


class SliceInfo(Model):
    """Spans of time in which all sessions follow one arm, or all draw one for each transaction."""

    kinds: list[int] = Field(
        description="slices of one block before it is permuted: index of the arm that all sessions "
        "follow, −1 for a mixed slice, in which each transaction draws its arm"
    )
    min_us: int = Field(description="shortest slice; lengths are uniform between the two")
    max_us: int = Field(description="longest slice")
    guard_us: int = Field(description="time after each switch in which nothing is measured")
    straddled_pct: float | None = Field(
        description="share of transactions answered after the end of their slice, of the arm "
        "with most",
    )


class RunInfo(Model):
    """Runs of transactions in which a session keeps one arm, in pairs with the base."""

    turns: list[int] = Field(
        description="arms of one round of pairs before it is permuted, as indexes into `arms`; "
        "each pair is a run of that arm and one of the base",
    )
    every: int = Field(description="blocks of a session from one pair to the next, on average")
    shortest: int = Field(
        description="transactions of the shortest run; lengths are uniform between the two"
    )
    longest: int = Field(description="transactions of the longest run")
    transactions: int = Field(default=0, description="transactions in runs, of all arms")


class Contention(Model):
    """Where the cost of the instrument falls: a saturation design; all figures are of the body."""

    name: str = Field(description="name of the instrument's arm")
    state: ContentionState = Field(
        description="`spillover`: its interval misses zero; `not_shown`: its interval covers zero; "
        "`none`: the same with a single session, which cannot have any; `not_separable`: a "
        "single session shows some all the same; `inconclusive`; `not_verified`"
    )
    reason: str = Field(description="why, if the state needs a reason")
    base_us: float | None = Field(
        description="mean in slices in which all sessions follow the base"
    )
    total_us: Interval = Field(
        description="interval: slices in which all follow the instrument, less those of the base"
    )
    total_pct: Interval = Field(description="the same as a share of `base_us`")
    own_us: Interval = Field(
        description="interval: effect on the transaction itself, in mixed slices"
    )
    carry_over_us: Interval = Field(
        description="interval: effect on the next two of the same session, in mixed slices"
    )
    spillover_us: Interval = Field(
        description="interval: base transactions in mixed slices, where half carry the "
        "instrument, less those in slices of the base; carry-over removed",
    )
    spillover_pct: Interval = Field(description="the same as a share of `base_us`")
    total_less_own_us: Interval | None = Field(
        default=None,
        description="interval: `total_us` less `own_us`; below zero if the instrument's slices "
        "hold fewer of the slow transactions that it makes slower, so that the "
        "total understates its cost",
    )
    blocks: int = Field(description="blocks of slices that entered")
    blocks_discarded: int = Field(
        description="blocks of slices that were cut short, or without a usable transaction"
    )
    sessions: int = Field(description="sessions with transactions in every kind of slice")
    n_base: int = Field(description="transactions in slices of the base")
    n_instrument: int = Field(description="transactions in slices of the instrument")
    n_mixed: int = Field(description="transactions in mixed slices")


class DesignInfo(Model):
    """How the trial was laid out and how it went."""

    seed: int = Field(
        description="seed of the assignment, 64 bits without sign: more than a JavaScript "
        "number holds exactly",
    )
    unit: Literal["transaction", "slice", "both"] = Field(
        description="unit of randomisation: `transaction`, `slice`, or `both` (a saturation "
        "design of slices)",
    )
    block: list[int] = Field(
        description="indexes into `arms`: the arms of one block before it is permuted"
    )
    started: str | None = Field(
        default=None, description="when the trial began, by the server's clock, ISO 8601"
    )
    duration_s: float = Field(description="seconds measured")
    planned_s: float = Field(description="seconds requested")
    margin_pct: float = Field(
        description="margin of equivalence, in percent of the base arm's body"
    )
    confidence: float = Field(description="level of the intervals, such as 0.95")
    blocks: int = Field(
        description="complete blocks that entered the estimate; if the unit is the slice, "
        "blocks of slices",
    )
    blocks_discarded: int = Field(description="blocks left out as incomplete or flagged")
    sessions: int = Field(description="sessions that took part")
    sessions_outside: int = Field(description="sessions seen that took no part")
    participation: float | None = Field(
        description="chance of each session to be drawn, as `--participation` sets it, from "
        "0 to 1; not what took part",
    )
    sessions_took_part_pct: float | None = Field(
        default=None,
        description="measured: sessions that took part, in percent of the database's sessions "
        "during the trial; `null` if the server went away",
    )
    transactions_took_part_pct: float | None = Field(
        default=None,
        description="measured: transactions that took part, in percent of those that the "
        "database counted during the trial, without pgtare's own; `null` if it "
        "counted fewer, as PostgreSQL reports no transactions of sessions that "
        "touch no table",
    )
    lost: int = Field(description="observations lost because a ring was full")
    mde_us: float | None = Field(
        description="minimum detectable effect, the smallest that is found with 80 % power"
    )
    mde_pct: float | None = Field(description="the same as a percentage")
    stopped_by: Literal["time", "precision", "interrupt", "server"] = Field(
        description="what ended the trial: `time`, `precision`, `interrupt` or `server`"
    )
    partial: bool = Field(description="true if the trial ended before its plan was met")
    slices: SliceInfo | None = Field(
        default=None,
        description="how slices were laid out, see below; `null` if there were none",
    )
    runs: RunInfo | None = Field(
        default=None, description="how runs were laid out, see below; `null` if there were none"
    )


class CarryOver(Model):
    """The lags in the regression, and what switching between arms cost the load."""

    lags: int = Field(
        description="number of earlier transactions whose arm the headline takes into account"
    )
    switch_us: float | None = Field(
        description="mean time of a switch from arm to arm; it is outside every figure"
    )
    switch_throughput_pct: float | None = Field(
        description="throughput that the load lost to switching"
    )


class Growth(Model):
    """What an arm spends more time in than the base; times in µs a transaction."""

    name: str = Field(description="the function or wait")
    base_us: float = Field(description="its time in the base")
    arm_us: float = Field(description="its time in the arm")
    growth_us: float = Field(description="the difference")
    lo_us: float = Field(description="lower end of its 95 % interval")
    hi_us: float = Field(description="upper end of that interval")
    p: float = Field(description="p-value, Holm's over the functions of the arm")
    new: bool = Field(description="whether the base has less than half of it")
    around: str = Field(
        "", description="function of the base that it was put around, whose time is counted with it"
    )


class Reasons(Model):
    """Why an arm costs what it costs."""

    arm: str = Field(description="name of the arm")
    samples: int = Field(description="samples of this arm")
    total: Growth = Field(description="all samples together")
    functions: list[Growth] = Field(
        description="function by function: what the base hardly has first, then by growth"
    )


class Why(Model):
    """Samples of the server, by arm."""

    computing: list[Reasons] = Field(description="on the processor: an element for each arm")
    blocked: list[Reasons] = Field(description="off the processor: an element for each arm")
    notes: list[str] = Field(description="what a reader must know, in sentences")


class WeighResult(Document):
    """Everything one weighing found; `arms[0]` is the base."""

    schema_: Literal["pgtare.weigh/1"] = schema_name(SCHEMA)
    created: str = Field(description="when the trial ended, ISO 8601")
    pgtare_version: str = Field(description="version of pgtare that wrote it")
    command: list[str] = Field(description="the command line, one word an element")
    load: dict[str, Any] = Field(description="what drove the server: kind, script, clients")
    design: DesignInfo = Field(description="layout and course of the trial, see below")
    server: dict[str, Any] = Field(description="version and settings of the server")
    machine: dict[str, Any] = Field(description="processor, clock, kernel, memory")
    baseline: Baseline = Field(description="the base arm's service time, see below")
    carry_over: CarryOver = Field(description="lags and the cost of switching, see below")
    arms: list[ArmResult] = Field(description="the arms; the first is the base")
    by_backend: list[ByBackend] = Field(description="effects session by session")
    contention: Contention | None = Field(
        default=None, description="where the cost falls, with `--unit both`, see below; else `null`"
    )
    warnings: list[str] = Field(description="what a reader must know, in plain sentences")
    why: Why | None = Field(
        default=None,
        description="what `--why` found; else, and in a result directory, `null`",
    )

    @property
    def server_version(self) -> str:
        """The number of the server's version, such as 18.6; empty if it is not known."""
        number_ = self.server.get("version_num")
        if isinstance(number_, int) and number_ >= 100_000:
            return f"{number_ // 10_000}.{number_ % 10_000}"
        return ""
