"""What the analysis of a trial returns; fields are named as in the written result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from pgtare.estimate.inference import NAN, Estimate, Expansion, Reference
from pgtare.estimate.trial.answer import Answer
from pgtare.estimate.trial.design import Role


@dataclass(frozen=True)
class Effect:
    """Differences of an arm from the base; _us in microseconds, _pct in % of the base's body.

    Intervals are at 95 %; those in percent are those in microseconds over one number. Total and
    excess have no interval if too few transactions lie over the threshold.
    """

    total_us: Estimate
    excess_us: Estimate
    p50_us: Estimate
    p99_us: Estimate
    cpu_us: Estimate | None
    switched_on_us: Estimate | None = None  # body of the first transactions of later runs


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
    answer: Answer | None = None  # what it costs when left on
    effect: Effect | None = None  # what else is known of it
    p: float | None = None  # of the body
    p_total: float | None = None  # NaN if the tail is not judged
    p_aborted: float | None = None  # of "it fails as often as the base"
    p_adjusted: float | None = None  # Holm over bodies and totals; not of injected arms
    p_total_adjusted: float | None = None
    effective_clusters: float | None = None  # that the body rests on


@dataclass(frozen=True)
class Baseline:
    """What the others are compared with, in microseconds; NaN if there is no whole block."""

    body_mean_us: float  # of min(x, c): what percentages and the margin are of
    threshold_us: float  # c of `body_mean_us`
    cpu_us: float | None


@dataclass(frozen=True)
class Switching:
    """What switching arms took; switch_throughput_pct: of the time from start to start."""

    switch_us: float
    switch_throughput_pct: float


#: spillover: its interval misses zero; not_shown: it covers zero.
ContentionState = Literal["spillover", "not_shown", "inconclusive", "not_verified"]


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
    own_us: Estimate  # in mixed slices: sessions that have it less those that have not
    spillover_us: Estimate  # on sessions that have not, where half of the others have it
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
    switching: Switching
    blocks: int  # that entered; those cut short, too
    sessions: int  # that gave at least one whole block
    margin_pct: float
    mde_us: float
    mde_pct: float
    peeked: bool
    blocks_discarded: int = 0  # of slices
    first_share: float = 0.0  # of first runs in the answer's transactions, 0 if they are not in it
    covered: float = 1.0  # share of all transactions that are in sessions the answer is of
    shortest: int = 0  # transactions of the shortest session with a whole block
    straddled_pct: float | None = None  # of the arm with most, in a trial with slices
    disturbed_pct: float | None = None  # of a driver's runs of the base, held up by something
    waiting_us: float | None = None  # the base's body for a driver's session that waits
    contention: Contention | None = None


@dataclass(frozen=True)
class LiveArm:
    """One arm while the trial runs.

    body_pct: with the always-valid interval. half_width_pct: for the rule that stops on width, of
    the interval that the result has: the fixed 95 % one, or with limits the always-valid one.
    least_pct: the lower end of the always-valid interval with the error shared out among all arms.
    most_pct: the most that it costs, slow transactions included; infinite as long as too little is
    known of these. waiting: from outside, the same of a session that waits.
    """

    name: str
    body_pct: Estimate
    half_width_pct: float
    least_pct: float = NAN
    most_pct: float = math.inf
    waiting: LiveArm | None = None

    @classmethod
    def of(cls, name: str, cost: Expansion, base_us: float, reference: Reference) -> LiveArm:
        """reference: of the always-valid intervals; the fixed one has as many blocks."""
        fixed = replace(reference, peeked=False).interval(cost.value, cost.se)
        factor = 100 / base_us if base_us > 0 else NAN
        found = reference.interval(cost.value, cost.se)
        return cls(name, found.times(factor), fixed.half_width * factor)


@dataclass(frozen=True)
class Live:
    """A look at a running trial."""

    blocks: int
    arms: tuple[LiveArm, ...]  # all but the base
