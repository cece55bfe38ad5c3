"""What a fleet's result says in sentences; the terminal and the page print the same ones."""

from __future__ import annotations

import math

from pgtare.kit import numbers
from pgtare.kit.numbers import with_bounds
from pgtare.weighing.fleet.documents import (
    FleetArm,
    FleetOutlier,
    FleetScale,
    FleetServer,
    FleetSubgroup,
    FleetWeighing,
    ServerArm,
)

#: What verdicts on a fleet are called in its table, if not by their names.
_VERDICTS = {"list": "a list", "kinds": "differ in kind"}
SUBGROUP_HEADINGS = ("label", "servers", "mean %", "difference", "interval", "p (Holm)")
HOW = (
    "Each server is estimated by itself, as pgtare weigh and pgtare report do it. What divides its "
    "body from its tail is its own, taken as known; all figures here are of the body.",
    "Each server counts the same: weights from errors would be weights from costs. The mean's "
    "interval is Student's t; the variance between servers is Paule and Mandel's.",
    "The prediction interval is for the effect on one more server like these. The fleet is called "
    "equivalent only if that interval lies inside the margin.",
    "If the servers are shown to be of two kinds, nothing is said of the next one.",
    "A standard error that rests on few effective clusters is drawn towards what is typical of the "
    "fleet, and never made smaller.",
    "Percentages are combined as logarithms of ratios. Weights of the inventory have no part in "
    "this.",
)


def instruments(result: FleetWeighing) -> list[FleetArm]:
    """The arms that are no control and no known delay, the dearest first."""
    return sorted(
        (arm for arm in result.arms if arm.role == "instrument"),
        key=lambda arm: (
            arm.cost_pct.mean.estimate is None,
            -(arm.cost_pct.mean.estimate or 0.0),
            arm.name,
        ),
    )


def all_arms(result: FleetWeighing) -> list[FleetArm]:
    """All arms, instruments first."""
    return [*instruments(result), *(arm for arm in result.arms if arm.role != "instrument")]


def title(result: FleetWeighing) -> str:
    """The headline of a page."""
    names = [arm.name for arm in instruments(result)]
    what = names[0] if len(names) == 1 else numbers.counted(len(names), "instrument")
    cost = "costs" if len(names) == 1 else "cost"
    if not names:
        return f"The floor on {numbers.counted(len(result.servers), 'server')}"
    return f"What {what} {cost} on {numbers.counted(len(result.servers), 'server')}"


def alarms(result: FleetWeighing) -> list[str]:
    """What must be read before the figures: that servers are missing."""
    if not result.left_out:
        return []
    number = numbers.counted(len(result.left_out), "server")
    names = [one.server for one in result.left_out]
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return [f"{number} left out: {listed}. The figures are of the other {len(result.servers)}."]


def answers(result: FleetWeighing) -> list[tuple[FleetArm, str]]:
    """One sentence an instrument, the dearest first."""
    return [(arm, answer(arm, result)) for arm in instruments(result)]


def answer(arm: FleetArm, result: FleetWeighing) -> str:
    """What may be said of one instrument on this fleet."""
    if not arm.k:
        return f"{arm.name}: no server has a figure for it."
    scale = arm.cost_pct
    mean = f"{with_bounds(scale.mean, '%')} on average"
    if arm.verdict == "list":
        return f"{arm.name}: {_few(arm)}{with_bounds(scale.mean, '%')}. Nothing is said of others."
    count = numbers.counted(arm.k, "server")
    if arm.verdict == "kinds":
        return f"{arm.name}: {mean} over {count}; {arm.verdict_reason}. The next may be of either."
    following = _next(scale)
    if arm.verdict == "equivalent":
        return (
            f"{arm.name}: equivalent for the fleet, {mean} over {count}{following}, inside "
            f"±{result.margin_pct:g} %."
        )
    if arm.verdict == "inconclusive":
        return f"{arm.name}: inconclusive, {mean} over {count}{following}."
    verb = "costs" if arm.verdict == "cost" else "saves"
    size = numbers.size(scale.mean)
    us = f", {with_bounds(arm.cost_us, 'µs')}" if arm.cost_us.estimate is not None else ""
    return (
        f"Leaving {arm.name} on {verb} {size} % {numbers.bounds(scale.mean)} a transaction on "
        f"average over {count}{us}{following}."
    )


