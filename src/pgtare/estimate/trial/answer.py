"""The answer to the one question: what an instrument costs when left on. Everything says this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pgtare.estimate.inference import Estimate

Verdict = Literal["cost", "gain", "equivalent", "inconclusive", "not_verified"]

#: With a smaller share of the transactions the answer is not of all sessions.
COVERS_ALL = 0.9


class Basis(StrEnum):
    """What was compared."""

    SETTLED = "settled runs"
    FIRST_AND_SETTLED = "first runs of new sessions and settled runs"
    FIRST = "first runs of new sessions"
    SLICES = "slices of all sessions"
    BURSTS = "a driver's bursts"
    PACED = "a driver's transactions with pauses"


class ReasonKind(StrEnum):
    """Why an answer is what it is. Of which fields of a Reason it has, in brackets."""

    ENDED_EARLY = "ended_early"  # (text)
    NO_PROOF = "no_proof"
    CONTROL_OFF = "control_off"  # (p)
    CONTROL_UNKNOWN = "control_unknown"
    CONTROL_COULD_EXPLAIN = "control_could_explain"  # (p)
    FEW_BLOCKS = "few_blocks"  # (n)
    NOT_ESTIMATED = "not_estimated"
    FAILURES_DIFFER = "failures_differ"  # (p, pct, base_pct)
    FAILURES_COULD_EXPLAIN = "failures_could_explain"  # (pct, base_pct)
    OPEN_COULD_EXPLAIN = "open_could_explain"
    OPEN_ADD = "open_add"  # (n) transactions still open: a cost is at least this
    INSIDE_MARGIN = "inside_margin"
    DIFFERS = "differs"  # (p)
    TOTAL_DIFFERS = "total_differs"  # (p) because of slow transactions
    TAIL_OUTWEIGHS = "tail_outweighs"
    TAIL_OPEN = "tail_open"  # only the tail prevents an answer
    COVERS_ZERO = "covers_zero"
    CORRECTED = "corrected"  # (n) not distinguished from zero after correction for n instruments
    GROWS = "grows"  # it still grows within a run
    SHRINKS = "shrinks"
    UNSETTLED = "unsettled"  # it still changes, so there is neither a verdict nor a bound
    SHORT_SESSIONS = "short_sessions"  # (n) the answer is of sessions with n transactions or more
    WAITING_OPEN = "waiting_open"  # not shown of sessions that wait between transactions
    DISTURBED = "disturbed"  # (pct) so many runs were held up that effects may read high


#: Something else could have moved the figure: its bounds say nothing either.
WITHHOLD = frozenset(
    {
        ReasonKind.CONTROL_OFF,
        ReasonKind.CONTROL_UNKNOWN,
        ReasonKind.CONTROL_COULD_EXPLAIN,
        ReasonKind.FAILURES_DIFFER,
        ReasonKind.FAILURES_COULD_EXPLAIN,
        ReasonKind.OPEN_COULD_EXPLAIN,
    }
)


@dataclass(frozen=True)
class Reason:
    """One reason; a field that its kind does not have is None, or empty."""

    kind: ReasonKind
    p: float | None = None
    n: int | None = None
    pct: float | None = None
    base_pct: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Answer:
    """What an arm costs when left on, with its 95 % interval.

    us: µs a transaction, min(x, c); pct: the same over the base's mean. at_least, at_most: the
    estimate is known to be too small, or too large. detectable_us: the smallest cost that such an
    interval shows with a power of 80 %. share_covered: of all transactions, in sessions that the
    answer is of. needed_s: further seconds that may decide it, None if not known. waiting_us,
    waiting_pct: the same cost for sessions that wait between transactions, if a driver measured it;
    waiting_stands: whether nothing else could have moved that figure.
    most_pct: what it costs at most, with what slow transactions add; infinite if too little of
    those is known.
    """

    us: Estimate
    pct: Estimate
    basis: Basis
    verdict: Verdict
    reasons: tuple[Reason, ...]
    at_least: bool
    at_most: bool
    detectable_us: float
    share_covered: float
    needed_s: float | None = None
    waiting_us: Estimate | None = None
    waiting_pct: Estimate | None = None
    waiting_stands: bool = True
    most_pct: float = math.nan

    def because(self, *kinds: ReasonKind) -> Reason | None:
        """The first reason of one of these kinds."""
        return next((reason for reason in self.reasons if reason.kind in kinds), None)
