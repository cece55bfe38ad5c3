"""Whether the effects that a published claim names support it, and why."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from pgtare.estimate.study import published as estimate
from pgtare.estimate.study.attainable import attainable_p, rounds_for_level
from pgtare.kit import numbers
from pgtare.weighing.ladder.published_table import (
    AllRounds,
    Builds,
    Claim,
    Floor,
    NoEffect,
    OneSign,
    Published,
    UpperBound,
)
from pgtare.weighing.ladder.wording import p_text


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Recovered(_Model):
    """What a published effect amounts to."""

    id: str = Field(description="its name in the study file")
    regime: str = Field(description="its regime")
    arm: str = Field(description="its variant")
    base: str = Field(description="what that is compared with")
    pct: float = Field(description="the effect as published")
    cost_pct: float = Field(description="the same as a cost: positive if the variant is slower")
    rounds: int = Field(description="rounds that it rests on")
    p: float | None = Field(description="its p-value as published")
    attainable_p: float = Field(description="the smallest p-value that its rounds can reach")
    se_pct: tuple[float, float] | None = Field(
        description="least and largest standard error that goes with its p-value"
    )
    lo_pct: float | None = Field(description="lower end of its 95 % interval, by the largest")
    hi_pct: float | None = Field(description="upper end of that interval")
    bound_pct: tuple[float, float] | None = Field(
        description="what it costs at most, by the least and by the largest standard error"
    )
    mde_pct: float | None = Field(description="smallest effect found with 80 % power")
    p_equivalence: float | None = Field(description="p-value of the test of equivalence")


class Judged(_Model):
    """A claim."""

    text: str = Field(description="what it says")
    supported: bool = Field(description="whether the table supports it")
    why: str = Field(description="why, or why not")


def judge_claim(published: Published, claim: Claim, recovered: dict[str, Recovered]) -> Judged:
    """Judge one claim; recovered: what each effect of the table amounts to, by its id."""
    effects = [recovered[name] for name in claim.effects]
    match claim:
        case UpperBound():
            supported, why = _upper_bound(claim, effects)
        case OneSign():
            supported, why = _one_sign(published, claim, effects)
        case NoEffect():
            supported, why = _no_effect(published, effects)
        case AllRounds():
            supported, why = _all_rounds(published, claim)
        case Builds():
            supported, why = _builds(published, claim, effects)
        case Floor():
            supported, why = _floor(claim)
    return Judged(text=claim.text, supported=supported, why=why)


def _upper_bound(claim: UpperBound, effects: list[Recovered]) -> tuple[bool, str]:
    known = [(e.bound_pct, e) for e in effects if e.bound_pct is not None]
    largest = max(e.cost_pct for e in effects)
    why = (
        f"the largest point estimate of a cost is {largest:.2f} %, and a point estimate is no bound"
    )
    if lacking := len(effects) - len(known):
        why += f"; {lacking} of {len(effects)} have no p-value, and so no bound at all"
    if known:
        _, where = max(known, key=lambda item: item[0][1])
        over = [sum(bound[end] > claim.bound_pct for bound, _ in known) for end in (0, 1)]
        n = numbers.span(*map(str, over))
        why += (
            f"; the 95 % bounds exceed {claim.bound_pct:g} % in {n} of {len(known)} comparisons "
            f"(as the errors are that go with their p), and the largest is "
            f"{spread(where.bound_pct, 1)} ({where.arm} in {where.regime})"
        )
    supported = not lacking and all(bound[1] <= claim.bound_pct for bound, _ in known)
    return supported, f"{why}."


def _one_sign(published: Published, claim: OneSign, effects: list[Recovered]) -> tuple[bool, str]:
    signs = {math.copysign(1, e.pct) if e.pct else 0.0 for e in effects}
    if len(signs) > 1 or 0.0 in signs:
        return False, "they do not have one sign."
    groups: dict[tuple[str, str], int] = {}
    for e in effects:
        groups[e.regime, e.base] = groups.get((e.regime, e.base), 0) + 1
    sizes = sorted(groups.values())
    p = estimate.one_sign_p(sizes)
    by_size = {size: sizes.count(size) for size in dict.fromkeys(sizes)}
    chances = " × ".join(f"(1/{size + 1})^{n}" for size, n in by_size.items())
    shared = " and ".join(f"{size} in {n}" for size, n in by_size.items())
    sign, end = ("positive", "lowest") if signs == {1.0} else ("negative", "highest")
    return p <= published.alpha, (
        f"{claim.p:g} counts {len(effects)} deltas as fresh coins, but those that share a base are "
        f"dependent ({shared} of {len(groups)} groups): all deltas of a base with k arms are "
        f"{sign} exactly if the base came out {end} of k + 1, by chance once in k + 1; two-sided "
        f"p = 2 × {chances} = {p_text(p)}."
    )


def _no_effect(published: Published, effects: list[Recovered]) -> tuple[bool, str]:
    shown = [
        e for e in effects if e.p_equivalence is not None and e.p_equivalence <= published.alpha
    ]
    mdes = [e.mde_pct for e in effects if e.mde_pct is not None]
    needed = rounds_for_level(published.alpha, published.comparisons)
    why = f"{len(shown)} of {len(effects)} are shown to lie within ±{published.margin_pct:g} %"
    if mdes:
        why += (
            f"; what could have been detected over {published.comparisons} comparisons is "
            f"{min(mdes):.1f} to {max(mdes):.1f} %"
        )
    level = published.alpha / published.comparisons
    if few := sorted({e.rounds for e in effects if e.attainable_p > level}):
        listed = " and ".join(str(n) for n in few)
        why += (
            f"; {listed} rounds cannot pass α = {level:.2g} whatever the effect (p = "
            f"{level_text(attainable_p(few[-1]))} at best; {needed} rounds could)"
        )
    return bool(effects) and len(shown) == len(effects), f"{why}."


def _all_rounds(published: Published, claim: AllRounds) -> tuple[bool, str]:
    p = estimate.sign_p(claim.positive, claim.rounds)
    level = published.alpha / published.comparisons
    supported = p <= level
    why = (
        f"{claim.positive} of {claim.rounds} rounds on one side have p = {p_text(p)}, "
        + ("below" if supported else "above")
        + f" {level:.2g}, which {published.comparisons} comparisons require"
    )
    if claim.looked_at is None:
        return supported, why + "."
    best = attainable_p(claim.looked_at)
    if best > published.alpha:
        why += (
            f". The look after {claim.looked_at} rounds could not have ended in a rejection (p = "
            f"{level_text(best)} at best), so that going on spent none of the level; but if rounds "
            "were added because the effect looked large, its estimate is too large"
        )
    else:
        supported = False
        why += (
            f". After {claim.looked_at} rounds the study could have stopped with a rejection, so "
            "that p does not hold for the two looks together"
        )
    return supported, why + "."


def _builds(published: Published, claim: Builds, effects: list[Recovered]) -> tuple[bool, str]:
    layout = 1.96 * math.sqrt(2) * claim.layout_sd_pct
    outside = [e for e in effects if abs(e.pct) > layout]
    above = sum(e.pct > 0 for e in effects)
    p = estimate.sign_p(above, len(effects))
    most = max(above, len(effects) - above)
    best = min(e.attainable_p for e in effects)
    return bool(outside), (
        f"{most} of {len(effects)} on one side is p = {p_text(p)}, each has p ≥ "
        f"{level_text(best)}, and two builds differ in layout as well: at "
        f"{claim.layout_sd_pct:g} % SD of layout one pair of builds says no more than ±"
        f"{layout:.1f} %, and the largest delta is {max(abs(e.pct) for e in effects):.2f} %."
    )


def _floor(claim: Floor) -> tuple[bool, str]:
    lo, hi = estimate.spread_interval(claim.cv_pct, claim.runs)
    low, high = claim.seen_cv_pct
    return high <= claim.cv_pct, (
        f"{claim.runs} runs give a CV of {claim.cv_pct:g} % no closer than {lo:.2f} to {hi:.2f} %, "
        f"and the interleaved runs scattered by {low:g} to {high:g} %."
    )


def level_text(p: float) -> str:
    """A level or p as papers write it: .0625."""
    return f"{p:.3g}".removeprefix("0")


def spread(ends: tuple[float, float] | None, places: int) -> str:
    """Both ends, or the one if they are alike: 0.38 to 1.29 %."""
    if ends is None:
        return numbers.NONE
    low, high = (f"{end:.{places}f}" for end in ends)
    return f"{numbers.span(low, high)} %"
