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


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on; times in microseconds."""

    proven: bool  # the instrument was seen to run in its arm
    blocks: int
    body: Estimate  # the effect's body, with its 95 % interval
    equivalence: Estimate  # the same with its 90 % interval
    margin_us: float
    tail_bound: float  # one-sided 95 % upper bound of the rate ratio
    p: float  # adjusted over the family, where the arm belongs to it
    seconds: float  # length of the trial
    factor: float  # by which it must lengthen for the body to be decided
    tail_factor: float  # by which it must lengthen for the tail to be cleared


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
    if not evidence.proven:
        return Finding("not_verified", "no proof that it ran")
    if evidence.blocks < MIN_BLOCKS:
        return Finding("inconclusive", _too_few(evidence.blocks), _until_enough(evidence))
    if not (math.isfinite(evidence.body.lo) and math.isfinite(evidence.body.hi)):
        return Finding("inconclusive", "the effect could not be estimated")
    inside = (
        evidence.margin_us > 0
        and evidence.equivalence.lo > -evidence.margin_us
        and evidence.equivalence.hi < evidence.margin_us
    )
    if inside and evidence.tail_bound <= TAIL_TOLERANCE:
        return Finding("equivalent", f"body {_sign(evidence)}, inside the margin")
    if evidence.p < ALPHA:
        verdict: Verdict = "cost" if evidence.body.estimate > 0 else "gain"
        return Finding(verdict, f"p = {evidence.p:.2g}")
    if inside:
        return Finding("inconclusive", "tail", _still(evidence, evidence.tail_factor))
    reason = "neither told from zero nor shown to be inside the margin"
    return Finding("inconclusive", reason, _still(evidence, evidence.factor))


def _sign(evidence: Evidence) -> str:
    """The side of zero an equivalent arm is on, where its interval tells."""
    if evidence.body.lo > 0:
        return "above zero"
    return "below zero" if evidence.body.hi < 0 else "not told from zero"


def _too_few(blocks: int) -> str:
    return "no whole block" if blocks == 0 else f"only {blocks} whole blocks"


def _until_enough(evidence: Evidence) -> float | None:
    if not (evidence.blocks > 0 and evidence.seconds > 0):
        return None
    return evidence.seconds * (MIN_BLOCKS / evidence.blocks - 1)


def _still(evidence: Evidence, factor: float) -> float | None:
    if not (math.isfinite(factor) and math.isfinite(evidence.seconds)):
        return None
    # What is enough for 80 % power may have failed this time; then as much again is no bad bet.
    return evidence.seconds * (factor - 1 if factor > 1 else 1.0)
