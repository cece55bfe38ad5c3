"""The verdict on an arm, failing closed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pgtare.estimate.inference import Estimate

Verdict = Literal["cost", "gain", "equivalent", "inconclusive", "not_verified"]

#: With fewer blocks nothing is said about an arm.
MIN_BLOCKS = 50
#: The rate of exceeding the threshold may be this many times the base's for "equivalent".
TAIL_TOLERANCE = 1.25
ALPHA = 0.05
CONFIDENCE = 0.95
#: Half of the two-sided error of the 90 % interval that two one-sided 5 % tests need.
EQUIVALENCE_ALPHA = 0.10


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
    under: Estimate  # body + margin, shown to be above zero where equivalent
    over: Estimate  # body - margin, shown to be below zero where equivalent
    excess: Estimate  # 95 %; no interval where too few transactions are slow
    total: Estimate  # 95 %; likewise
    total_over: Estimate  # total - margin, 95 %
    tail_bound: float  # one-sided 95 % upper bound of the rate ratio
    p: float  # adjusted over the family, where the arm belongs to it
    family: int  # number of arms that p is adjusted for
    seconds: float  # length of the trial
    factor: float  # by which it must lengthen for the body to be decided
    tail_factor: float  # by which it must lengthen for the tail to be cleared
    ended_early: str = ""  # why the trial ended by accident
    lasting: Lasting | None = None  # None where the body holds effects of every length


@dataclass(frozen=True)
class Finding:
    """A verdict, why, and where inconclusive the seconds still needed, if known."""

    verdict: Verdict
    reason: str
    seconds_needed: float | None = None


def judge(evidence: Evidence) -> Finding:
    """The first verdict that applies: not verified, equivalent, cost or gain, inconclusive.

    Every comparison is written so that a NaN fails it; nothing that is missing can make an arm
    equivalent.
    """
    if evidence.ended_early:
        return Finding("not_verified", f"the trial ended early: {evidence.ended_early}")
    if not evidence.proven:
        return Finding("not_verified", "no proof that it ran")
    if evidence.blocks < MIN_BLOCKS:
        return Finding("inconclusive", _too_few(evidence.blocks), _until_enough(evidence))
    if not (math.isfinite(evidence.body.lo) and math.isfinite(evidence.body.hi)):
        return Finding("inconclusive", "the effect could not be estimated")
    inside = evidence.under.lo > 0 and evidence.over.hi < 0
    no_tail_cost = _no_tail_cost(evidence)
    if inside and no_tail_cost and evidence.tail_bound <= TAIL_TOLERANCE:
        found = _equivalent(evidence)
        if found is not None:
            return found
    if evidence.p < ALPHA:
        return _told_from_zero(evidence)
    if evidence.lasting is not None and evidence.lasting.outlasts:
        return _by_runs(evidence.lasting, _still(evidence, evidence.lasting.factor))
    if inside:
        return Finding("inconclusive", "tail", _still(evidence, _until_tail(evidence)))
    return Finding("inconclusive", _undecided(evidence), _still(evidence, _until_body(evidence)))


def _equivalent(evidence: Evidence) -> Finding | None:
    """Equivalence of a body that is inside the margin, as far as effects are known to last.

    None where an effect outlasts what the body counts, and runs do not show that it is inside too.
    """
    why, lasting = f"body {_sign(evidence)}, inside the margin", evidence.lasting
    if lasting is None or (lasting.under.lo > 0 and lasting.over.hi < 0):
        return Finding("equivalent", why)
    if lasting.outlasts:
        return None
    limit = f", for effects that last up to {lasting.reach} transactions"
    return Finding("equivalent", why + limit, _still(evidence, lasting.factor))


def _by_runs(lasting: Lasting, seconds: float | None) -> Finding:
    """The verdict where the body decides nothing, and an effect outlasts what it counts."""
    if lasting.surely and (lasting.runs.lo > 0 or lasting.runs.hi < 0):
        return Finding("cost" if lasting.runs.lo > 0 else "gain", "by runs")
    return Finding("inconclusive", "the effect lasts longer than the next transaction", seconds)


def _no_tail_cost(evidence: Evidence) -> bool:
    """Whether nothing shows that the tail makes the arm dear.

    A total above zero does no harm where it is shown to be inside the margin itself.
    """
    return evidence.excess.lo <= 0 and (evidence.total.lo <= 0 or evidence.total_over.hi < 0)


def _tail_cost_shown(evidence: Evidence) -> bool:
    return evidence.excess.lo > 0 or (evidence.total.lo > 0 and not evidence.total_over.hi < 0)


def _told_from_zero(evidence: Evidence) -> Finding:
    """Cost or gain by the body, unless the total is shown to have the other sign."""
    cost = evidence.body.estimate > 0
    if evidence.lasting is not None and evidence.lasting.outlasts:
        runs = evidence.lasting.runs
        if runs.hi < 0 if cost else runs.lo > 0:
            return Finding("inconclusive", "the effect has the other sign when it lasts")
    if evidence.total.hi < 0 if cost else evidence.total.lo > 0:
        return Finding("inconclusive", "the tail outweighs the body")
    return Finding("cost" if cost else "gain", f"p = {evidence.p:.2g}")


def _undecided(evidence: Evidence) -> str:
    if evidence.body.lo <= 0 <= evidence.body.hi:
        return "neither told from zero nor shown to be inside the margin"
    return (
        f"not told from zero after correction for {evidence.family} instruments, nor shown to be "
        "inside the margin"
    )


def _sign(evidence: Evidence) -> str:
    """The side of zero an equivalent arm is on, where its interval tells."""
    if evidence.body.lo > 0:
        return "above zero"
    return "below zero" if evidence.body.hi < 0 else "not told from zero"


def _too_few(blocks: int) -> str:
    return "no whole block" if blocks == 0 else f"only {blocks} whole blocks"


def _until_enough(evidence: Evidence) -> float | None:
    """Until there are MIN_BLOCKS, and decided as well where that can be told already."""
    if not (evidence.blocks > 0 and evidence.seconds > 0):
        return None
    enough = evidence.seconds * (MIN_BLOCKS / evidence.blocks - 1)
    return max(enough, _still(evidence, _until_body(evidence)) or 0.0)


def _until_body(evidence: Evidence) -> float:
    """Equivalence, which an effect not told from zero heads for, needs a clear tail as well."""
    if evidence.body.lo <= 0 <= evidence.body.hi:
        return max(evidence.factor, _until_tail(evidence))
    return evidence.factor


def _until_tail(evidence: Evidence) -> float:
    """Infinite where the tail is known to cost something: more time cannot clear it."""
    return math.inf if _tail_cost_shown(evidence) else evidence.tail_factor


def _still(evidence: Evidence, factor: float) -> float | None:
    if not (math.isfinite(factor) and math.isfinite(evidence.seconds)):
        return None
    # What is enough for 80 % power may have failed this time; then as much again is no bad bet.
    return evidence.seconds * (factor - 1 if factor > 1 else 1.0)
