"""Charts as plain Plotly descriptions, each with a sentence and a table that say the same.

They are drawn of small arrays, boiled down from the observations: no line gets more points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.trial import bursts
from pgtare.estimate.trial.observations import NO_BLOCK, UNUSABLE, Observations, UnitFlag
from pgtare.estimate.trial.runs import DROPPED
from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.report import contention, wording
from pgtare.weighing.weigh.report.rows import table
from pgtare.weighing.weigh.schema import ArmResult, WeighResult

_ROW_PX = 58
_TABLE_LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_LEFT_OUT = UNUSABLE | UnitFlag.FIRST_RUN | UnitFlag.OPEN
#: Levels of a distribution's curve, dense in both tails.
LEVELS: Floats = np.unique(
    np.concatenate(
        [
            np.linspace(0.001, 0.01, 10),
            np.linspace(0.01, 0.99, 197),
            1 - np.geomspace(0.01, 0.001, 20),
        ]
    )
)


def charts(result: WeighResult, observations: Observations) -> tuple[list[Chart], list[Chart]]:
    """The charts that there is something to show for: the answers first, and all the others."""
    outside = result.design.outside is not None
    if outside:
        observations = bursts.as_observations(observations)
    known = observations[observations["arm"] < len(result.arms)]
    units = usable(known)
    first = [_answers(result), None if outside else _settling(result, known)]
    others = [_contention(result), _distributions(result, units)]
    return (
        [chart for chart in first if chart is not None],
        [chart for chart in others if chart is not None],
    )


def _answers(result: WeighResult) -> Chart | None:
    """The answer of each arm with its interval, the control, and the margin of equivalence."""
    arms = [(arm, wording.answer_of(arm)) for arm in _ordered(result)]
    shown = [(arm, answer.us) for arm, answer in arms if answer is not None]
    if not shown:
        return None
    ends = [*_ends(us for _, us in shown), 0.0]
    pad = 0.05 * ((max(ends) - min(ends)) or 1.0)
    margin = None
    if result.baseline.body_mean_us is not None:
        margin = result.design.margin_pct / 100 * result.baseline.body_mean_us
    servers = result.compares_servers
    band = f" The grey band is ±{result.design.margin_pct:g} %, the margin." if margin else ""
    chart = _interval_plot(
        "effects",
        "How much slower each is" if servers else "What each costs when left on",
        f"{'slower by' if servers else 'cost when left on,'} µs a transaction",
        [(plots.annotation(arm), arm.name, us) for arm, us in shown],
        f"Points are estimates, bars 95 % intervals.{band} The square is the control, "
        + ("the first server again." if servers else "in which nothing is changed."),
        "server" if servers else "instrument",
    )
    chart.layout["xaxis"]["range"] = [min(ends) - pad, max(ends) + pad]
    chart.layout["shapes"] = plots.margin_band(margin) if margin else []
    controls = [arm.role == "control" for arm, _ in shown]
    chart.data[0]["marker"] = {
        "color": ["muted" if control else "c1" for control in controls],
        "symbol": ["square" if control else "circle" for control in controls],
        "size": 9,
    }
    return chart


def _contention(result: WeighResult) -> Chart | None:
    """Where the cost falls: total, own effect and spillover side by side."""
    found = contention.figures(result)
    if found is None or wording.ended_by_server(result):
        return None
    shown = [(text, us) for text, us, _ in contention.rows(result, found) if numbers.bounded(us)]
    if not shown:
        return None
    return _interval_plot(
        "contention",
        "Where the cost falls",
        "µs a transaction",
        [(plots.label(text), text, us) for text, us in shown],
        "Points are estimates, bars 95 % intervals. The total is of all sessions with the "
        "instrument, the spillover of a mix in which half of the sessions have it.",
        "where",
    )


def _interval_plot(
    name: str,
    title: str,
    axis: str,
    shown: list[tuple[plots.Json, str, Interval]],
    caption: str,
    head: str,
) -> Chart:
    """Estimates with their intervals, one below the other. shown: label, name and interval."""
    rows = [[text, numbers.estimate(us), numbers.bounds(us)] for _, text, us in shown]
    height = _ROW_PX * len(shown) + 60
    layout = plots.frame(height)
    layout["showlegend"] = False
    layout["xaxis"] |= {"title": plots.axis_title(axis)}
    layout["yaxis"] |= {"visible": False, "range": [len(shown) - 0.35, -0.75]}
    layout["margin"] |= {"l": 14}
    layout["annotations"] = [
        label | {"yref": "y", "y": row - 0.36, "yanchor": "middle"}
        for row, (label, _, _) in enumerate(shown)
    ]
    intervals = [_bounded(us) for _, _, us in shown]
    points = {
        "y": list(range(len(shown))),
        "marker": {"color": "c1", "size": 8},
        "hovertemplate": "%{x:+.3~g} µs<extra></extra>",
    }
    return Chart(
        id=name,
        title=title,
        label=f"Interval plot: {axis}. " + " ".join(f"{a}: {b} {c}." for a, b, c in rows),
        caption=caption,
        height=height,
        data=[plots.dots(intervals, "c1") | points],
        layout=layout,
        table_head=[head, "µs", "interval"],
        table_rows=rows,
    )


def _settling(result: WeighResult, observations: Observations) -> Chart | None:
    """What each instrument costs by the number of transactions since it was switched on."""
    arms = [arm for arm in _ordered(result) if arm.role != "control" and wording.answer_of(arm)]
    index = {arm.name: i for i, arm in enumerate(result.arms)}
    thresholds = [arm.threshold_us for arm in result.arms]
    curves = by_position(observations, thresholds)
    if not arms or curves is None:
        return None
    layout = _curves_frame(360, "transactions since it was switched on", "cost, µs")
    places = list(range(1, curves.shape[1] + 1))
    data = [
        _curve(i, arm, places, plots.rounded(curves[index[arm.name]]), "%{x}: %{y:+.3~g} µs")
        for i, arm in enumerate(arms)
    ]
    rows = [
        [str(k + 1), *(numbers.signed(_finite(curves[index[arm.name], k]), 2) for arm in arms)]
        for k in range(curves.shape[1])
    ]
    return Chart(
        id="settling",
        title="How it settles",
        label="Cost in microseconds by the number of transactions since the instrument was "
        f"switched on, for {', '.join(arm.name for arm in arms)}.",
        caption=f"The first {DROPPED} transactions of a run are in no answer: what an instrument "
        "needs is not in the processor's caches yet. Without intervals.",
        height=layout["height"],
        data=data,
        layout=layout,
        table_head=["transaction", *(f"{arm.name}, µs" for arm in arms)],
        table_rows=rows,
    )


def _distributions(result: WeighResult, units: Observations) -> Chart | None:
    """Cumulative distribution of the service time by arm, on a logarithmic axis."""
    curves = distributions(units, len(result.arms))
    data: list[plots.Json] = []
    rows: list[list[str]] = []
    for i, (arm, curve) in enumerate(zip(result.arms, curves, strict=True)):
        if curve is None:
            continue
        x, levels = plots.rounded(curve), plots.rounded(100 * LEVELS)
        data.append(_curve(i, arm, x, levels, "%{x:.4~g} µs: %{y:.4~g} %"))
        at = np.interp(_TABLE_LEVELS, LEVELS, curve)
        rows.append([arm.name, *(f"{value:,.1f}" for value in at)])
    if not data:
        return None
    layout = _curves_frame(460, "service time, µs", "transactions up to this, %")
    ticks = plots.log_ticks([curve for curve in curves if curve is not None])
    texts = [f"{tick:,g}" for tick in ticks]
    layout["xaxis"] |= {"type": "log", "zeroline": False, "tickvals": ticks, "ticktext": texts}
    layout["yaxis"] |= {"range": [0, 100]}
    return Chart(
        id="distributions",
        title="How long transactions take",
        label="Cumulative distribution of the service time with each instrument. "
        + " ".join(f"{row[0]}: median {row[4]} µs, 99th percentile {row[8]} µs." for row in rows),
        caption="Share of transactions answered within a time, from the 0.1st to the 99.9th "
        "percentile; a curve further right is slower. Descriptive, without intervals.",
        height=layout["height"],
        data=data,
        layout=layout,
        table_head=["arm", *(f"p{100 * level:g} µs" for level in _TABLE_LEVELS)],
        table_rows=rows,
    )


def _curves_frame(height: int, x_title: str, y_title: str) -> plots.Json:
    layout = plots.frame(height)
    layout["xaxis"] |= {"title": plots.axis_title(x_title)}
    layout["yaxis"] |= {"title": plots.axis_title(y_title)}
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    return layout


def _curve(number: int, arm: ArmResult, x: list[Any], y: list[Any], hover: str) -> plots.Json:
    """One arm's line, told from the others by colour and dashes."""
    color, dash = f"c{number % plots.PALETTE}", plots.DASHES[number % plots.PALETTE]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plots.text(arm.name),
        "x": x,
        "y": y,
        "line": {"color": color, "dash": dash, "width": 2, "simplify": False},
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
    }


