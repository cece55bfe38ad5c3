"""How a study's figures are written: the same on the terminal, the page and in Markdown."""

from __future__ import annotations

import math

from pgtare.estimate.study import rounds as estimate
from pgtare.estimate.study.attainable import DRAWS
from pgtare.estimate.study.layouts import Layouts
from pgtare.kit import numbers
from pgtare.weighing.ladder.field_types import percent
from pgtare.weighing.ladder.result import Compared, Effect, OnWorkload
from pgtare.weighing.ladder.study_sections import Expected

#: No end of an interval is worth its digits from here on, in percent.
_ENDLESS = 1e5
METRICS = {
    "tps": "transactions a second",
    "cpu_us": "CPU time a transaction",
    "latency_mean_us": "mean latency",
    "latency_p50_us": "median latency",
    "latency_p95_us": "95th percentile of latency",
    "latency_p99_us": "99th percentile of latency",
    "service_us": "mean service time (below its 99.9th percentile)",
    "service_p50_us": "median service time",
    "service_p99_us": "99th percentile of service time",
}

SHORT = {
    "tps": "tx/s",
    "cpu_us": "CPU",
    "latency_mean_us": "mean latency",
    "latency_p50_us": "median latency",
    "latency_p95_us": "p95 latency",
    "latency_p99_us": "p99 latency",
    "service_us": "service time",
    "service_p50_us": "median service",
    "service_p99_us": "p99 service",
}


def heading(workload: OnWorkload) -> str:
    """A workload's name, its title if it has one, and its protocol if it has several."""
    by = f" by {workload.words.name}" if workload.called != workload.stated else ""
    return f"{workload.stated} {workload.title}".strip() + by


def blocks(workload: OnWorkload) -> str:
    """How many rounds, a duet's sets, or trials count, and by which protocol they were played."""
    return f"{workload.rounds_kept} of {workload.rounds_planned} {workload.words.blocks}"


def block(workload: OnWorkload) -> str:
    """What counts as one: a round, a duet's set of rounds, a trial."""
    return workload.words.block


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


def ratio(effect: Effect) -> str:
    """An effect as a multiple of the base, with its interval: 1.052 (1.048-1.056)."""

    places = numbers.apart(effect.lo_pct, effect.hi_pct, 1) + 2  # of the ratio, a hundredth

    def times(pct: float | None, endless: str) -> str:
        return endless if pct is None or pct > _ENDLESS else f"{1 + pct / 100:.{places}f}"

    if effect.pct is None:
        return numbers.NONE
    low, high = times(effect.lo_pct, "0"), times(effect.hi_pct, "∞")
    return f"{times(effect.pct, '∞')} ({low}-{high})"


def absolute(compared: Compared) -> str:
    """The difference in the metric's own unit."""
    if compared.absolute is None:
        return numbers.NONE
    size = abs(compared.absolute)
    places = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{numbers.signed(compared.absolute, places)} {compared.unit}"


def derivation(found: estimate.Paired, *, peeked: bool, noun: str = "round") -> str:
    """Where a p-value comes from, so that a reader can find it again."""
    if not found.n or math.isnan(found.p):
        return f"no p: the {noun}s do not vary"
    if peeked:
        return (
            f"the study was ended by hand after {found.n} {noun}s, so p and interval are those of "
            "the confidence sequence of Waudby-Smith et al., which hold whenever one stops"
        )
    if found.exact:
        total = 2**found.n
        extreme = round(found.p * total)
        return (
            f"{extreme:,} of the 2^{found.n} = {total:,} ways to choose the signs of the "
            f"{found.n} {noun}s' log-ratios give a mean as far from 0: p = {p_text(found.p)}"
        )
    return (
        f"{DRAWS:,} sign flips drawn of 2^{found.n}: p = 2 (k + 1) / "
        f"{DRAWS + 1:,} = {p_text(found.p)}"
    )


def over_layouts(found: estimate.Paired, over: Layouts, *, peeked: bool) -> str:
    """Where the p-value of two builds comes from, and what their linkings did."""
    if over.layouts < 2 or math.isnan(found.p):
        return f"no p: {count(over.layouts, 'linking')} of the builds in {count(found.n, 'round')}"
    by = "the confidence sequence of Waudby-Smith et al." if peeked else f"t, {over.df} df"
    text = (
        f"mean over {count(over.layouts, 'pair')} of linkings in {count(found.n, 'round')}, {by}: "
        f"p = {p_text(found.p)}"
    )
    if math.isnan(over.sd_layout):
        return f"{text}; each linking in one round, so that the two cannot be separated"
    spread, lo, hi, of_round = (
        numbers.percent(100 * sd)
        for sd in (over.sd_layout, over.sd_layout_lo, over.sd_layout_hi, over.sd_round)
    )
    return (
        f"{text}; SD between linkings {spread} [{lo}, {hi}], of a round {of_round}, all linkings "
        f"alike: p = {p_text(over.p_layout)}"
    )


def adjustment(compared: Compared, family: int) -> str:
    """What follows for the declared family."""
    text = f"; Holm over {family} declared comparisons: {p_text(compared.p_adjusted)}"
    if compared.p_equivalence is not None:
        text += f"; equivalence (the larger of two one-sided p): {p_text(compared.p_equivalence)}"
    return text


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


def count(n: int, noun: str) -> str:
    """1 client, 2 clients."""
    return f"{numbers.count(n)} {noun}" if n == 1 else f"{numbers.count(n)} {noun}s"
