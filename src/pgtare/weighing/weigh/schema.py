"""The result of a weighing, schema `pgtare.weigh/2`: what `--json` writes and reports read."""

from __future__ import annotations

import math
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field

from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.answer import Basis, ReasonKind
from pgtare.estimate.trial.results import ContentionState
from pgtare.kit.document import Document, Model, schema_name
from pgtare.kit.interval import Interval
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.verdict_names import Verdict
from pgtare.weighing.weigh.outside_schema import OutsideInfo, WindowsInfo

SCHEMA: Final = "pgtare.weigh/2"

ArmRole = Literal["base", "control", "instrument", "injected"]
StoppedBy = Literal["time", "precision", "decision", "interrupt", "server"]

_Document = TypeVar("_Document", bound=BaseModel)


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


class Reason(Model):
    """One reason of an answer; what its kind does not have is `null`, or empty."""

    kind: ReasonKind = Field(description="which reason it is")
    p: float | None = Field(default=None, description="a p-value")
    n: int | None = Field(default=None, description="a number of blocks, transactions, instruments")
    pct: float | None = Field(default=None, description="a rate of failures of the arm, in percent")
    base_pct: float | None = Field(default=None, description="the same of the base")
    text: str = Field(default="", description="words of the server's or the client's")


class Answer(Model):
    """What an arm costs when left on. Everything that says what something costs says this."""

    us: Interval = Field(description="cost in µs a transaction, with its interval")
    pct: Interval = Field(description="the same in percent of the base's mean")
    basis: Basis = Field(
        description="what was compared: `settled runs`, `first runs of new sessions`, both, "
        "`slices of all sessions`, or from outside `a driver's bursts`"
    )
    verdict: Verdict = Field(
        description="`cost`, `gain`, `equivalent`, `inconclusive`, `not_verified`"
    )
    reasons: list[Reason] = Field(description="why, see below")
    at_least: bool = Field(description="whether the estimate is known to be too small")
    at_most: bool = Field(description="whether it is known to be too large")
    detectable_us: float | None = Field(
        description="the smallest cost that such an interval shows with 80 % power"
    )
    share_covered: float = Field(
        description="share of all transactions, from 0 to 1, in sessions that the answer is of"
    )
    most_pct: float | None = Field(
        description="what it costs at most, in percent; with what slow transactions add if these "
        "are shown to add something, and always by windows and with limits"
    )
    needed_s: float | None = Field(
        default=None, description="further seconds of measuring that may decide it"
    )
    waiting_us: Interval | None = Field(
        default=None,
        description="from outside: the same cost for a session that waits for its client before "
        "each transaction; else `null`",
    )
    waiting_pct: Interval | None = Field(
        default=None, description="that in percent of such a session's mean in the base"
    )
    waiting_stands: bool = Field(
        default=True, description="whether nothing else could have moved that figure"
    )


class Effect(Model):
    """What else is known of an arm's difference from the base; in µs, _pct of the base's mean."""

    total_us: Interval = Field(description="cost when left on: body and excess")
    excess_us: Interval = Field(description="cost when left on, of the excess, the tail")
    p50_us: Interval = Field(description="difference of medians, descriptive")
    p99_us: Interval = Field(description="difference of 99th percentiles, descriptive")
    cpu_us: Interval | None = Field(
        description="difference of CPU time of a cycle; `null` if not taken"
    )
    switched_on_us: Interval | None = Field(
        default=None,
        description="body: the cost of the first transactions after it was switched on, which are "
        "in no other figure; `null` in slices",
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
        description="transactions left out: the first of each run, those of sessions without a "
        "whole block, flags",
    )
    mean_us: float | None = Field(description="mean service time of this arm")
    p50_us: float | None = Field(description="median of this arm")
    p99_us: float | None = Field(description="99th percentile of this arm")
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
    answer: Answer | None = Field(
        default=None, description="what it costs when left on, see below; `null` for the base"
    )
    effect: Effect | None = Field(
        default=None, description="what else is known of it, see below; `null` for the base"
    )
    p: float | None = Field(default=None, description="two-sided p-value of the body")
    p_total: float | None = Field(
        default=None,
        description="the same of the total; `null` if too few transactions are slow to judge it",
    )
    p_aborted: float | None = Field(
        default=None,
        description='p-value of "its transactions fail as often as the base\'s", by counts '
        "of runs with a failure",
    )
    p_adjusted: float | None = Field(
        default=None,
        description="p-value of the body after Holm's correction over the bodies and totals of all "
        "instruments; of the control, over its own two",
    )
    p_total_adjusted: float | None = Field(
        default=None, description="the same of the total; `null` if it is not judged"
    )
    proof: Proof | None = Field(
        default=None, description="proof of activity, see below; `null` if none is due"
    )

    @property
    def verdict(self) -> Verdict | None:
        """That of the answer; None for the base."""
        return self.answer.verdict if self.answer else None


