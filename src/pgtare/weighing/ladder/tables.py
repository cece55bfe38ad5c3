"""The rows of a workload's table, as the terminal and the page show them."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.kit import numbers
from pgtare.weighing import verdict_names
from pgtare.weighing.ladder import wording
from pgtare.weighing.ladder.result import Compared, OnWorkload

#: Columns that a narrow terminal goes without, the first of them first.
LEAST_IMPORTANT = (3, 6, 4)
LEFT = (0, 7)


def headings(alpha: float) -> tuple[str, ...]:
    """Of the table of a workload's comparisons, tested at level α."""
    return (
        "comparison",
        "effect",
        wording.level_interval(alpha),
        "in its unit",
        "p",
        "Holm",
        "rounds to settle",
        "verdict",
    )


@dataclass(frozen=True)
class Row:
    """One row: its cells, and the verdict as a class."""

    cells: tuple[str, ...]
    tone: str
    floor: bool = False


def rows(workload: OnWorkload) -> list[Row]:
    """The comparisons of a workload, the floor last; none of one whose figures do not count."""
    if workload.why_not:
        return []
    found = []
    for c in workload.compared:
        needed = _needed(c) if c.verdict == "inconclusive" else numbers.NONE
        cells = _cells(f"{c.arm} − {c.base}", c, needed, verdict_names.NAMES[c.verdict])
        found.append(Row(cells, c.verdict))
    if (floor := workload.floor) is not None:
        # how wide the interval of no difference at all is, or that so few blocks cannot say
        width = floor.effect.half_width_pct
        last = "cannot say" if width is None else f"± {width:.2f} %"
        cells = _cells(f"floor: {floor.arm}", floor, numbers.NONE, last)
        found.append(Row(cells, "", floor=True))
    return found


def _needed(c: Compared) -> str:
    if c.rounds_to_settle is None:
        return numbers.NONE
    return numbers.count(c.rounds_to_settle)


def _cells(name: str, c: Compared, needed: str, last: str) -> tuple[str, ...]:
    return (
        name,
        wording.pct(c.effect.pct),
        wording.interval(c.effect),
        wording.absolute(c),
        wording.p_text(c.p),
        wording.p_text(c.p_adjusted),
        needed,
        last,
    )


def means(workload: OnWorkload) -> tuple[list[str], list[list[str]]]:
    """Each variant's geometric means, and how far its runs scatter."""
    metrics = list(dict.fromkeys(m for rung in workload.rungs for m in rung.metrics))
    figures = list(dict.fromkeys(name for rung in workload.rungs for name in rung.figures))
    named = [f"{name}, {workload.figure_units.get(name, '')}" for name in figures]
    head = ["variant", *(wording.METRICS[m].heading for m in metrics), *named, "CV %", "evidence"]
    body = [
        [
            rung.variant,
            *(f"{rung.metrics[m]:,.1f}" if m in rung.metrics else numbers.NONE for m in metrics),
            *(wording.figure(rung.figures.get(name)) for name in figures),
            numbers.NONE if rung.cv_pct is None else f"{rung.cv_pct:.2f}",
            rung.evidence,
        ]
        for rung in workload.rungs
    ]
    return head, body


def other_metrics(workload: OnWorkload, alpha: float) -> tuple[list[str], list[list[str]]]:
    """The metrics that are shown next to the tested one."""
    head = [
        "comparison",
        "metric",
        "effect",
        wording.level_interval(alpha),
        "in its unit",
        "p, unadjusted",
    ]
    body = [
        [
            f"{c.arm} − {c.base}",
            wording.METRICS[b.metric].name,
            wording.pct(b.effect.pct),
            wording.interval(b.effect),
            wording.absolute(b),
            wording.p_text(b.p),
        ]
        for c in workload.with_floor
        for b in c.other_metrics
    ]
    return head, body


def profile(workload: OnWorkload, most: int = 6) -> tuple[list[str], list[list[str]]]:
    """The longest waits of a workload's proof."""
    head = ["wait", "share of sessions' time", "share of waits", "a transaction", "mean"]
    body = [
        [
            w.event,
            numbers.percent(100 * w.of_sessions),
            numbers.NONE if w.idle else numbers.percent(100 * w.of_waits),
            f"{w.per_transaction:.3g}",
            numbers.NONE if w.mean_ms is None else numbers.duration(1000 * w.mean_ms),
        ]
        for w in workload.waits[:most]
    ]
    return head, body
