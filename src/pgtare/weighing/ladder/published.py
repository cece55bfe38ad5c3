"""Which conclusions of a published table of rounds are supported, and which are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table

from pgtare.estimate.study import published as estimate
from pgtare.estimate.study.attainable import attainable_p
from pgtare.estimate.study.power import detectable
from pgtare.kit import numbers
from pgtare.kit.document import Document
from pgtare.weighing.ladder.published_claims import (
    Judged,
    Recovered,
    judge_claim,
    level_text,
    spread,
)
from pgtare.weighing.ladder.published_table import Published, PublishedEffect
from pgtare.weighing.ladder.wording import p_text

#: The columns whose cells are words, which may be folded; they come first.
_WORDS = 2
#: Columns that a narrow terminal goes without, the first of them first.
_LEAST_IMPORTANT = (5, 8, 3, 4, 7, 6, 0)


class Judgement(Document):
    """A published table, and which of its conclusions are supported."""

    schema_: Literal["pgtare.ladder.published/1"] = Field(
        default="pgtare.ladder.published/1", alias="schema", description="name and version"
    )
    title: str = Field(description="title of the table")
    source: str = Field(description="where it was published")
    comparisons: int = Field(description="comparisons that the correction allows for")
    alpha: float = Field(description="level of the tests over all of them")
    margin_pct: float = Field(description="margin of equivalence")
    effects: tuple[Recovered, ...] = Field(description="effect by effect")
    claims: tuple[Judged, ...] = Field(description="claim by claim")


def judge(published: Published) -> Judgement:
    """What the table says, and which claims it supports."""
    recovered = {e.id: _recover(published, e) for e in published.effect}
    return Judgement(
        title=published.title,
        source=published.source,
        comparisons=published.comparisons,
        alpha=published.alpha,
        margin_pct=published.margin_pct,
        effects=tuple(recovered.values()),
        claims=tuple(judge_claim(published, claim, recovered) for claim in published.claim),
    )


def show(found: Judgement, console: Console) -> None:
    """Print it."""
    console.print(f"{found.title}\n{found.source}\n", highlight=False, markup=False)
    head = (
        "regime",
        "comparison",
        "effect",
        "n",
        "p",
        "p at best",
        "95 % interval",
        "cost at most",
        "MDE",
    )
    body = [
        (
            e.regime,
            f"{e.arm} against {e.base}",
            _pct(e.pct),
            str(e.rounds),
            p_text(e.p),
            level_text(e.attainable_p),
            _interval(e),
            spread(e.bound_pct, 2),
            "∞" if e.attainable_p > found.alpha / found.comparisons else _plain(e.mde_pct),
        )
        for e in found.effects
    ]
    shown = list(range(len(head)))
    for i in _LEAST_IMPORTANT:
        # words may fold, figures may not
        if sum(3 + _narrowest(column, head, body) for column in shown) <= console.width:
            break
        shown.remove(i)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i in shown:
        table.add_column(head[i], justify="left" if i < _WORDS else "right", overflow="fold")
    for row in body:
        table.add_row(*(row[i] for i in shown))
    console.print(table, highlight=False, markup=False)
    console.print(
        f"\nIntervals (two-sided) and bounds on the cost (one-sided) at 95 %, from effect, p and n "
        f"as if the rounds were normal; a p of few sign flips goes with a range of errors: bounds "
        f"are from its least to its largest, intervals by its largest. Without a p, the wider of "
        f"the published error bars. MDE at 80 % power over {found.comparisons} comparisons.\n",
        highlight=False,
        markup=False,
    )
    for claim in found.claims:
        verdict = "is supported" if claim.supported else "is not supported"
        console.print(f"“{claim.text}” {verdict}: {claim.why}", highlight=False, markup=False)


def _narrowest(column: int, head: Sequence[str], body: Sequence[Sequence[str]]) -> int:
    cells = [head[column], *(row[column] for row in body)]
    return max(len(word) for cell in cells for word in (cell.split() or [""]))


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
        id=e.id,
        regime=e.regime,
        arm=e.arm,
        base=e.base,
        pct=e.pct,
        cost_pct=e.cost_pct,
        rounds=e.rounds,
        p=e.p,
        attainable_p=attainable_p(e.rounds),
        se_pct=(least, se) if bound else None,
        lo_pct=_known(lo),
        hi_pct=_known(hi),
        bound_pct=bound,
        mde_pct=_known(mde),
        p_equivalence=_known(equivalence),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _pct(value: float) -> str:
    return f"{numbers.signed(value, 2)} %"


def _plain(value: float | None) -> str:
    return numbers.NONE if value is None else f"{value:.2f} %"


def _interval(e: Recovered) -> str:
    if e.lo_pct is None or e.hi_pct is None:
        return numbers.NONE
    return f"[{numbers.signed(e.lo_pct, 2)}, {numbers.signed(e.hi_pct, 2)}]"
