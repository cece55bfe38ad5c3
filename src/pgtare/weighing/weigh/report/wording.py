"""What a result says in sentences; the terminal and the page print the same ones."""

from __future__ import annotations

import math

from pgtare.estimate.trial.verdict import CONTROL_OFF
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.report import bounds, evidence, traffic
from pgtare.weighing.weigh.schema import ArmResult, DesignInfo, Effect, WeighResult

_SHARED_LOCKS = (
    "Locks that every arm shares: if an instrument makes others wait, the base arm waits too."
)
_ALWAYS_NOT_SHOWN = (
    "Work put off until after the answer or done by others, such as flushing statistics and the "
    "logging process; CPU per cycle shows the part in the same backend.",
    "Delay before the request is read: waking up and waiting for a processor.",
)

STOPPED_BY = {
    "time": "the planned time was up",
    "precision": "the requested precision was reached",
    "interrupt": "it was interrupted",
    "server": "the server ended it",
}


_DAY_S = 86_400
#: A control with a smaller p misses 0; one that is off has a p below CONTROL_OFF.
_ALPHA = 0.05
#: An effect inside a wider margin than this, in percent, is not called nothing.
_NARROW_PCT = 1.0
#: How the reason of an equivalence says how long the effects last that it speaks of.
LIMIT = ", for effects that last up to "
_ENDED_EARLY = "the trial ended early: "
#: In the reason of a verdict that the control withholds from every arm.
_CONTROL_OFF = "the base measured again, is off"
_OFF_WITHHOLDS = "No verdict is given, as what moved it may have moved the other arms as well."
_MISS_WITHHOLDS = "One good trial in twenty has this; what it could explain gets no verdict."


def not_shown(result: WeighResult) -> tuple[str, ...]:
    """What the figures do not show; slices show what sessions do to each other."""
    if result.design.unit == "transaction":
        return (_SHARED_LOCKS, *_ALWAYS_NOT_SHOWN)
    return _ALWAYS_NOT_SHOWN


def by_cost(arms: list[ArmResult]) -> list[ArmResult]:
    """The arms in descending order of body effect, those without a figure last."""

    def key(arm: ArmResult) -> tuple[bool, float]:
        effect = figures(arm)
        value = effect.body_us.estimate if effect else None
        return (value is None, -(value or 0.0))

    return sorted(arms, key=key)


def of_role(result: WeighResult, *roles: str) -> list[ArmResult]:
    """The arms of these roles, in the order of the design."""
    return [arm for arm in result.arms if arm.role in roles]


def figures(arm: ArmResult) -> Effect | None:
    """The arm's effect, or None if it may not be shown: without proof there is no number."""
    return None if arm.verdict == "not_verified" else arm.effect


def answers(result: WeighResult) -> list[tuple[ArmResult, str]]:
    """One sentence an instrument, the dearest first."""
    arms = by_cost(of_role(result, "instrument"))
    if ended_by_server(result):
        return [(arm, f"{arm.name}: no figure, as the trial ended early.") for arm in arms]
    return [(arm, answer(arm, result)) for arm in arms]


def ended_by_server(result: WeighResult) -> bool:
    """Whether the server ended the trial, so that nothing may be said of any arm."""
    return result.design.stopped_by == "server"


def answer(arm: ArmResult, result: WeighResult) -> str:
    """What may be said of one instrument."""
    effect, design = figures(arm), result.design
    if effect is None or arm.verdict == "not_verified":
        missing = evidence.state(arm) == "missing"
        reasons = [arm.verdict_reason, evidence.of(arm) if missing else ""]
        why = ": ".join(reason for reason in reasons if reason) or "nothing was measured"
        return f"{arm.name}: not verified, so no figure; {_sentence_end(why)}"
    if evidence.state(arm) == "idle":
        return _idle_answer(arm, effect, result)
    body = effect.body_us
    if arm.verdict in ("cost", "gain"):
        by_runs = _by_runs_alike(arm, effect)
        return _shown_by_runs(arm, effect, design) if by_runs else _shown(arm, effect, design)
    if arm.verdict == "equivalent":
        limit = _limit(arm)
        return f"{arm.name}: the body {_equivalent(body, design)}{limit}{_tail(effect)}."
    return (
        f"{arm.name}: inconclusive, {with_bounds(body)}{_when_it_lasts(arm, effect)}{_tail(effect)}"
        f"{_what_would_settle(arm, effect, design)}{bounds.known(arm, result)}"
    )


def _shown_by_runs(arm: ArmResult, effect: Effect, design: DesignInfo) -> str:
    """A cost or gain that lasts longer than the next transaction, with its size by runs."""
    assert effect.runs_us is not None
    verb = "costs" if arm.verdict == "cost" else "saves"
    whose = " its own session" if design.unit == "both" else ""
    part = abs(effect.body_us.estimate or 0) < abs(effect.runs_us.estimate or 0)
    return (
        f"Leaving {arm.name} on {verb}{whose}{_least(arm)} {numbers.size(effect.runs_us)} µs "
        f"{numbers.bounds(effect.runs_us)} a transaction at this load, by runs: the effect lasts "
        "longer than the next transaction; the transaction itself and the next one show "
        f"{'only ' if part else ''}{numbers.estimate(effect.body_us)} µs of it{_tail(effect)}."
    )


