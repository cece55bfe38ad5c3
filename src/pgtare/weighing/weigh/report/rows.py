"""The table of a result as strings, one row an arm; the terminal and the page lay it out."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing import verdict_names
from pgtare.weighing.weigh.report import evidence, wording
from pgtare.weighing.weigh.schema import ArmResult, WeighResult


@dataclass(frozen=True)
class Row:
    """One arm's cells. Effects are differences from the base; `pct` is of the base's body."""

    arm: ArmResult
    name: str
    cost_us: str
    interval_us: str
    cost_pct: str
    tail_us: str
    by_runs: str
    p99_us: str
    cpu_us: str
    verdict: str
    tone: str  # the verdict that the cell is to look like, empty for none
    proof: str


#: The columns as field -> heading, in reading order.
COLUMNS = {
    "name": "instrument",
    "cost_us": "cost µs",
    "interval_us": "95 % interval",
    "cost_pct": "cost %",
    "tail_us": "tail µs",
    "by_runs": "by runs µs",
    "p99_us": "p99 µs",
    "cpu_us": "CPU µs",
    "verdict": "verdict",
    "proof": "proof",
}


def headings(result: WeighResult) -> dict[str, str]:
    """COLUMNS with the result's own level of confidence, and runs if there were any."""
    level = f"{100 * result.design.confidence:g} % interval"
    found = {**COLUMNS, "interval_us": level}
    if not result.design.runs:
        del found["by_runs"]
    return found


def table(result: WeighResult) -> list[Row]:
    """Instruments by descending cost, then injected delays, the control last."""
    arms = [
        *wording.by_cost(wording.of_role(result, "instrument")),
        *wording.of_role(result, "injected"),
        *wording.of_role(result, "control"),
    ]
    ended = wording.ended_by_server(result)
    return [_row(arm, proven=arm.role == "instrument" and not ended) for arm in arms]


def _row(arm: ArmResult, proven: bool) -> Row:
    effect = wording.figures(arm)
    verdict, tone = _verdict(arm)
    return Row(
        arm=arm,
        name=_name(arm),
        cost_us=numbers.estimate(effect.body_us if effect else None),
        interval_us=numbers.bounds(effect.body_us if effect else None),
        cost_pct=numbers.estimate(effect.body_pct if effect else None),
        tail_us=_tail(effect.excess_us) if effect else numbers.NONE,
        by_runs=_by_runs(effect.runs_us) if effect else numbers.NONE,
        p99_us=numbers.estimate(effect.p99_us if effect else None),
        cpu_us=numbers.estimate(effect.cpu_us if effect else None),
        verdict=verdict,
        tone=tone,
        proof=(proven and evidence.word(arm)) or numbers.NONE,
    )


def _tail(excess: Interval) -> str:
    """Without an interval the tail is not judged, and a figure alone would look as if it were."""
    return numbers.estimate(excess) if numbers.bounded(excess) else numbers.NONE


def _by_runs(runs: Interval | None) -> str:
    """With its interval, which is wider than the cost's."""
    return wording.with_bounds(runs, unit="") if runs and numbers.bounded(runs) else numbers.NONE


def _verdict(arm: ArmResult) -> tuple[str, str]:
    """The verdict in words, and the one it is to look like; the control is only a check."""
    effect = wording.figures(arm)
    if arm.role != "control" or effect is None:
        return (
            verdict_names.NAMES[arm.verdict] if arm.verdict else numbers.NONE
        ), arm.verdict or ""
    if not numbers.bounded(effect.body_us):
        return numbers.NONE, ""
    if wording.control_misses_0(arm):
        return ("off" if wording.control_off(arm) else "misses 0"), "inconclusive"
    return ("covers 0" if numbers.covers_zero(effect.body_us) else "near 0"), ""


def _name(arm: ArmResult) -> str:
    return f"{arm.name} (base again)" if arm.role == "control" else arm.name
