"""The table of a result as strings, one row an arm; the terminal and the page lay it out."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.kit import numbers
from pgtare.weighing.weigh.report import contention, wording
from pgtare.weighing.weigh.schema import ArmResult, WeighResult


@dataclass(frozen=True)
class Row:
    """One arm. tone: the verdict that its answer is to look like, empty for none.

    cells: by column; differences from the base, and in percent of the base's mean.
    """

    arm: ArmResult
    tone: str
    cells: dict[str, str]


#: The columns with their headings, in reading order. Those of the answer are there even without a
#: figure.
ANSWER = {
    "name": "instrument",
    "us": "µs",
    "interval_us": "95 % interval",
    "pct": "%",
    "answer": "answer",
}
DETAILS = {
    "p50_us": "median µs",
    "tail_us": "tail µs",
    "p99_us": "p99 µs",
    "cpu_us": "CPU µs",
    "proof": "proof",
}


_PROOFS = dict.fromkeys(("own", "unknown", "unseen"), "in force")


def headings(result: WeighResult) -> dict[str, str]:
    """The columns of the answer."""
    found = dict(ANSWER)
    if result.design.outside is None:
        return found
    if result.compares_servers:
        found["name"] = "server"
    answer = found.pop("answer")
    return {**found, "waiting_us": "if it waits", "answer": answer}


def table(result: WeighResult) -> list[Row]:
    """Instruments by descending cost, then injected delays, the control last."""
    arms = [
        *wording.by_cost(wording.of_role(result, "instrument")),
        *wording.of_role(result, "injected"),
        *wording.of_role(result, "control"),
    ]
    ended = wording.ended_by_server(result)
    return [_row(arm, result, proven=arm.role == "instrument" and not ended) for arm in arms]


def _row(arm: ArmResult, result: WeighResult, proven: bool) -> Row:
    answer = None if wording.ended_by_server(result) else wording.answer_of(arm)
    effect = wording.figures(arm) if answer else None
    us, state = answer.us if answer else None, wording.proof_state(arm)
    # without an interval the tail is not judged, and a figure alone would look as if it were
    tail = effect.excess_us if effect and numbers.bounded(effect.excess_us) else None
    cells = {
        "name": _name(arm, result),
        "us": numbers.estimate(us),
        "interval_us": numbers.bounds(us),
        "pct": numbers.estimate(answer.pct if answer else None),
        # from outside: for a session that waits for its client
        "waiting_us": numbers.plus_minus(answer.waiting_us if answer else None),
        "answer": wording.verdict_cell(arm, result),
        "p50_us": numbers.estimate(effect.p50_us if effect else None),
        "tail_us": numbers.estimate(tail),
        "p99_us": numbers.estimate(effect.p99_us if effect else None),
        "cpu_us": numbers.estimate(effect.cpu_us if effect else None),
        "proof": (proven and _PROOFS.get(state, state)) or numbers.NONE,
    }
    return Row(arm, _tone(arm), cells)


def _tone(arm: ArmResult) -> str:
    if arm.role != "control":
        return arm.verdict or ""
    return "inconclusive" if wording.control_misses_0(arm) else ""


def _name(arm: ArmResult, result: WeighResult) -> str:
    if arm.role == "control":
        again = f"{result.arms[0].name} again" if result.compares_servers else ""
        return f"control ({again or 'nothing changed'})"
    if contention.figures(result) is not None and arm.role == "instrument":
        return f"{arm.name}, when all sessions have it on"
    return arm.name
