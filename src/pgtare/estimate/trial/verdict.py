"""The verdict on an arm, failing closed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pgtare.estimate.inference import NAN, Estimate
from pgtare.estimate.trial.outcomes import Failures, Unanswered

Verdict = Literal["cost", "gain", "equivalent", "inconclusive", "not_verified"]

#: With fewer blocks nothing is said about an arm.
MIN_BLOCKS = 50
#: The rate of exceeding the threshold may be this many times the base's for "equivalent".
TAIL_TOLERANCE = 1.25
ALPHA = 0.05
CONFIDENCE = 0.95
#: Half of the two-sided error of the 90 % interval that two one-sided 5 % tests need.
EQUIVALENCE_ALPHA = 0.10
#: A control as far off as this, or farther, leaves no arm a verdict.
CONTROL_OFF = 0.001
_CONTROL = "the control, the base measured again"
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
class Lasting:
    """What is known of effects that outlast the transactions that the body counts.

    runs, under, over: the cost by runs, as `Evidence` has the body. NaN without runs.
    """

    reach: int  # transactions that the body's effect covers, the arm's own one included
    runs: Estimate  # at the level of `surely`, adjusted over the arms
    under: Estimate
    over: Estimate
    outlasts: bool  # an effect that outlasts them is shown, and matters
    surely: bool  # and is shown by runs, at a level that adds hardly any false costs
    factor: float  # by which the trial must lengthen for runs to decide


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on; times in microseconds.

    The margin is a share of the base's body, which is an estimate too: `under` and `over` are the
    body plus and less the margin, with 90 % intervals that allow for that.
    """

    proven: bool  # the instrument was seen to run in its arm
    blocks: int
    body: Estimate  # the effect's body, with its 95 % interval
    under: Estimate  # body + margin, shown to be above zero if equivalent
    over: Estimate  # body - margin, shown to be below zero if equivalent
    excess: Estimate  # 95 %; no interval if too few transactions are slow
    total: Estimate  # 95 %; likewise
    total_over: Estimate  # total - margin, 95 %
    tail_bound: float  # one-sided 95 % upper bound of the rate ratio
    p: float  # of the body, adjusted over the family, if the arm belongs to it
    family: int  # number of arms that p is adjusted for
    seconds: float  # length of the trial
    factor: float  # by which it must lengthen for the body to be decided
    tail_factor: float  # by which it must lengthen for the tail to be cleared
    ended_early: str = ""  # why the trial ended by accident
    lasting: Lasting | None = None  # None if the body holds effects of every length
    p_total: float = NAN  # of the total, adjusted likewise; NaN if it is not judged
    control: Control | None = None  # None of the control itself, and without one
    failures: Failures | None = None
    unanswered: Unanswered | None = None


@dataclass(frozen=True)
class Decision:
    """A verdict, why, and if inconclusive the seconds still needed, if known."""

    verdict: Verdict
    reason: str
    needed_s: float | None = None


def judge(evidence: Evidence) -> Decision:
    """The first verdict that applies: not verified, equivalent, cost or gain, inconclusive.

    What else could explain a verdict withholds it: a control that is off, failed transactions,
    and those that were still open. Every comparison is written so that a NaN fails it; nothing that
    is missing can make an arm equivalent.
    """
    if evidence.ended_early:
        return Decision("not_verified", f"the trial ended early: {evidence.ended_early}")
    if not evidence.proven:
        return Decision("not_verified", "no proof that it ran")
    if evidence.control is not None and evidence.control.p < CONTROL_OFF:
        return Decision("inconclusive", control_reason(evidence.control))
    if evidence.blocks < MIN_BLOCKS:
        return Decision("inconclusive", _too_few(evidence.blocks), _until_enough(evidence))
    if not (math.isfinite(evidence.body.lo) and math.isfinite(evidence.body.hi)):
        return Decision("inconclusive", "the effect could not be estimated")
    if evidence.control is not None and math.isnan(evidence.control.p):
        return Decision("inconclusive", f"{_CONTROL}, could not be judged")
    if evidence.failures is not None and evidence.failures.p < ALPHA:
        return Decision("inconclusive", _failure_reason(evidence.failures))
    inside = evidence.under.lo > 0 and evidence.over.hi < 0
    if inside and _no_tail_cost(evidence) and evidence.tail_bound <= TAIL_TOLERANCE:
        found = _equivalent(evidence)
        if found is not None:
            return _unless(_doubts_of_equivalence(evidence), found)
    shown = _shown(evidence)
    if shown is not None:
        verdict, effect, reason = shown
        return _unless(_doubts(evidence, effect), Decision(verdict, reason))
    if evidence.p < ALPHA:
        return Decision("inconclusive", "the tail outweighs the body")
    if evidence.lasting is not None and evidence.lasting.outlasts:
        return _by_runs(evidence, evidence.lasting)
    if inside:
        return Decision("inconclusive", "tail", _still(evidence, _until_tail(evidence)))
    return Decision("inconclusive", _undecided(evidence), _still(evidence, _until_body(evidence)))


