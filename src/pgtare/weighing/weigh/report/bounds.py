"""What an inconclusive weighing shows: the most that an arm costs, and the margin in reach."""

from __future__ import annotations

import math

from pgtare.kit import numbers
from pgtare.weighing.weigh.schema import ArmResult, WeighResult

#: Lengths that a longer trial could have.
_LONGER_S = (600.0, 3600.0)


def known(arm: ArmResult, result: WeighResult) -> str:
    """Sentences that follow on the answer, or nothing if no bound is known."""
    return "".join(f" {text}" for text in (at_most(arm, result), settled(arm, result)) if text)


def at_most(arm: ArmResult, result: WeighResult) -> str:
    """The one-sided bound, as time, share and processors."""
    us, pct = arm.at_most_us, arm.at_most_pct
    if us is None or us <= 0 or _withheld(arm):
        return ""
    share = "" if pct is None else f" ({_rounded(pct)} %)"
    part = "" if arm.tail_bounded else ", not counting rare slow transactions"
    return (
        f"It costs at most {_rounded(us)} µs{share} a transaction at 95 %{part}"
        f"{_processors(us, result)}."
    )


def _withheld(arm: ArmResult) -> bool:
    """Whether something else could have moved the figure, so that its bound says nothing."""
    return any(word in arm.verdict_reason for word in ("control", "transactions fail", "explain"))


def _processors(us: float, result: WeighResult) -> str:
    """What that is of the machine at this load, if all of it is processor time."""
    rate = transactions_per_s(result)
    if rate is None:
        return ""
    cores = us * rate / 1e6
    cpus = result.machine.get("cpus")
    of = ""
    if isinstance(cpus, int) and result.load.get("kind") == "pgbench":
        of = f" of {cpus}"
    return f": at {rate:,.0f} transactions/s no more than {_rounded(cores)}{of} processors"


def transactions_per_s(result: WeighResult) -> float | None:
    """The rate of the load, as it was reported, else as it was observed."""
    median_tps = result.load.get("median_tps")
    if isinstance(median_tps, int | float) and math.isfinite(median_tps) and median_tps > 0:
        return float(median_tps)
    runs = result.design.runs
    seen = sum(arm.n + arm.excluded for arm in result.arms) + (runs.transactions if runs else 0)
    seconds = result.design.duration_s
    return seen / seconds if seen and seconds > 0 else None


def settled(arm: ArmResult, result: WeighResult) -> str:
    """The margin that so long a trial settles, and a longer one."""
    now, seconds = arm.settles_pct, result.design.duration_s
    if now is None or seconds <= 0 or now <= result.design.margin_pct or _withheld(arm):
        return ""
    if arm.outlasts:
        return ""
    longer = next((s for s in _LONGER_S if s >= 2 * seconds), None)
    text = f"A trial of this length can settle a margin of ±{_rounded(now)} %"
    if longer is None:
        return f"{text}."
    then = now * math.sqrt(seconds / longer)
    return f"{text}, one of {numbers.seconds(longer)} ±{_rounded(then)} %."


def _rounded(value: float) -> str:
    """Two significant digits, rounded up: a bound must not look smaller than it is."""
    if not value > 0:
        return numbers.plain(value, 0)
    places = 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10.0**places - 1e-9) / 10.0**places
    return f"{scaled:,.{max(places, 0)}f}"
