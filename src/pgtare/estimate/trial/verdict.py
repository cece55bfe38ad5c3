"""The verdict on an arm, failing closed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pgtare.estimate.inference import NAN, Estimate
from pgtare.estimate.trial.answer import Reason, ReasonKind, Verdict
from pgtare.estimate.trial.outcomes import Failures, Unanswered

#: The rate of exceeding the threshold may be this many times the base's for "equivalent".
TAIL_TOLERANCE = 1.25
ALPHA = 0.05
#: The two-sided error of an interval whose one end is a one-sided 95 % bound.
ONE_SIDED = 0.10
#: A cost that changes within a run is told at this level, over all instruments together.
SETTLING_ALPHA = 0.01
#: A control as far off as this, or farther, leaves no arm a verdict.
CONTROL_OFF = 0.001
#: More open transactions than the base has are too many below this p.
OPEN_ALPHA = 0.01
#: The share of an effect, or of the margin, that may have another explanation.
EXPLAINED = 0.5


@dataclass(frozen=True)
class Control:
    """How far the base measured again is off.

    p: of "neither body nor total is", NaN if that cannot be judged.
    """

    p: float
    body_us: float
    total_us: float


@dataclass(frozen=True)
class Settling:
    """Whether what an arm costs still changes within a run.

    later_less_earlier: of the transactions after the first 16, less those before, in µs; p: of "it
    does not change", NaN without data. family: arms that are looked at.
    """

    later_less_earlier: float
    p: float
    family: int

    @property
    def changes(self) -> bool:
        """Whether a change is shown."""
        return self.p < SETTLING_ALPHA / max(self.family, 1)


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on; times in microseconds."""

    proven: bool  # the instrument was seen to run in its arm
    blocks: int
    least_blocks: int  # with fewer nothing is said about an arm
    body: Estimate  # the effect's body, with its 95 % interval
    margin_us: float  # of equivalence, a share of the base's body
    excess: Estimate  # 95 %; no interval if too few transactions are slow
    total: Estimate  # 95 %; likewise
    tail_bound: float  # one-sided 95 % upper bound of the rate ratio
    p: float  # of the body, adjusted over the family, if the arm belongs to it
    family: int  # number of arms that p is adjusted for
    seconds: float  # length of the trial
    factor: float  # by which it must lengthen for the body to be decided
    tail_factor: float  # by which it must lengthen for the tail to be cleared
    ended_early: str = ""  # why the trial ended by accident
    settling: Settling | None = None  # None if nothing is known of it
    p_total: float = NAN  # of the total, adjusted likewise; NaN if it is not judged
    control: Control | None = None  # None of the control itself, and without one
    failures: Failures | None = None
    unanswered: Unanswered | None = None