class Baseline(Model):
    """What the others are compared with, in microseconds; null if nothing was measured."""

    body_mean_us: float | None = Field(
        description="mean of min(x, c), c being `threshold_us`; every percentage refers to it"
    )
    threshold_us: float | None = Field(
        description="99.9th percentile of the base and its control, that of `body_mean_us`"
    )
    cpu_us: float | None = Field(
        description="CPU time of a cycle, idle to idle; `null` if not taken"
    )


class SliceInfo(Model):
    """Spans of time in which all sessions follow one arm, or each draws one."""

    kinds: list[int] = Field(
        description="slices of one block before it is permuted: index of the arm that all sessions "
        "follow, −1 for a mixed slice, for which each session draws its arm"
    )
    min_us: int = Field(description="shortest slice; lengths are uniform between the two")
    max_us: int = Field(description="longest slice")
    guard_us: int = Field(description="time after each switch in which nothing is measured")
    straddled_pct: float | None = Field(
        description="share of transactions answered after the end of their slice, of the arm "
        "with most",
    )


class RunInfo(Model):
    """Runs of transactions in which a session keeps one arm."""

    shortest: int = Field(
        description="transactions of the shortest run; lengths are uniform between the two"
    )
    longest: int = Field(description="transactions of the longest run")


class Contention(Model):
    """Where the cost of the instrument falls: a saturation design; all figures are of the body."""

    name: str = Field(description="name of the instrument's arm")
    state: ContentionState = Field(
        description="`spillover`: its interval misses zero; `not_shown`: its interval covers zero; "
        "`inconclusive`; `not_verified`"
    )
    reason: str = Field(description="why, if the state needs a reason")
    base_us: float | None = Field(
        description="mean in slices in which all sessions follow the base"
    )
    own_us: Interval = Field(
        description="interval: in mixed slices, sessions that have it less those that have not"
    )
    spillover_us: Interval = Field(
        description="interval: sessions without it in mixed slices, where half of the sessions "
        "have it, less those in slices of the base",
    )
    spillover_pct: Interval = Field(description="the same as a share of `base_us`")
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
    unit: Literal["run", "slice", "both", "burst"] = Field(
        description="unit of randomisation: `run` (of transactions of a session), `slice`, "
        "`both` (a saturation design of slices), or from outside `burst`",
    )
    block: list[int] = Field(
        description="indexes into `arms`: those of the runs of one block before it is permuted"
    )
    started: str | None = Field(
        default=None, description="when the trial began, by the server's clock, ISO 8601"
    )
    duration_s: float = Field(description="seconds measured")
    planned_s: float = Field(description="seconds requested")
    margin_pct: float = Field(
        description="margin of equivalence, in percent of the base arm's body"
    )
    blocks: int = Field(
        description="blocks that entered the estimate, those cut short included; with slices, "
        "blocks of slices, with servers batches of sessions",
    )
    blocks_discarded: int = Field(description="blocks of slices left out as cut short")
    first_share_pct: float = Field(
        default=0.0,
        description="share of their first runs in the transactions that the answers are of; 0 if "
        "they are in none",
    )
    covered_pct: float = Field(
        default=100.0,
        description="share of all transactions that are in sessions the answers are of",
    )
    sessions: int = Field(description="sessions that took part")
    sessions_outside: int = Field(description="sessions seen that took no part")
    participation: float | None = Field(
        description="chance of each session to be drawn, as `--participation` sets it, from "
        "0 to 1; not what took part",
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
    stopped_by: StoppedBy = Field(
        description="what ended the trial: `time`, `precision`, `decision` (of `--at-most`), "
        "`interrupt` or `server`"
    )
    peeked: bool = Field(
        default=False,
        description="whether effects were looked at before the end, so that all intervals are "
        "those that hold at any time",
    )
    partial: bool = Field(description="true if the trial ended before its plan was met")
    slices: SliceInfo | None = Field(
        default=None,
        description="how slices were laid out, see below; `null` if there were none",
    )
    runs: RunInfo = Field(description="how long runs were, see below; with slices there are none")
    outside: OutsideInfo | None = Field(
        default=None,
        description="how a driver weighed from outside, see below; `null` if the module did",
    )


class Switching(Model):
    """What switching between arms cost the load."""

    switch_us: float | None = Field(
        description="mean time between two transactions; it is outside every figure"
    )
    switch_throughput_pct: float | None = Field(description="throughput that the load lost to it")


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


class Limit(Model):
    """Whether one instrument stays below the limit that was set."""

    name: str = Field(description="name of the arm")
    at_most_pct: float = Field(description="the limit, in percent of the base's mean")
    state: Literal["below", "above", "undecided"] = Field(
        description="`below` or `above`: shown to be; `undecided`: neither"
    )
    waiting: bool = Field(
        default=False,
        description="from outside: whether it is above for a session that waits only",
    )


class WeighResult(Document):
    """Everything one weighing found; `arms[0]` is the base."""

    schema_: Literal["pgtare.weigh/2"] = schema_name(SCHEMA)
    created: str = Field(description="when the trial ended, ISO 8601")
    pgtare_version: str = Field(description="version of pgtare that wrote it")
    command: list[str] = Field(description="the command line, one word an element")
    load: dict[str, Any] = Field(description="what drove the server: kind, script, clients")
    design: DesignInfo = Field(description="layout and course of the trial, see below")
    server: dict[str, Any] = Field(description="version and settings of the server")
    machine: dict[str, Any] = Field(description="processor, clock, kernel, memory")
    baseline: Baseline = Field(description="what the others are compared with, see below")
    switching: Switching = Field(description="the cost of switching, see below")
    arms: list[ArmResult] = Field(description="the arms; the first is the base")
    contention: Contention | None = Field(
        default=None, description="where the cost falls, with `--unit both`, see below; else `null`"
    )
    warnings: list[str] = Field(description="what a reader must know, in plain sentences")
    limits: list[Limit] = Field(
        default_factory=list, description="of `--at-most` and `--budget`: an element an instrument"
    )
    why: Why | None = Field(
        default=None,
        description="what `--why` found; else, and in a result directory, `null`",
    )

    @property
    def compares_servers(self) -> bool:
        """Whether its arms are servers, not settings."""
        return self.design.outside is not None and bool(self.design.outside.servers)

    @property
    def windows(self) -> WindowsInfo | None:
        """How the whole server was switched, if it was."""
        return self.design.outside.windows if self.design.outside is not None else None

    @property
    def server_version(self) -> str:
        """The number of the server's version, such as 18.6; empty if it is not known."""
        number_ = self.server.get("version_num")
        if isinstance(number_, int) and number_ >= 100_000:
            return f"{number_ // 10_000}.{number_ % 10_000}"
        return ""
