"""The table of a result as strings, one row an arm; the terminal and the page lay it out."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.report import numbers, wording
from pgtare.report.schema import ArmResult, WeighResult


@dataclass(frozen=True)
class Row:
    """One arm's cells. Effects are differences from the base; `pct` is of the base's mean."""

    arm: ArmResult
    name: str
    cost_us: str
    interval_us: str
    cost_pct: str
    tail_us: str
    p99_us: str
    cpu_us: str
    verdict: str
    proof: str
    evidence: str


#: The columns as field -> heading, in reading order.
COLUMNS = {
    "name": "instrument",
    "cost_us": "cost µs",
    "interval_us": "95 % interval",
    "cost_pct": "cost %",
    "tail_us": "tail µs",
    "p99_us": "p99 µs",
    "cpu_us": "CPU µs",
    "verdict": "verdict",
    "proof": "proof",
}


def headings(result: WeighResult) -> dict[str, str]:
    """COLUMNS with the result's own level of confidence."""
    level = f"{100 * result.design.confidence:g} % interval"
    return {**COLUMNS, "interval_us": level}


def table(result: WeighResult) -> list[Row]:
    """Instruments by descending cost, then injected delays, the control last."""
    arms = [
        *wording.by_cost(wording.of_role(result, "instrument")),
        *wording.of_role(result, "injected"),
        *wording.of_role(result, "control"),
    ]
    return [_row(arm) for arm in arms]


def _row(arm: ArmResult) -> Row:
    effect = wording.figures(arm)
    return Row(
        arm=arm,
        name=_name(arm),
        cost_us=numbers.estimate(effect.body_us if effect else None),
        interval_us=numbers.bounds(effect.body_us if effect else None),
        cost_pct=numbers.estimate(effect.body_pct if effect else None),
        tail_us=numbers.estimate(effect.excess_us if effect else None),
        p99_us=numbers.estimate(effect.p99_us if effect else None),
        cpu_us=numbers.estimate(effect.cpu_us if effect else None),
        verdict=wording.VERDICTS[arm.verdict] if arm.verdict else numbers.NONE,
        proof=arm.proof.state if arm.proof else numbers.NONE,
        evidence=arm.proof.evidence if arm.proof else "",
    )


def _name(arm: ArmResult) -> str:
    return f"{arm.name} (base again)" if arm.role == "control" else arm.name