@dataclass(frozen=True)
class Decision:
    """A verdict, why, and if inconclusive the seconds still needed, if known."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    needed_s: float | None = None


def judge(evidence: Evidence) -> Decision:
    """The first verdict that applies: not verified, equivalent, cost or gain, inconclusive.

    What else could explain a verdict withholds it: a control that is off, failed transactions,
    and those that were still open. These, and a cost that still changes within a run, also withhold
    the bound of what is inconclusive. Every comparison is written so that a NaN fails it; nothing
    that is missing can make an arm equivalent.
    """
    if evidence.ended_early:
        return _no("not_verified", Reason(ReasonKind.ENDED_EARLY, text=evidence.ended_early))
    if not evidence.proven:
        return _no("not_verified", Reason(ReasonKind.NO_PROOF))
    if evidence.control is not None and evidence.control.p < CONTROL_OFF:
        return _open(Reason(ReasonKind.CONTROL_OFF, p=evidence.control.p))
    if evidence.blocks < evidence.least_blocks:
        return _open(Reason(ReasonKind.FEW_BLOCKS, n=evidence.blocks), _until_enough(evidence))
    if not (math.isfinite(evidence.body.lo) and math.isfinite(evidence.body.hi)):
        return _open(Reason(ReasonKind.NOT_ESTIMATED))
    if evidence.control is not None and math.isnan(evidence.control.p):
        return _open(Reason(ReasonKind.CONTROL_UNKNOWN))
    if evidence.failures is not None and evidence.failures.p < ALPHA:
        return _open(_failed(ReasonKind.FAILURES_DIFFER, evidence.failures))
    inside = _inside(evidence.body, evidence.margin_us)
    if inside and _no_tail_cost(evidence) and evidence.tail_bound <= TAIL_TOLERANCE:
        found = Decision("equivalent", (Reason(ReasonKind.INSIDE_MARGIN),))
        return _unless(_doubts_of_equivalence(evidence), found)
    shown = _shown(evidence)
    if shown is not None:
        found, effect = shown
        return _unless(_doubts(evidence, effect), found)
    if evidence.unanswered is not None and evidence.unanswered.p < OPEN_ALPHA:
        return _open(Reason(ReasonKind.OPEN_COULD_EXPLAIN))
    found = _undecided(evidence, inside)
    if evidence.settling is not None and evidence.settling.changes:
        reasons = (*found.reasons, Reason(ReasonKind.UNSETTLED))
        return replace(found, reasons=reasons, needed_s=None)
    return found


def _inside(interval: Estimate, margin: float) -> bool:
    """Whether both ends are inside the margin."""
    return interval.lo > -margin and interval.hi < margin


def _no(verdict: Verdict, reason: Reason) -> Decision:
    return Decision(verdict, (reason,))


def _open(reason: Reason, needed_s: float | None = None) -> Decision:
    return Decision("inconclusive", (reason,), needed_s)


def _unless(doubt: Reason | None, found: Decision) -> Decision:
    return _open(doubt) if doubt else found


def _shown(evidence: Evidence) -> tuple[Decision, Estimate] | None:
    """Cost or gain, and the effect that shows it.

    A total shown to be above zero is a cost, whatever the body is. A body whose total has the other
    sign shows nothing, and neither does a body that is not below zero make a total a gain. If slow
    transactions are shown to add something, only a total that is below zero all the same is a gain.
    """
    body, total = evidence.body, evidence.total
    by_body = evidence.p < ALPHA
    by_total = evidence.p_total < ALPHA
    of_body = Reason(ReasonKind.DIFFERS, p=evidence.p)
    of_total = Reason(ReasonKind.TOTAL_DIFFERS, p=evidence.p_total)
    cost = (*_open_add(evidence), *_settles(evidence))
    if by_body and body.estimate > 0 and not total.hi < 0:
        return Decision("cost", (of_body, *cost)), body
    if by_total and total.estimate > 0:
        return Decision("cost", (of_total, *cost)), total
    slower = evidence.excess.lo > 0 and not total.hi < 0
    if by_body and body.estimate < 0 and not total.lo > 0 and not slower:
        return Decision("gain", (of_body, *_settles(evidence))), body
    if by_total and total.estimate < 0 and not body.lo > 0:
        return Decision("gain", (of_total, *_settles(evidence))), total
    return None


def _settles(evidence: Evidence) -> tuple[Reason, ...]:
    """That the effect is still changing when its run ends, and in which direction."""
    settling = evidence.settling
    if settling is None or not settling.changes:
        return ()
    grows = settling.later_less_earlier * evidence.body.estimate > 0
    return (Reason(ReasonKind.GROWS if grows else ReasonKind.SHRINKS),)


def _open_add(evidence: Evidence) -> tuple[Reason, ...]:
    """That a cost is understated, if many of the arm's transactions were still open."""
    left = evidence.unanswered
    if left is None:
        return ()
    more_are_open = left.p < OPEN_ALPHA and left.n > 0 and left.imputed_us > 0
    if not (left.imputed_us > evidence.margin_us or more_are_open):
        return ()
    return (Reason(ReasonKind.OPEN_ADD, n=left.n),)