def _ordered(result: WeighResult) -> list[ArmResult]:
    return [row.arm for row in table(result)]


def _bounded(interval: Interval) -> Interval:
    """The interval, blank if an end is missing: a point without a bar would look exact."""
    known = interval.lo is not None and interval.hi is not None
    return interval if known else Interval(estimate=None, lo=None, hi=None)


def _ends(intervals: Iterable[Interval]) -> list[float]:
    return [
        end
        for interval in intervals
        for end in (interval.lo, interval.estimate, interval.hi)
        if end is not None and math.isfinite(end)
    ]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def usable(observations: Observations) -> Observations:
    """The finished units in which the arm surely was in force, and had been for a while."""
    kept = (observations["flags"] & _LEFT_OUT == 0) & (observations["position"] >= DROPPED)
    units: Observations = observations[kept]
    return units


def distributions(units: Observations, n_arms: int) -> list[Floats | None]:
    """Service time in µs at LEVELS for each arm, None if it has no unit."""
    found: list[Floats | None] = []
    for arm in range(n_arms):
        service = units["service_ns"][units["arm"] == arm]
        found.append(np.quantile(service, LEVELS) / 1000.0 if len(service) else None)
    return found


def by_position(observations: Observations, thresholds_us: list[float | None]) -> Floats | None:
    """Arm less base by the place in a later run, (arms, places), in µs; None without runs.

    thresholds_us: c of every arm; None of the base's.
    """
    rows = observations[
        (observations["flags"] & _LEFT_OUT == 0) & (observations["block"] != NO_BLOCK)
    ]
    if not len(rows):
        return None
    places = int(rows["position"].max()) + 1
    found = np.full((len(thresholds_us), places), np.nan)
    service_us = rows["service_ns"] / 1000.0
    position = rows["position"].astype(np.int64)

    def means(arm: int, c: float) -> Floats:
        mine = rows["arm"] == arm
        sums = np.bincount(position[mine], np.minimum(service_us[mine], c), places)
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / np.bincount(position[mine], minlength=places))

    for arm, c in enumerate(thresholds_us):
        if arm and c is not None:
            found[arm] = means(arm, c) - means(0, c)
    return found