def _equivalent(evidence: Evidence) -> Decision | None:
    """Equivalence of a body that is inside the margin, as far as effects are known to last.

    None if an effect outlasts what the body counts, and runs do not show that it is inside too.
    """
    why, lasting = f"body {_sign(evidence)}, inside the margin", evidence.lasting
    if lasting is None or (lasting.under.lo > 0 and lasting.over.hi < 0):
        return Decision("equivalent", why)
    if lasting.outlasts:
        return None
    limit = f", for effects that last up to {lasting.reach} transactions"
    return Decision("equivalent", why + limit, _still(evidence, lasting.factor))


def _by_runs(evidence: Evidence, lasting: Lasting) -> Decision:
    """The verdict if the body decides nothing, and an effect outlasts what it counts."""
    if lasting.surely and (lasting.runs.lo > 0 or lasting.runs.hi < 0):
        found = Decision("cost" if lasting.runs.lo > 0 else "gain", "by runs")
        return _unless(_doubts(evidence, lasting.runs), found)
    reason = "the effect lasts longer than the next transaction"
    return Decision("inconclusive", reason, _still(evidence, lasting.factor))


def control_reason(control: Control) -> str:
    """Why a control that is off leaves no verdict."""
    return f"{_CONTROL}, is off (p = {control.p:.2g})"


def _unless(doubt: str, found: Decision) -> Decision:
    return Decision("inconclusive", doubt) if doubt else found


def _shown(evidence: Evidence) -> tuple[Verdict, Estimate, str] | None:
    """Cost or gain, the effect that shows it, and the reason.

    A total shown to be above zero is a cost, whatever the body is. A body whose total has the other
    sign shows nothing, and neither does a body that is not below zero make a total a gain.
    """
    body, total = evidence.body, evidence.total
    by_body = evidence.p < ALPHA
    by_total = evidence.p_total < ALPHA
    if by_body and body.estimate > 0 and not total.hi < 0:
        return "cost", body, f"p = {evidence.p:.2g}{_at_least(evidence)}"
    if by_total and total.estimate > 0:
        return "cost", total, f"by the total, p = {evidence.p_total:.2g}{_at_least(evidence)}"
    if by_body and body.estimate < 0 and not total.lo > 0:
        return "gain", body, f"p = {evidence.p:.2g}"
    if by_total and total.estimate < 0 and not body.lo > 0:
        return "gain", total, f"by the total, p = {evidence.p_total:.2g}"
    return None


def _at_least(evidence: Evidence) -> str:
    """That a cost is understated, if many of the arm's transactions were still open."""
    left = evidence.unanswered
    if left is None or not (left.imputed_us > _margin(evidence) or _more_are_open(left)):
        return ""
    return f"; {left.n} still open at the end, so it may cost more"


def _more_are_open(left: Unanswered) -> bool:
    return left.p < OPEN_ALPHA and left.n > 0 and left.imputed_us > 0


