"""What must be read before the figures: a partial trial, a control that is off or misses 0."""

from __future__ import annotations

from pgtare.estimate.trial.answer import ReasonKind
from pgtare.kit import numbers
from pgtare.weighing.weigh.report import wording
from pgtare.weighing.weigh.schema import WeighResult

_STOPPED_BY = {
    "decision": "the limits were decided",
    "time": "the planned time was up",
    "precision": "the requested precision was reached",
    "interrupt": "it was interrupted",
    "server": "the server ended it",
}

_OFF_WITHHOLDS = "No verdict is given, as what moved it may have moved the other arms as well."
_MISS_WITHHOLDS = "One good trial in twenty has this; what it could explain gets no verdict."


def alarms(result: WeighResult) -> list[str]:
    """What must be read before the figures: a partial trial, a control off or missing 0."""
    design = result.design
    found = []
    if wording.ended_by_server(result):
        found.append(
            f"THE TRIAL ENDED EARLY: {_why_ended(result)}, after "
            f"{numbers.seconds(design.duration_s)} of {numbers.seconds(design.planned_s)}. "
            "No figure is given."
        )
    elif design.partial:
        found.append(
            f"PARTIAL: {_STOPPED_BY[design.stopped_by]} after {numbers.seconds(design.duration_s)} "
            f"of {numbers.seconds(design.planned_s)}; the figures cover that part only."
        )
    for arm in wording.of_role(result, "control"):
        answer, effect = wording.answer_of(arm), wording.figures(arm)
        off = wording.control_off(arm) or _all_withheld(result)
        misses = wording.control_misses_0(arm)
        if answer is not None and effect is not None and (off or misses):
            # the total alone may be what misses 0
            by_total = numbers.covers_zero(answer.us) and not numbers.covers_zero(effect.total_us)
            by_total = by_total and misses
            how = ", by its total" if by_total else ""
            found.append(
                f"THE CONTROL {'IS OFF' if off else 'MISSES 0'}: the base measured again differs "
                f"from the base{how} "
                f"({numbers.with_bounds(effect.total_us if by_total else answer.us, 'µs')}). "
                + (_OFF_WITHHOLDS if off else _MISS_WITHHOLDS)
            )
    return found


def _all_withheld(result: WeighResult) -> bool:
    """Whether the control leaves no arm a verdict."""
    return any(
        reason.kind is ReasonKind.CONTROL_OFF
        for arm in wording.of_role(result, "instrument")
        if arm.answer is not None
        for reason in arm.answer.reasons
    )


def _why_ended(result: WeighResult) -> str:
    """Why the server ended the trial, as far as the result tells more than that it did."""
    for arm in result.arms:
        for reason in arm.answer.reasons if arm.answer else ():
            if reason.kind is ReasonKind.ENDED_EARLY and reason.text:
                return reason.text.rstrip(".")
    return _STOPPED_BY["server"]
