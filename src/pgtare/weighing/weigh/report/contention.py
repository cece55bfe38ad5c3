"""Where the cost of an instrument falls, in words and as a table; terminal and page print both."""

from __future__ import annotations

from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.schema import Contention, WeighResult

#: The rows of the table: field, and what it is.
ROWS = {
    "total_us": "in all sessions: total",
    "own_us": "on the transaction itself",
    "carry_over_us": "on its session's next ones",
    "spillover_us": "on other sessions' base transactions",
}

STATES = {
    "spillover": "spillover",
    "not_shown": "no spillover shown",
    "none": "none, as it should be",
    "not_separable": "not separable",
    "inconclusive": "inconclusive",
    "not_verified": "not verified",
}


def figures(result: WeighResult) -> Contention | None:
    """The contention of the result, or None if there is none or it may not be shown."""
    found = result.contention
    return None if found is None or found.state == "not_verified" else found


def sentence(found: Contention) -> str:
    """What may be said of it, in one or two sentences."""
    if found.state == "inconclusive":
        return f"What {found.name} costs other sessions: inconclusive; {found.reason}."
    total = (
        f"With {found.name} in all sessions a transaction takes {_amount(found.total_us)} "
        f"({_share(found.total_pct)}) more"
    )
    spillover = f"{_amount(found.spillover_us)} ({_share(found.spillover_pct)})"
    if found.state == "spillover":
        return (
            f"{total}. Part of it falls on others: where half of the transactions carry it, those "
            f"without it take {spillover} more."
        )
    if found.state == "not_shown":
        return f"{total}. That it slows other sessions is not shown: {spillover}."
    if found.state == "none":
        return (
            f"{total}. With one session there is nobody to slow down, and indeed no spillover is "
            f"seen: {spillover}."
        )
    return (
        f"{total}. Not separable: one session has nobody to slow down, and yet a spillover of "
        f"{spillover} is seen, so effects last longer here than the model follows them."
    )


def table(found: Contention) -> list[tuple[str, str, str, str]]:
    """Rows of what, cost in µs, its interval and its share in %; the share of two of them."""
    shares = {"total_us": found.total_pct, "spillover_us": found.spillover_pct}
    return [
        (
            text,
            numbers.estimate(getattr(found, field)),
            numbers.bounds(getattr(found, field)),
            numbers.estimate(shares.get(field)),
        )
        for field, text in ROWS.items()
    ]


def headings(result: WeighResult) -> tuple[str, str, str, str]:
    """Of the table."""
    level = f"{100 * result.design.confidence:g} % interval"
    return "where the cost falls", "µs", level, "%"


def basis(result: WeighResult, found: Contention) -> str:
    """What the table is made of."""
    return (
        f"Below the pooled 99.9th percentile, against {numbers.duration(found.base_us)} in slices "
        f"without it; {numbers.count(found.n_base)} transactions in slices of the base, "
        f"{numbers.count(found.n_instrument)} in slices of {found.name}, "
        f"{numbers.count(found.n_mixed)} in mixed ones, in {numbers.count(found.blocks)} blocks "
        f"of slices ({numbers.count(found.blocks_discarded)} discarded)."
    )


def assumptions(result: WeighResult, found: Contention) -> list[str]:
    """What must hold for the figures to mean what they say."""
    slices = result.design.slices
    guard = "the guard" if slices is None else f"the guard of {slices.guard_us / 1000:g} ms"
    lines = [
        f"What sessions do to each other ends within {guard} after a switch, and nothing that an "
        "instrument sets going in the background outlives it.",
        "The load requests the same in all slices.",
        "Spillover is that of a mix in which half of the transactions carry the instrument; total "
        "is of all of them, as they come: when what is slow gets slower, slices of the instrument "
        "hold fewer slow transactions. So the rows do not add up, and the rest is no measure of "
        "contention.",
    ]
    if found.sessions > 1:
        lines.append(
            "Negative control: the same command with --clients 1 must show no spillover; if it "
            "does, what is seen here may be the session's own."
        )
    return lines


def _amount(interval: Interval) -> str:
    return f"{numbers.estimate(interval)} µs {numbers.bounds(interval)}"


def _share(interval: Interval) -> str:
    return f"{numbers.estimate(interval)} %"
