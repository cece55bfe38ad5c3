"""Which conclusions of a published table of rounds stand, and which do not."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich import box
from rich.console import Console
from rich.table import Table

from pgtare.errors import UsageError
from pgtare.estimate import published as estimate
from pgtare.estimate.attainable import attainable_p, rounds_for_level
from pgtare.estimate.power import detectable
from pgtare.instruments.locate import line_of
from pgtare.ladder.wording import p_text
from pgtare.report import numbers


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedEffect(_Model):
    """One delta: arm against base in a regime, in percent, with its two-sided p and rounds.

    better: whether more or less of what was measured is better: of throughput "higher", of a
    latency "lower".
    """

    id: str
    regime: str
    arm: str
    base: str
    pct: float
    better: Literal["higher", "lower"] = "higher"
    rounds: Annotated[int, Field(ge=2)]
    p: Annotated[float, Field(gt=0, le=1)] | None = None
    error_bar_pct: tuple[float, float] | None = None

    @property
    def cost_pct(self) -> float:
        """How much the arm is worse; a gain is below zero."""
        return -self.pct if self.better == "higher" else self.pct


class _Claim(_Model):
    text: str
    effects: tuple[str, ...] = ()


class _OfEffects(_Claim):
    effects: Annotated[tuple[str, ...], Field(min_length=1)]


class UpperBound(_OfEffects):
    """ "At most x %"."""

    kind: Literal["upper_bound"]
    bound_pct: float


class OneSign(_OfEffects):
    """ "All deltas have one sign"."""

    kind: Literal["one_sign"]
    p: float


class NoEffect(_OfEffects):
    """ "No measurable effect"."""

    kind: Literal["no_effect"]


class AllRounds(_Claim):
    """ "k of n rounds on one side", perhaps after a look at fewer."""

    kind: Literal["rounds"]
    positive: int
    rounds: int
    p: float | None = None
    looked_at: int | None = None


class Builds(_OfEffects):
    """A difference between two builds, whose layout differs as well."""

    kind: Literal["builds"]
    layout_sd_pct: float


class Floor(_Claim):
    """A floor from a few runs of one variant, and the CVs seen in the study itself."""

    kind: Literal["floor"]
    cv_pct: float
    runs: int
    seen_cv_pct: tuple[float, float]


Claim = Annotated[
    UpperBound | OneSign | NoEffect | AllRounds | Builds | Floor, Field(discriminator="kind")
]


class Published(_Model):
    """A published table and what was concluded from it."""

    title: str
    source: str
    comparisons: Annotated[int, Field(ge=1)]
    alpha: float = 0.05
    margin_pct: float = 0.5
    effect: tuple[PublishedEffect, ...]
    claim: tuple[Claim, ...]

    def named(self, names: tuple[str, ...]) -> list[PublishedEffect]:
        """Effects by their ids."""
        return [effect for name in names for effect in self.effect if effect.id == name]


class Recovered(_Model):
    """What a published effect amounts to: interval, bound on its cost, and MDE, in percent.

    se_pct, bound_pct: from the least to the largest standard error that goes with its p; interval,
    MDE and equivalence are by the largest.
    """

    id: str
    regime: str
    arm: str
    base: str
    pct: float
    cost_pct: float
    rounds: int
    p: float | None
    attainable_p: float
    se_pct: tuple[float, float] | None
    lo_pct: float | None
    hi_pct: float | None
    bound_pct: tuple[float, float] | None
    mde_pct: float | None
    p_equivalence: float | None


class Judged(_Model):
    """A claim, whether it stands, and why."""

    text: str
    stands: bool
    why: str


class Judgement(_Model):
    """All of it."""

    title: str
    source: str
    comparisons: int
    alpha: float
    margin_pct: float
    effects: tuple[Recovered, ...]
    claims: tuple[Judged, ...]


def read(path: Path) -> Published:
    """A published table from its file. Raises UsageError naming the line of what is wrong."""
    try:
        source = path.read_text(encoding="utf-8")
        document = tomllib.loads(source)
    except OSError as ex:
        raise UsageError(f"cannot read {path}: {ex.strerror}") from ex
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as ex:
        raise UsageError(f"{path}: {ex}") from ex
    try:
        found = Published.model_validate(document)
    except ValidationError as ex:
        error = ex.errors(include_url=False)[0]
        line = line_of(source, error["loc"])
        where = ".".join(str(part) for part in error["loc"])
        raise UsageError(f"{path}, line {line}: {where}: {error['msg']}") from ex
    known = {effect.id for effect in found.effect}
    for i, claim in enumerate(found.claim):
        for name in claim.effects:
            if name not in known:
                line = line_of(source, ("claim", i, "effects"))
                raise UsageError(f"{path}, line {line}: a claim names the effect {name!r}, which "
                                 "is absent")  # fmt: skip
    return found


def judge(published: Published) -> Judgement:
    """What the table says, and which claims it bears."""
    recovered = {e.id: _recover(published, e) for e in published.effect}
    return Judgement(
        title=published.title, source=published.source, comparisons=published.comparisons,
        alpha=published.alpha, margin_pct=published.margin_pct, effects=tuple(recovered.values()),
        claims=tuple(_judge(published, claim, recovered) for claim in published.claim),
    )  # fmt: skip


def show(found: Judgement, console: Console) -> None:
    """Print it."""
    console.print(f"{found.title}\n{found.source}\n", highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("regime", "comparison", "effect", "n", "p", "p at best", "95 % interval",
                  "cost at most", "MDE"):  # fmt: skip
        table.add_column(title, justify="left" if title in ("regime", "comparison") else "right")
    for e in found.effects:
        table.add_row(
            e.regime, f"{e.arm} against {e.base}", _pct(e.pct), str(e.rounds), p_text(e.p),
            _level(e.attainable_p), _interval(e), _range(e.bound_pct, 2),
            "∞" if e.attainable_p > found.alpha / found.comparisons else _plain(e.mde_pct),
        )  # fmt: skip
    console.print(table, highlight=False, markup=False)
    console.print(
        f"\nIntervals (two-sided) and bounds on the cost (one-sided) at 95 %, from effect, p and n "
        f"as if the rounds were normal; a p of few sign flips goes with a range of errors: bounds "
        f"are from its least to its largest, intervals by its largest. Without a p, the wider of "
        f"the published error bars. MDE at 80 % power over {found.comparisons} comparisons.\n",
        highlight=False, markup=False,
    )  # fmt: skip
    for claim in found.claims:
        verdict = "stands" if claim.stands else "does not stand"
        console.print(f"“{claim.text}” {verdict}: {claim.why}", highlight=False, markup=False)


def _recover(published: Published, e: PublishedEffect) -> Recovered:
    least, se = math.nan, math.nan
    if e.p is not None:
        least, se = estimate.recovered_range(e.pct, e.p, e.rounds)
    lo = hi = equivalence = math.nan
    bound = None
    if math.isfinite(se):
        width = estimate.half_width(se, e.rounds)
        lo, hi = e.pct - width, e.pct + width
        low, high = (estimate.upper_bound(e.cost_pct, one, e.rounds) for one in (least, se))
        bound = (low, high)
        equivalence = estimate.equivalence_p(e.pct, se, e.rounds, published.margin_pct)
    elif e.error_bar_pct is not None:
        width = e.error_bar_pct[1]
        lo, hi = e.pct - width, e.pct + width
    mde = detectable(se, e.rounds, published.comparisons, published.alpha)
    return Recovered(
        id=e.id, regime=e.regime, arm=e.arm, base=e.base, pct=e.pct,
        cost_pct=e.cost_pct, rounds=e.rounds, p=e.p,
        attainable_p=attainable_p(e.rounds), se_pct=(least, se) if bound else None,
        lo_pct=_known(lo), hi_pct=_known(hi), bound_pct=bound, mde_pct=_known(mde),
        p_equivalence=_known(equivalence),
    )  # fmt: skip


def _judge(published: Published, claim: Claim, recovered: dict[str, Recovered]) -> Judged:
    effects = [recovered[name] for name in claim.effects]
    match claim:
        case UpperBound():
            stands, why = _upper_bound(claim, effects)
        case OneSign():
            stands, why = _one_sign(published, claim, effects)
        case NoEffect():
            stands, why = _no_effect(published, effects)
        case AllRounds():
            stands, why = _all_rounds(published, claim)
        case Builds():
            stands, why = _builds(published, claim, effects)
        case Floor():
            stands, why = _floor(claim)
    return Judged(text=claim.text, stands=stands, why=why)


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
        told = str(over[0]) if over[0] == over[1] else f"{over[0]} to {over[1]}"
        why += (
            f"; the 95 % bounds exceed {claim.bound_pct:g} % in {told} of {len(known)} comparisons "
            f"(as the errors are that go with their p), and the largest is "
            f"{_range(where.bound_pct, 1)} ({where.arm} in {where.regime})"
        )
    stands = not lacking and all(bound[1] <= claim.bound_pct for bound, _ in known)
    return stands, f"{why}."


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
        f"{sign} just where the base came out {end} of k + 1, by chance once in k + 1; two-sided "
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
        told = " and ".join(str(n) for n in few)
        why += (
            f"; {told} rounds cannot pass α = {level:.2g} whatever the effect (p = "
            f"{_level(attainable_p(few[-1]))} at best; {needed} rounds could)"
        )
    return bool(effects) and len(shown) == len(effects), f"{why}."


def _all_rounds(published: Published, claim: AllRounds) -> tuple[bool, str]:
    p = estimate.sign_p(claim.positive, claim.rounds)
    level = published.alpha / published.comparisons
    stands = p <= level
    why = (
        f"{claim.positive} of {claim.rounds} rounds on one side have p = {p_text(p)}, "
        + ("below" if stands else "above")
        + f" {level:.2g}, which {published.comparisons} comparisons ask for"
    )
    if claim.looked_at is None:
        return stands, why + "."
    best = attainable_p(claim.looked_at)
    if best > published.alpha:
        why += (
            f". The look after {claim.looked_at} rounds could not have ended in a rejection (p = "
            f"{_level(best)} at best), so that going on spent none of the level; but if rounds "
            "were added because the effect looked large, its estimate is too large"
        )
    else:
        stands = False
        why += (
            f". After {claim.looked_at} rounds the study could have stopped with a rejection, so "
            "that p does not hold for the two looks together"
        )
    return stands, why + "."


def _builds(published: Published, claim: Builds, effects: list[Recovered]) -> tuple[bool, str]:
    layout = 1.96 * math.sqrt(2) * claim.layout_sd_pct
    outside = [e for e in effects if abs(e.pct) > layout]
    above = sum(e.pct > 0 for e in effects)
    p = estimate.sign_p(above, len(effects))
    most = max(above, len(effects) - above)
    best = min(e.attainable_p for e in effects)
    return bool(outside), (
        f"{most} of {len(effects)} on one side is p = {p_text(p)}, each has p ≥ "
        f"{_level(best)}, and two builds differ in layout as well: at "
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


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _level(p: float) -> str:
    return f"{p:.3g}".removeprefix("0")


def _pct(value: float) -> str:
    return f"{numbers.signed(value, 2)} %"


def _plain(value: float | None) -> str:
    return numbers.NONE if value is None else f"{value:.2f} %"


def _range(ends: tuple[float, float] | None, places: int) -> str:
    if ends is None:
        return numbers.NONE
    low, high = (f"{end:.{places}f}" for end in ends)
    return f"{high} %" if low == high else f"{low} to {high} %"


def _interval(e: Recovered) -> str:
    if e.lo_pct is None or e.hi_pct is None:
        return numbers.NONE
    return f"[{numbers.signed(e.lo_pct, 2)}, {numbers.signed(e.hi_pct, 2)}]"