def _least(arm: ArmResult) -> str:
    """That transactions still open at the end only understate a cost."""
    return " at least" if "may cost more" in arm.verdict_reason else ""


def _shown(arm: ArmResult, effect: Effect, design: DesignInfo) -> str:
    """A cost or gain: of the body, and of the total if that alone shows it."""
    verb = "costs" if arm.verdict == "cost" else "saves"
    whose = " its own session" if design.unit == "both" else ""
    whole = arm.verdict_reason.startswith("by the total")
    us, pct = (effect.total_us, effect.total_pct) if whole else (effect.body_us, effect.body_pct)
    through = ", mostly because of slow transactions" if whole else _tail(effect)
    return (
        f"Leaving {arm.name} on {verb}{whose}{_least(arm)} {numbers.size(us)} µs "
        f"({numbers.size(pct)} %) a transaction at this load{_when_it_lasts(arm, effect)}{through}."
    )


def _equivalent(body: Interval, design: DesignInfo) -> str:
    """What a body inside the margin costs: nothing only by a narrow margin, and if it may be 0."""
    if numbers.covers_zero(body) and design.margin_pct <= _NARROW_PCT:
        return (
            f"costs nothing measurable, {numbers.estimate(body)} µs, "
            f"within {_margin(design)} (equivalent)"
        )
    saves = body.hi is not None and body.hi < 0
    return (
        f"{'saves' if saves else 'costs'} less than {design.margin_pct:g} %, "
        f"{with_bounds(body)} (equivalent)"
    )


def _idle_answer(arm: ArmResult, effect: Effect, result: WeighResult) -> str:
    """The figure of an arm that had nothing to do: that of its settings, not of its work."""
    design = result.design
    open_still = f"inconclusive{_what_would_settle(arm, effect, design)}{bounds.known(arm, result)}"
    verdict = {
        "cost": "a cost.",
        "gain": "a gain.",
        "equivalent": f"within {_margin(design)} (equivalent){_limit(arm)}.",
    }.get(arm.verdict or "", open_still)
    return (
        f"This load gave {arm.name} nothing to do; its settings in force: "
        f"{with_bounds(effect.body_us)}{_when_it_lasts(arm, effect)}{_tail(effect)}, {verdict}"
    )


def _limit(arm: ArmResult) -> str:
    """How long effects may last of which an equivalence speaks; nothing if runs support it."""
    _, found, limit = arm.verdict_reason.partition(LIMIT)
    return f"{found}{limit}" if found else ""


def _by_runs_alike(arm: ArmResult, effect: Effect) -> bool:
    """Whether an effect lasts, and runs show the same as the verdict: a cost or a gain."""
    if not arm.outlasts or effect.runs_us is None or numbers.covers_zero(effect.runs_us):
        return False
    return ((effect.runs_us.estimate or 0) > 0) == (arm.verdict == "cost")


def _when_it_lasts(arm: ArmResult, effect: Effect) -> str:
    """The cost by runs, if an effect outlasts the next transaction."""
    if not arm.outlasts or effect.runs_us is None or not numbers.bounded(effect.runs_us):
        return ""
    return (
        f", but {with_bounds(effect.runs_us)} when it stays on (by runs), as the effect lasts "
        "longer than the next transaction"
    )


def _margin(design: DesignInfo) -> str:
    return f"±{design.margin_pct:g} %"


def _tail(effect: Effect) -> str:
    if numbers.covers_zero(effect.excess_us) or effect.excess_us.estimate is None:
        return ""
    return f"; slow transactions add {numbers.estimate(effect.excess_us)} µs to the average"


def _what_would_settle(arm: ArmResult, effect: Effect, design: DesignInfo) -> str:
    reason = f"; {arm.verdict_reason.rstrip('.')}" if arm.verdict_reason else ""
    reason = reason.replace("inside the margin", f"inside the margin of {_margin(design)}")
    if arm.verdict_reason == "tail":
        reason = "; only the tail prevents an answer"
        if not numbers.bounded(effect.excess_us):
            reason = "; too few slow transactions to judge the tail"
    if arm.needed_s is None:
        return f"{reason}."
    if arm.needed_s > _DAY_S:
        return f"{reason}; it may take more than a day to settle."
    more = numbers.seconds(max(1, math.ceil(arm.needed_s)))
    return f"{reason}; about {more} more may settle it."


