"""Where the cost of an instrument falls, in words and as a table; terminal and page print both."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.schema import Contention, WeighResult


def figures(result: WeighResult) -> Contention | None:
    """The contention of the result, or None if there is none or it may not be shown."""
    found = result.contention
    return None if found is None or found.state == "not_verified" else found


def sentence(found: Contention) -> str:
    """What may be said of it, in one or two sentences."""
    if found.state == "inconclusive":
        return f"What {found.name} costs other sessions: inconclusive; {found.reason}."
    us, pct = numbers.with_bounds(found.spillover_us, "µs"), numbers.estimate(found.spillover_pct)
    spillover = f"{us} ({pct} %)"
    if found.state == "spillover" and (found.spillover_us.hi or 0.0) < 0:
        return (
            f"Sessions without {found.name} are faster where half of them have it: {spillover}. "
            "That is no saving of its own."
        )
    if found.state == "spillover":
        return (
            f"Part of the cost of {found.name} falls on others: where half of the sessions have "
            f"it, those without it take {spillover} more."
        )
    return f"That {found.name} slows sessions that have it not is not shown: {spillover}."


def rows(result: WeighResult, found: Contention) -> list[tuple[str, Interval, Interval | None]]:
    """What, its cost in µs and, of two of them, in percent. The first is the answer."""
    answers = [arm.answer for arm in result.arms if arm.name == found.name]
    total = [("when all sessions have it on", one.us, one.pct) for one in answers if one]
    return [
        *total,
        ("on the sessions that have it, if half do", found.own_us, None),
        ("on those that have it not", found.spillover_us, found.spillover_pct),
    ]


@dataclass(frozen=True)
class View:
    """A table of what, cost in µs, interval and share in %; what it is made of, and assumes."""

    rows: list[tuple[str, str, str, str]]
    basis: str
    assumptions: list[str]
    headings: tuple[str, ...] = ("where the cost falls", "µs", "95 % interval", "%")


def view(result: WeighResult) -> View | None:
    """Where the cost falls, if that may be shown."""
    found, slices = figures(result), result.design.slices
    if found is None:
        return None
    guard = "the guard" if slices is None else f"the guard of {slices.guard_us / 1000:g} ms"
    return View(
        [
            (text, numbers.estimate(us), numbers.bounds(us), numbers.estimate(pct))
            for text, us, pct in rows(result, found)
        ],
        f"Below the pooled 99.9th percentile, against {numbers.duration(found.base_us)} in slices "
        f"without it; {numbers.count(found.n_base)} transactions in slices of the base, "
        f"{numbers.count(found.n_instrument)} in slices of {found.name}, "
        f"{numbers.count(found.n_mixed)} in mixed ones, in {numbers.count(found.blocks)} blocks "
        f"of slices ({numbers.count(found.blocks_discarded)} discarded).",
        [
            f"What sessions do to each other ends within {guard} after a switch, and nothing that "
            "an instrument sets going in the background outlives it.",
            "The load requests the same in all slices.",
            "Spillover is that of a mix in which half of the sessions have the instrument; total "
            "is of all of them, as they come: when what is slow gets slower, slices of the "
            "instrument hold fewer slow transactions. So the rows do not add up, and the rest is "
            "no measure of contention.",
        ],
    )
