"""What a result says in sentences; the terminal and the page print the same ones."""

from __future__ import annotations

import math

from pgtare.report import numbers
from pgtare.report.schema import ArmResult, DesignInfo, Effect, Interval, Verdict, WeighResult

VERDICTS: dict[Verdict, str] = {
    "cost": "cost",
    "gain": "gain",
    "equivalent": "equivalent",
    "inconclusive": "inconclusive",
    "not_verified": "not verified",
}

NOT_SHOWN = (
    "Locks that every arm shares: where an instrument makes others wait, the base arm waits too.",
    "Work put off until after the answer or done by others, such as flushing statistics and the "
    "logging process; CPU per cycle shows the part in the same backend.",
    "Delay before the request is read: waking up and waiting for a processor.",
)

STOPPED_BY = {
    "time": "the planned time was up",
    "precision": "the precision asked for was reached",
    "interrupt": "it was interrupted",
    "server": "the server ended it",
}


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
    """The arm's effect, or None where it may not be shown: without proof there is no number."""
    return None if arm.verdict == "not_verified" else arm.effect


def answers(result: WeighResult) -> list[tuple[ArmResult, str]]:
    """One sentence an instrument, the dearest first."""
    arms = by_cost(of_role(result, "instrument"))
    return [(arm, answer(arm, result.design)) for arm in arms]


def answer(arm: ArmResult, design: DesignInfo) -> str:
    """What may be said of one instrument, in one sentence."""
    effect = figures(arm)
    if effect is None or arm.verdict == "not_verified":
        reasons = [arm.verdict_reason, arm.proof.evidence if arm.proof else ""]
        why = ": ".join(reason for reason in reasons if reason) or "nothing was measured"
        return f"{arm.name}: not verified, so no figure; {_sentence_end(why)}"
    body = effect.body_us
    amount = f"{numbers.size(body)} µs ({numbers.size(effect.body_pct)} %)"
    if arm.verdict == "cost":
        return f"Leaving {arm.name} on costs {amount} a transaction at this load{_tail(effect)}."
    if arm.verdict == "gain":
        return f"Leaving {arm.name} on saves {amount} a transaction at this load{_tail(effect)}."
    if arm.verdict == "equivalent":
        margin = f"±{design.margin_pct:g} %"
        if numbers.covers_zero(body):
            return (
                f"{arm.name} costs nothing measurable: within {margin} (equivalent), "
                f"{numbers.estimate(body)} µs."
            )
        verb = "saves" if (body.estimate or 0.0) < 0 else "costs"
        return f"{arm.name} {verb} {amount} a transaction, within {margin} (equivalent)."
    return f"{arm.name}: inconclusive, {_with_bounds(body)}{_what_would_settle(arm)}"


def _tail(effect: Effect) -> str:
    if numbers.covers_zero(effect.excess_us) or effect.excess_us.estimate is None:
        return ""
    return f", and {numbers.estimate(effect.excess_us)} µs on average through its slowest 0.1 %"


def _what_would_settle(arm: ArmResult) -> str:
    reason = {"": "", "tail": "; only the tail stands in the way"}.get(
        arm.verdict_reason, f"; {arm.verdict_reason.rstrip('.')}"
    )
    if arm.seconds_needed is None:
        return f"{reason}."
    more = numbers.seconds(max(1, math.ceil(arm.seconds_needed)))
    return f"{reason}; about {more} more would settle it."