def _doubts(evidence: Evidence, effect: Estimate) -> str:
    """What else could explain a cost or gain, in words, or nothing."""
    if _changes_sign(evidence.lasting, effect):
        return "the effect has the other sign when it lasts"
    control, failed, left = evidence.control, evidence.failures, evidence.unanswered
    nearest = min(abs(effect.lo), abs(effect.hi))
    if control is not None and control.p < ALPHA:
        offset = control.total_us if effect is evidence.total else control.body_us
        if not abs(offset) < nearest:
            return _offset_reason(control)
    share = EXPLAINED * abs(effect.estimate)
    if failed is not None and not abs(failed.explained_us) < share:
        return _explained_reason(failed)
    # A cost is only understated by what was still open, and the other way round.
    if left is None or effect.estimate * left.imputed_us >= 0:
        return ""
    return _OPEN_REASON if left.p < OPEN_ALPHA or not abs(left.imputed_us) < share else ""


def _changes_sign(lasting: Lasting | None, effect: Estimate) -> bool:
    """Whether an effect that is shown to last has the other sign by runs."""
    if lasting is None or not lasting.outlasts:
        return False
    return lasting.runs.hi < 0 if effect.estimate > 0 else lasting.runs.lo > 0


def _doubts_of_equivalence(evidence: Evidence) -> str:
    """What else could have made an arm look equivalent, in words, or nothing."""
    control, failed, left = evidence.control, evidence.failures, evidence.unanswered
    if control is not None and control.p < ALPHA:
        offset = abs(control.body_us)
        if not (evidence.under.lo > offset and evidence.over.hi < -offset):
            return _offset_reason(control)
    margin = _margin(evidence)
    if failed is not None and not abs(failed.explained_us) < EXPLAINED * margin:
        return _explained_reason(failed)
    if left is not None and (not abs(left.imputed_us) < margin or left.p < OPEN_ALPHA):
        return _OPEN_REASON
    return ""


_OPEN_REASON = "transactions that were still open at the end could explain it"


def _margin(evidence: Evidence) -> float:
    return (evidence.under.estimate - evidence.over.estimate) / 2


def _offset_reason(control: Control) -> str:
    return f"the control misses 0 (p = {control.p:.2g}), and by enough to explain it"


def _explained_reason(failed: Failures) -> str:
    return (
        "failed transactions could explain it "
        f"({100 * failed.rate:.3g} % against the base's {100 * failed.base_rate:.3g} %)"
    )


def _failure_reason(failed: Failures) -> str:
    more = "more" if failed.rate > failed.base_rate else "less"
    return (
        f"transactions fail {more} often than the base's ({100 * failed.rate:.3g} % against "
        f"{100 * failed.base_rate:.3g} %, p = {failed.p:.2g}), so that their times do not compare"
    )


def _no_tail_cost(evidence: Evidence) -> bool:
    """Whether nothing shows that the tail makes the arm dear.

    A total above zero does no harm if it is shown to be inside the margin itself.
    """
    return evidence.excess.lo <= 0 and (evidence.total.lo <= 0 or evidence.total_over.hi < 0)


def _tail_cost_shown(evidence: Evidence) -> bool:
    return evidence.excess.lo > 0 or (evidence.total.lo > 0 and not evidence.total_over.hi < 0)


def _undecided(evidence: Evidence) -> str:
    if evidence.body.lo <= 0 <= evidence.body.hi:
        return "neither distinguished from zero nor shown to be inside the margin"
    return (
        f"not distinguished from zero after correction for {_tests(evidence)}, nor shown to be "
        "inside the margin"
    )


def _tests(evidence: Evidence) -> str:
    """What p is corrected for: the instruments, and each one's body and total."""
    if evidence.family == 1:
        return "its two tests"
    return f"{evidence.family} instruments"


def _sign(evidence: Evidence) -> str:
    """The side of zero an equivalent arm is on, if its interval tells."""
    if evidence.body.lo > 0:
        return "above zero"
    return "below zero" if evidence.body.hi < 0 else "not distinguished from zero"


def _too_few(blocks: int) -> str:
    return "no whole block" if blocks == 0 else f"only {blocks} whole blocks"


def _until_enough(evidence: Evidence) -> float | None:
    """Until there are MIN_BLOCKS, and whether it is decided, if that is known already."""
    if not (evidence.blocks > 0 and evidence.seconds > 0):
        return None
    enough = evidence.seconds * (MIN_BLOCKS / evidence.blocks - 1)
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
