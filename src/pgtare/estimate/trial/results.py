"""What the analysis of a trial returns; fields are named as in the written result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pgtare.estimate.inference import Estimate, Expansion, Reference, percent
from pgtare.estimate.trial.design import Role
from pgtare.estimate.trial.verdict import Verdict


@dataclass(frozen=True)
class Effect:
    """Differences of an arm from the base; _us in microseconds, _pct in % of the base's body.

    Intervals are at 95 %. Total, body and excess are what the arm costs when left on: the effect
    on the transaction itself and that on the next. Total and excess have no interval if too few
    transactions lie over the threshold. By runs there is no figure if there were none.
    """

    total_us: Estimate
    total_pct: Estimate
    body_us: Estimate
    body_pct: Estimate
    excess_us: Estimate
    own_us: Estimate
    carry_over_us: Estimate
    second_lag_us: Estimate
    mean_us: Estimate
    p50_us: Estimate
    p99_us: Estimate
    cpu_us: Estimate | None
    runs_us: Estimate | None = None
    long_carry_over_us: Estimate | None = None


@dataclass(frozen=True)
class ArmEstimate:
    """One arm; what compares with the base is None in the base itself."""

    name: str
    role: Role
    n: int  # units that entered
    excluded: int  # units left out
    mean_us: float
    p50_us: float
    p99_us: float
    aborted: int = 0  # of the n: transactions that ended in an error
    open: int = 0  # transactions that were not answered when the trial or their session ended
    longest_open_us: float = 0.0  # the longest of them so far
    threshold_us: float | None = None  # c, which the arm shares with the base
    effect: Effect | None = None
    tail_rate_ratio: Estimate | None = None  # 95 % interval of P(x > c), relative to the base's
    tail_bound: float | None = None  # one-sided 95 % upper bound of the ratio
    p: float | None = None  # of the body
    p_total: float | None = None  # NaN if the tail is not judged
    p_aborted: float | None = None  # of "it fails as often as the base"
    p_randomisation: float | None = None  # of the plain body difference
    p_adjusted: float | None = None  # Holm over bodies and totals; not of injected arms
    p_total_adjusted: float | None = None
    equivalence_us: Estimate | None = None  # 90 % interval of the body
    run_pairs: int = 0  # of the arm's runs and the base's
    outlasts: bool = False  # an effect on more than the next transaction is shown, and matters
    at_most_us: float | None = None  # one-sided 95 % upper bound of what it costs
    at_most_pct: float | None = None
    tail_bounded: bool = False  # that bound is of the total, else of the body
    settles_pct: float | None = None  # margin that so long a trial settles, were there no effect
    mde_us: float | None = None
    effective_clusters: float | None = None  # that the body rests on
    verdict: Verdict | None = None
    verdict_reason: str = ""
    needed_s: float | None = None


@dataclass(frozen=True)
class Baseline:
    """The base arm's service time, in microseconds; NaN if there is no whole block."""

    n: int
    mean_us: float  # raw
    body_mean_us: float  # of min(x, c): what percentages and the margin are of
    p50_us: float
    p99_us: float
    threshold_us: float  # c of `body_mean_us`
    cpu_us: float | None


@dataclass(frozen=True)
class ByBackend:
    """Body effect of every instrument within one session, by the name of its arm."""

    backend: int
    pid: int
    n: int
    body_us: dict[str, Estimate]


@dataclass(frozen=True)
class CarryOver:
    """Lags in the headline, and what switching arms took.

    switch_throughput_pct is of the time from one unit's start to the next one's.
    """

    lags: int
    switch_us: float
    switch_throughput_pct: float


#: spillover: its interval misses zero; not_shown: it covers zero; none: the same with a single
#: session, which cannot have any; not_separable: a single session shows some all the same.
ContentionState = Literal[
    "spillover", "not_shown", "none", "not_separable", "inconclusive", "not_verified"
]


@dataclass(frozen=True)
class Contention:
    """Where the cost of one instrument falls, from a saturation design; all of the body.

    Intervals are Student's t at 95 % over blocks of slices; _pct is of base_us.
    """

    name: str
    state: ContentionState
    reason: str
    base_us: float  # slices in which all sessions follow the base
    total_us: Estimate  # all sessions with the instrument less all without it
    total_pct: Estimate
    own_us: Estimate  # in mixed slices: on the transaction itself
    carry_over_us: Estimate  # on the next two of the same session
    spillover_us: Estimate  # on other sessions' base transactions, in mixed slices
    spillover_pct: Estimate
    total_less_own_us: Estimate  # below 0: slices of the instrument hold another mix of work
    blocks: int  # of slices
    blocks_discarded: int
    sessions: int
    n_base: int  # transactions in slices of the base
    n_instrument: int
    n_mixed: int
    straddled_pct: float  # answered after the end of their slice, of the arm with most


@dataclass(frozen=True)
class TrialEstimate:
    """Everything that the observations of a trial say; `arms` are in the order of the design."""

    baseline: Baseline
    arms: tuple[ArmEstimate, ...]
    by_backend: tuple[ByBackend, ...]
    carry_over: CarryOver
    blocks: int
    clusters: int
    blocks_discarded: int
    discarded: dict[str, int]  # blocks, by reason
    foreign: int  # units of an arm that the design does not know
    sessions: int  # backends that gave at least one whole block
    duration_s: float
    margin_pct: float
    confidence: float
    mde_us: float
    mde_pct: float
    peeked: bool
    in_runs: int = 0  # transactions in runs, of all arms; no arm's n or excluded counts them
    straddled_pct: float | None = None  # of the arm with most, in a trial with slices
    contention: Contention | None = None


@dataclass(frozen=True)
class LiveArm:
    """One arm while the trial runs.

    body_us, body_pct: with the always-valid interval; half_width_pct: of the fixed 95 % interval,
    for the rule that stops on width.
    """

    name: str
    body_us: Estimate
    body_pct: Estimate
    half_width_pct: float

    @classmethod
    def of(cls, name: str, cost: Expansion, base: Expansion, reference: Reference) -> LiveArm:
        """reference: of the always-valid intervals; the fixed one has as many blocks."""
        fixed = percent(cost, base, replace(reference, peeked=False))
        return cls(
            name,
            body_us=reference.interval(cost.value, cost.se),
            body_pct=percent(cost, base, reference),
            half_width_pct=fixed.half_width,
        )


@dataclass(frozen=True)
class Live:
    """A look at a running trial."""

    blocks: int
    duration_s: float
    arms: tuple[LiveArm, ...]  # all but the base
