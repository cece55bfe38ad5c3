"""How a study's figures are written: the same on the terminal and the page."""

from __future__ import annotations

from typing import NamedTuple

from pgtare.kit import numbers
from pgtare.weighing.ladder.field_types import percent
from pgtare.weighing.ladder.result import Compared, Effect, OnWorkload, OtherMetric
from pgtare.weighing.ladder.study_sections import Expected


class MetricWords(NamedTuple):
    """What a metric is called: in a sentence, at an axis, above a column."""

    name: str
    short: str
    heading: str


METRICS = {
    "tps": MetricWords("transactions a second", "tx/s", "tx/s"),
    "cpu_us": MetricWords("CPU time a transaction", "CPU", "CPU µs"),
    "latency_mean_us": MetricWords("mean latency", "mean latency", "latency mean µs"),
    "latency_p50_us": MetricWords("median latency", "median latency", "latency p50 µs"),
    "latency_p95_us": MetricWords("95th percentile of latency", "p95 latency", "latency p95 µs"),
    "latency_p99_us": MetricWords("99th percentile of latency", "p99 latency", "latency p99 µs"),
}


def heading(workload: OnWorkload) -> str:
    """A workload's name, and its title if it has one."""
    return f"{workload.name} {workload.title}".strip()


def blocks(workload: OnWorkload) -> str:
    """How many rounds count."""
    return f"{workload.rounds_kept} of {workload.rounds_planned} rounds"


def p_text(p: float | None) -> str:
    """A p-value with two digits: .031, < .0001."""
    if p is None:
        return numbers.NONE
    if p < 1e-4:
        return "< .0001"
    if p >= 0.995:
        return "1.00"
    places = 2 if p >= 0.1 else 3 if p >= 0.01 else 4
    return f"{p:.{places}f}".removeprefix("0")


def pct(value: float | None, places: int = 2) -> str:
    """A difference in percent: +1.21 %."""
    return numbers.NONE if value is None else f"{numbers.signed(value, places)} %"


def level_interval(alpha: float) -> str:
    """95 % interval, at α = 0.05."""
    return f"{100 * (1 - alpha):g} % interval"


def interval(effect: Effect, places: int = 2) -> str:
    """[−0.31, +0.42], with ∞ for an end that so few rounds cannot give."""
    if effect.pct is None:
        return numbers.NONE
    places = numbers.apart(effect.lo_pct, effect.hi_pct, places)
    lo = "−∞" if effect.lo_pct is None or effect.lo_pct <= -100 else None
    hi = "+∞" if effect.hi_pct is None else "> +999" if effect.hi_pct > 999 else None
    left = lo or numbers.signed(effect.lo_pct, places)
    right = hi or numbers.signed(effect.hi_pct, places)
    return f"[{left}, {right}]"


def absolute(compared: Compared | OtherMetric) -> str:
    """The difference in the metric's own unit."""
    if compared.absolute is None:
        return numbers.NONE
    size = abs(compared.absolute)
    places = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{numbers.signed(compared.absolute, places)} {compared.unit}"


def profile_line(
    expected: Expected, share: float, per_transaction: float, mean_us: float | None
) -> str:
    """What was asked of a profile, and what was found."""
    name = "all waits" if expected.event == "*" else " and ".join(expected.events)
    of = "time waited" if expected.of == "waits" else "sessions' time"
    found, asked = [f"{numbers.percent(100 * share)} of the {of}"], []
    if expected.at_least is not None:
        asked.append(f"≥ {percent(expected.at_least)}")
    if expected.at_most is not None:
        asked.append(f"≤ {percent(expected.at_most)}")
    if expected.waits_per_transaction_at_least is not None:
        found.append(f"{per_transaction:.2f} a transaction")
        asked.append(f"≥ {expected.waits_per_transaction_at_least:g} a transaction")
    if mean_us is not None:
        found.append(f"{numbers.duration(mean_us)} on average")
    if expected.mean_us_at_least is not None:
        asked.append(f"≥ {expected.mean_us_at_least:g} µs")
    return f"{name}: {', '.join(found)} (wanted {', '.join(asked)})"


def figure(value: float | None) -> str:
    """A figure that is not a metric: a whole number if it is large."""
    if value is None:
        return numbers.NONE
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"