def _doubts(evidence: Evidence, effect: Estimate) -> Reason | None:
    """What else could explain a cost or gain, if anything."""
    control, failed, left = evidence.control, evidence.failures, evidence.unanswered
    nearest = min(abs(effect.lo), abs(effect.hi))
    if control is not None and control.p < ALPHA:
        offset = control.total_us if effect is evidence.total else control.body_us
        if not abs(offset) < nearest:
            return Reason(ReasonKind.CONTROL_COULD_EXPLAIN, p=control.p)
    share = EXPLAINED * abs(effect.estimate)
    if failed is not None and not abs(failed.explained_us) < share:
        return _failed(ReasonKind.FAILURES_COULD_EXPLAIN, failed)
    # A cost is only understated by what was still open, and the other way round.
    if left is None or effect.estimate * left.imputed_us >= 0:
        return None
    explains = left.p < OPEN_ALPHA or not abs(left.imputed_us) < share
    return Reason(ReasonKind.OPEN_COULD_EXPLAIN) if explains else None


def _doubts_of_equivalence(evidence: Evidence) -> Reason | None:
    """What else could have made an arm look equivalent, if anything."""
    control, failed, left = evidence.control, evidence.failures, evidence.unanswered
    if control is not None and control.p < ALPHA:
        left_of_margin = evidence.margin_us - abs(control.body_us)
        if not _inside(evidence.body, left_of_margin):
            return Reason(ReasonKind.CONTROL_COULD_EXPLAIN, p=control.p)
    if evidence.settling is not None and evidence.settling.changes:
        return Reason(ReasonKind.UNSETTLED)
    margin = evidence.margin_us
    if failed is not None and not abs(failed.explained_us) < EXPLAINED * margin:
        return _failed(ReasonKind.FAILURES_COULD_EXPLAIN, failed)
    if left is not None and (not abs(left.imputed_us) < margin or left.p < OPEN_ALPHA):
        return Reason(ReasonKind.OPEN_COULD_EXPLAIN)
    return None


def _failed(kind: ReasonKind, failed: Failures) -> Reason:
    p = failed.p if kind is ReasonKind.FAILURES_DIFFER else None
    return Reason(kind, p=p, pct=100 * failed.rate, base_pct=100 * failed.base_rate)


def _no_tail_cost(evidence: Evidence) -> bool:
    """Whether nothing shows that the tail makes the arm dear.

    A total above zero does no harm if it is shown to be inside the margin itself.
    """
    inside = evidence.total.hi < evidence.margin_us
    return evidence.excess.lo <= 0 and (evidence.total.lo <= 0 or inside)


def _tail_cost_shown(evidence: Evidence) -> bool:
    return evidence.excess.lo > 0 or (
        evidence.total.lo > 0 and not evidence.total.hi < evidence.margin_us
    )


def _undecided(evidence: Evidence, inside: bool) -> Decision:
    if evidence.p < ALPHA:
        return _open(Reason(ReasonKind.TAIL_OUTWEIGHS))
    if inside:
        return _open(Reason(ReasonKind.TAIL_OPEN), _still(evidence, _until_tail(evidence)))
    reason = Reason(ReasonKind.CORRECTED, n=evidence.family)
    if evidence.body.lo <= 0 <= evidence.body.hi:
        reason = Reason(ReasonKind.COVERS_ZERO)
    return _open(reason, _still(evidence, _until_body(evidence)))


def _until_enough(evidence: Evidence) -> float | None:
    """Until there are enough blocks, and whether it is decided, if that is known already."""
    if not (evidence.blocks > 0 and evidence.seconds > 0):
        return None
    enough = evidence.seconds * (evidence.least_blocks / evidence.blocks - 1)
    return max(enough, _still(evidence, _until_body(evidence)) or 0.0)


def _until_body(evidence: Evidence) -> float:
    """Equivalence, which an effect that may be zero heads for, needs a clear tail as well."""
    if evidence.body.lo <= 0 <= evidence.body.hi:
        return max(evidence.factor, _until_tail(evidence))
    return evidence.factor


def _until_tail(evidence: Evidence) -> float:
    """Infinite if the tail is known to cost something: more time cannot clear it."""
    return math.inf if _tail_cost_shown(evidence) else evidence.tail_factor


def _still(evidence: Evidence, factor: float) -> float | None:
    if not (math.isfinite(factor) and math.isfinite(evidence.seconds)):
        return None
    # What is enough for 80 % power may have failed this time; then as much again is no bad bet.
    return evidence.seconds * (factor - 1 if factor > 1 else 1.0)