def _sentence_end(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _with_bounds(interval: Interval) -> str:
    return f"{numbers.estimate(interval)} µs {numbers.bounds(interval)}"


def alarms(result: WeighResult) -> list[str]:
    """What must be read before the figures: a partial or an uncalibrated trial."""
    design = result.design
    found = []
    if design.partial:
        found.append(
            f"PARTIAL: {STOPPED_BY[design.stopped_by]} after {numbers.seconds(design.duration_s)} "
            f"of {numbers.seconds(design.planned_s)}; the figures cover that part only."
        )
    if not design.calibrated:
        found.append(
            "UNCALIBRATED: it has not been shown that intervals of such a trial hold what they "
            "claim; they may be too narrow."
        )
    return found


def control_sentence(arm: ArmResult) -> str:
    """How the control arm, which is the base again, came out."""
    effect = figures(arm)
    if effect is None or effect.body_us.estimate is None:
        return "no figure for the base arm measured again"
    ok = numbers.covers_zero(effect.body_us)
    remark = (
        "covers 0, as it should"
        if ok
        else "misses 0, which chance alone does once in 20 trials; doubt this one"
    )
    return f"base again: {_with_bounds(effect.body_us)}, {remark}"


def injected_sentence(arm: ArmResult) -> str:
    """Whether a delay of known size was found again."""
    known = arm.inject_ns / 1000
    effect = figures(arm)
    if effect is None or effect.body_us.lo is None or effect.body_us.hi is None:
        return f"{known:g} µs added on purpose: no figure"
    found = effect.body_us.lo <= known <= effect.body_us.hi
    remark = "covers the truth" if found else "misses the truth"
    return f"{known:g} µs added on purpose: {_with_bounds(effect.body_us)}, {remark}"


def threshold_sentence(result: WeighResult) -> str:
    """How the columns cost and tail divide the effect."""
    return (
        "Differences from the base arm per transaction, with what carries over to the next. Cost: "
        f"below the pooled 99.9th percentile ({numbers.duration(result.baseline.threshold_us)}); "
        "tail: the mean of what lies above it."
    )


def facts(result: WeighResult) -> list[tuple[str, str]]:
    """The lines below the table: what the figures rest on, as (label, text)."""
    base, design = result.baseline, result.design
    lines = [
        (
            "base",
            f"mean {numbers.duration(base.mean_us)}, p50 {numbers.duration(base.p50_us)}, "
            f"p99 {numbers.duration(base.p99_us)}, {numbers.count(base.n)} transactions",
        )
    ]
    lines += [("control", control_sentence(arm)) for arm in of_role(result, "control")]
    lines += [("injected", injected_sentence(arm)) for arm in of_role(result, "injected")]
    if design.mde_us is not None:
        places = numbers.decimals(design.mde_us)
        share = "" if design.mde_pct is None else f" ({numbers.percent(design.mde_pct)})"
        lines.append(
            (
                "detectable",
                f"{numbers.plain(design.mde_us, places)} µs{share} or more, with 80 % power (MDE)",
            )
        )
    if of_role(result, "instrument"):
        lines.append(("proof", _proof(result)))
    lines.append(("carry-over", _carry_over(result)))
    lines.append(("switching", _switching(result)))
    lines.append(("sessions", _sessions(design)))
    lines.append(
        (
            "trial",
            f"{numbers.seconds(design.duration_s)} of {numbers.seconds(design.planned_s)} planned, "
            f"{numbers.count(design.blocks)} blocks, "
            f"{numbers.count(design.blocks_discarded)} discarded, seed {design.seed}",
        )
    )
    return lines


_STATES = {
    "active": "seen at work",
    "idle": "in force, with nothing to do",
    "missing": "not seen at work",
}


def _proof(result: WeighResult) -> str:
    """Which instruments really ran in their arms, by the evidence of the trial."""
    arms = of_role(result, "instrument")
    parts = []
    for state, text in _STATES.items():
        names = [arm.name for arm in arms if arm.proof is not None and arm.proof.state == state]
        if names:
            parts.append(f"{text}: {', '.join(names)}")
    return "; ".join(parts) or "none was taken"


def _carry_over(result: WeighResult) -> str:
    shares = []
    for arm in by_cost(of_role(result, "instrument")):
        effect = figures(arm)
        if effect is None or arm.verdict not in ("cost", "gain") or not effect.body_us.estimate:
            continue
        share = 100 * (effect.carry_over_us.estimate or 0.0) / effect.body_us.estimate
        shares.append(f"{numbers.percent(share)} of {arm.name}")
    if not shares:
        return "no effect large enough to divide between this transaction and the next"
    return f"falls on the next transaction: {', '.join(shares)}"


def _switching(result: WeighResult) -> str:
    carry = result.carry_over
    if carry.switch_us is None:
        return "not timed"
    lost = (
        ""
        if carry.switch_throughput_pct is None
        else f"; it cost the load {numbers.percent(carry.switch_throughput_pct)} of its throughput"
    )
    return f"{numbers.duration(carry.switch_us)} between transactions, outside every figure{lost}"


def _sessions(design: DesignInfo) -> str:
    text = f"{numbers.count(design.sessions)} in the trial, {design.sessions_outside} outside it"
    if design.participation is not None:
        text += f"; {numbers.percent(100 * design.participation)} of transactions took part"
    return f"{text}; {numbers.count(design.lost)} observations lost"