def _sentence_end(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def with_bounds(interval: Interval, unit: str = "µs ") -> str:
    """The estimate with its interval."""
    return f"{numbers.estimate(interval)} {unit}{numbers.bounds(interval)}"


def alarms(result: WeighResult) -> list[str]:
    """What must be read before the figures: a partial trial, a control off or missing 0."""
    design = result.design
    found = []
    if ended_by_server(result):
        found.append(
            f"THE TRIAL ENDED EARLY: {_why_ended(result)}, after "
            f"{numbers.seconds(design.duration_s)} of {numbers.seconds(design.planned_s)}. "
            "No figure is given."
        )
    elif design.partial:
        found.append(
            f"PARTIAL: {STOPPED_BY[design.stopped_by]} after {numbers.seconds(design.duration_s)} "
            f"of {numbers.seconds(design.planned_s)}; the figures cover that part only."
        )
    for arm in of_role(result, "control"):
        effect = figures(arm)
        off = control_off(arm) or _all_withheld(result)
        if effect is not None and (off or control_misses_0(arm)):
            by_total = misses_0_by_total(arm)
            how = ", by its total" if by_total else ""
            found.append(
                f"THE CONTROL {'IS OFF' if off else 'MISSES 0'}: the base measured again differs "
                f"from the base{how} "
                f"({with_bounds(effect.total_us if by_total else effect.body_us)}). "
                + (_OFF_WITHHOLDS if off else _MISS_WITHHOLDS)
            )
    return found


def control_misses_0(arm: ArmResult) -> bool:
    """Whether the control misses 0 by its body and total together, as the verdicts take it.

    By the body alone in results that have no such p-values.
    """
    effect, p = figures(arm), _together(arm)
    if p is not None:
        return p < _ALPHA
    return effect is not None and not numbers.covers_zero(effect.body_us)


def control_off(arm: ArmResult) -> bool:
    """Whether the control is so far off by them that no arm gets a verdict."""
    p = _together(arm)
    return p is not None and p < CONTROL_OFF


def _together(arm: ArmResult) -> float | None:
    """The p of a control's body and total together."""
    return min((p for p in (arm.p_adjusted, arm.p_total_adjusted) if p is not None), default=None)


def misses_0_by_total(arm: ArmResult) -> bool:
    """Whether it is the total alone by which the control misses 0."""
    effect = figures(arm)
    return (
        effect is not None
        and numbers.covers_zero(effect.body_us)
        and not numbers.covers_zero(effect.total_us)
        and control_misses_0(arm)
    )


def _all_withheld(result: WeighResult) -> bool:
    """Whether the control leaves no arm a verdict."""
    return any(_CONTROL_OFF in arm.verdict_reason for arm in of_role(result, "instrument"))


def warnings(result: WeighResult) -> list[str]:
    """The result's warnings, without what the alarms say, and whether the load kept its rate."""
    ended_early = ended_by_server(result)
    found = [w for w in result.warnings if not (ended_early and w.lower().startswith(_ENDED_EARLY))]
    off_rate = traffic.off_rate(result.load, result.design.duration_s)
    return [*found, off_rate] if off_rate else found


def _why_ended(result: WeighResult) -> str:
    """Why the server ended the trial, as far as the result tells more than that it did."""
    warned = [warning.partition(". No verdict")[0] for warning in result.warnings]
    for text in [*warned, *(arm.verdict_reason for arm in result.arms)]:
        why = text[len(_ENDED_EARLY) :].rstrip(".")
        if text.lower().startswith(_ENDED_EARLY) and why != STOPPED_BY["server"]:
            return why
    return STOPPED_BY["server"]


_DIFFERENCES = {
    "transaction": "Differences from the base arm per transaction, with what carries over to the "
    "next.",
    "slice": "Differences per transaction between slices in which all sessions follow the arm and "
    "such of the base: with what carries over, and with what sessions cost each other.",
    "both": "Differences from the base arm per transaction in mixed slices, with what carries over "
    "to the next.",
}


def threshold_sentence(result: WeighResult) -> str:
    """How the columns cost and tail divide the effect, and whether the tail can be judged."""
    return (
        f"{_DIFFERENCES[result.design.unit]} Cost: "
        "below the 99.9th percentile of arm and base together (base alone: "
        f"{numbers.duration(result.baseline.threshold_us)}); tail: the mean of what lies above it."
        f"{_by_runs(result)}{_unjudged_tails(result)}"
    )


def _by_runs(result: WeighResult) -> str:
    """What the column of runs has."""
    runs = result.design.runs
    if runs is None:
        return ""
    return (
        f" By runs: the cost of an arm that stays on for {runs.shortest} to {runs.longest} "
        "transactions, so with effects that last longer."
    )


def _unjudged_tails(result: WeighResult) -> str:
    arms = [(arm, figures(arm)) for arm in result.arms]
    known = [
        (arm.name, effect.excess_us)
        for arm, effect in arms
        if effect is not None and effect.excess_us.estimate is not None
    ]
    names = [name for name, excess in known if not numbers.bounded(excess)]
    if not names:
        return ""
    whose = "" if len(names) == len(known) else f" of {', '.join(names)}"
    return f" Too few slow transactions to judge the tail{whose}."