def _few(arm: FleetArm) -> str:
    if arm.k == 1:
        return "one server is no sample: "
    return f"{arm.k} servers are a list, not a sample: on average "


def _next(scale: FleetScale) -> str:
    if scale.prediction is None:
        return ""
    return f"; on the next server expect {numbers.bounds(scale.prediction)} %"


def outliers(arm: FleetArm) -> list[str]:
    """The servers unlike the rest."""
    members = {one.server: one for one in arm.servers}
    return [_outlier(one, arm, members[one.server]) for one in arm.cost_pct.outliers]


def _outlier(one: FleetOutlier, arm: FleetArm, member: ServerArm) -> str:
    side = "above" if one.residual > 0 else "below"
    shared = ", ".join(f"{name} = {text}" for name, text in one.labels.items())
    others = arm.cost_pct.outliers
    alike = [other for other in others if (other.residual > 0) == (one.residual > 0)]
    whose = "Only it has" if len(alike) == 1 else f"Only these {len(alike)} have"
    return (
        f"{one.server} is unlike the rest: {arm.name} shows {with_bounds(member.pct, '%')}, "
        f"far {side} what the others predict ({_p(one.p_adjusted)})."
        + (f" {whose} {shared}." if shared else "")
    )


def shown_subgroups(scale: FleetScale) -> list[FleetSubgroup]:
    """Subgroups that were tested, the surest difference first."""
    tested = [one for one in scale.subgroups if one.p_adjusted is not None]
    return sorted(tested, key=lambda one: (one.p_adjusted or 0.0, one.label, one.value))


def spread(scale: FleetScale) -> str:
    """Heterogeneity in words."""
    if scale.i2_pct is None:
        return numbers.NONE
    tau = scale.tau
    ends = ""
    if tau.lo is not None and tau.hi is not None:
        digits = numbers.decimals(numbers.half_width(tau), tau.estimate)
        ends = f" [{numbers.plain(tau.lo, digits)}, {numbers.plain(tau.hi, digits)}]"
        size = numbers.plain(tau.estimate, digits)
    else:
        size = numbers.plain(tau.estimate, numbers.decimals(None, tau.estimate))
    return (
        f"servers' true effects spread by {size} %{ends} (standard deviation); "
        f"I² {numbers.percent(scale.i2_pct)}, all alike: {_p(scale.q_p)}"
    )


def arm_cells(arm: FleetArm) -> list[str]:
    """The row of an arm in the table of arms, between its name and its verdict."""
    return [
        str(arm.k),
        numbers.estimate(arm.cost_pct.mean),
        numbers.bounds(arm.cost_pct.mean),
        numbers.bounds(arm.cost_pct.prediction),
        numbers.estimate(arm.cost_us),
        numbers.bounds(arm.cost_us),
        numbers.percent(arm.cost_pct.i2_pct),
    ]


def base_us(server: FleetServer) -> str:
    """The body of a server's base, in µs."""
    return numbers.NONE if server.base_us is None else f"{server.base_us:,.1f}"


def arm_name(arm: FleetArm) -> str:
    """The arm in the table of arms."""
    return f"{arm.name} (nothing changed)" if arm.role == "control" else arm.name


def verdict(arm: FleetArm) -> str:
    """The verdict in the table of arms; the control and a known delay are only checks."""
    if arm.role == "instrument" or not numbers.bounded(arm.cost_pct.mean):
        return _VERDICTS.get(arm.verdict, arm.verdict)
    return "covers 0" if numbers.covers_zero(arm.cost_pct.mean) else "misses 0"


def subgroup_cells(one: FleetSubgroup) -> list[str]:
    """The row of a subgroup that was tested."""
    return [
        f"{one.label} = {one.value}",
        str(len(one.servers)),
        numbers.estimate(one.mean),
        numbers.estimate(one.difference),
        numbers.bounds(one.difference),
        numbers.chance(one.p_adjusted or 0.0),
    ]


def _p(p: float | None) -> str:
    if p is None or math.isnan(p):
        return f"p {numbers.NONE}"
    chance = numbers.chance(p)
    return f"p {chance}" if chance.startswith("less") else f"p = {chance}"
