"""Charts as plain Plotly descriptions, each with a sentence and a table that say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from pgtare.estimate.trial import bursts
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.runs import DROPPED
from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.report import chart_data, contention_chart, wording
from pgtare.weighing.weigh.report.rows import table
from pgtare.weighing.weigh.schema import ArmResult, WeighResult

_ROW_PX = 58
_PANEL_PX = 118
_TABLE_LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


def charts(result: WeighResult, observations: Observations) -> tuple[list[Chart], list[Chart]]:
    """The charts that there is something to show for: the answers first, and all the others."""
    outside = result.design.outside is not None
    if outside:
        observations = bursts.as_observations(observations)
    known = observations[observations["arm"] < len(result.arms)]
    units = chart_data.usable(known)
    first = [_answers(result), None if outside else _settling(result, known)]
    others = [
        contention_chart.chart(result),
        _distributions(result, units),
        None if result.compares_servers else _course(result, units),
    ]
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
    rows = [[arm.name, numbers.estimate(us), numbers.bounds(us)] for arm, us in shown]
    height = _ROW_PX * len(shown) + 60
    ends = [*_ends(us for _, us in shown), 0.0]
    pad = 0.05 * ((max(ends) - min(ends)) or 1.0)
    margin = None
    if result.baseline.body_mean_us is not None:
        margin = result.design.margin_pct / 100 * result.baseline.body_mean_us
    servers = result.compares_servers
    layout = plots.frame(height)
    what = "slower by" if servers else "cost when left on,"
    layout["xaxis"] |= {
        "title": plots.axis_title(f"{what} µs a transaction"),
        "range": [min(ends) - pad, max(ends) + pad],
    }
    layout["yaxis"] |= {"visible": False, "range": [len(shown) - 0.35, -0.75]}
    layout["showlegend"] = False
    layout["margin"] |= {"l": 14}
    layout["shapes"] = plots.margin_band(margin) if margin else []
    layout["annotations"] = [_label(arm, i) for i, (arm, _) in enumerate(shown)]
    band = f" The grey band is ±{result.design.margin_pct:g} %, the margin." if margin else ""
    return Chart(
        id="effects",
        title="How much slower each is" if servers else "What each costs when left on",
        label="Interval plot: the cost in microseconds a transaction. "
        + " ".join(f"{name}: {us} {interval}." for name, us, interval in rows),
        caption=f"Points are estimates, bars 95 % intervals.{band} The square is the control, "
        + ("the first server again." if servers else "in which nothing is changed."),
        height=height,
        data=[_points(shown)],
        layout=layout,
        table_head=["server" if servers else "instrument", "µs", "interval"],
        table_rows=rows,
    )


def _settling(result: WeighResult, observations: Observations) -> Chart | None:
    """What each instrument costs by the number of transactions since it was switched on."""
    arms = [arm for arm in _ordered(result) if arm.role != "control" and wording.answer_of(arm)]
    index = {arm.name: i for i, arm in enumerate(result.arms)}
    thresholds = [arm.threshold_us for arm in result.arms]
    curves = chart_data.by_position(observations, thresholds)
    if not arms or curves is None:
        return None
    height = 360
    layout = plots.frame(height)
    layout["xaxis"] |= {"title": plots.axis_title("transactions since it was switched on")}
    layout["yaxis"] |= {"title": plots.axis_title("cost, µs")}
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    data: list[plots.Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plots.text(arm.name),
            "x": list(range(1, curves.shape[1] + 1)),
            "y": plots.rounded(curves[index[arm.name]]),
            "line": {"color": f"c{i % plots.PALETTE}", "dash": plots.DASHES[i % plots.PALETTE]}
            | {"width": 2},
            "hovertemplate": "%{x}: %{y:+.3~g} µs<extra>%{fullData.name}</extra>",
        }
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
        height=height,
        data=data,
        layout=layout,
        table_head=["transaction", *(f"{arm.name}, µs" for arm in arms)],
        table_rows=rows,
    )


def _distributions(result: WeighResult, units: Observations) -> Chart | None:
    """Cumulative distribution of the service time by arm, on a logarithmic axis."""
    curves = chart_data.distributions(units, len(result.arms))
    data: list[plots.Json] = []
    rows: list[list[str]] = []
    for i, (arm, curve) in enumerate(zip(result.arms, curves, strict=True)):
        if curve is None:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plots.text(arm.name),
                "x": plots.rounded(curve),
                "y": plots.rounded(100 * chart_data.LEVELS),
                "line": {"color": f"c{i % plots.PALETTE}", "dash": plots.DASHES[i % plots.PALETTE]}
                | {"width": 2, "simplify": False},
                "hovertemplate": "%{x:.4~g} µs: %{y:.4~g} %<extra>%{fullData.name}</extra>",
            }
        )
        at = np.interp(_TABLE_LEVELS, chart_data.LEVELS, curve)
        rows.append([arm.name, *(f"{value:,.1f}" for value in at)])
    if not data:
        return None
    height = 460
    layout = plots.frame(height)
    layout["xaxis"] |= {
        "type": "log",
        "title": plots.axis_title("service time, µs"),
        "zeroline": False,
    }
    ticks = plots.log_ticks([curve for curve in curves if curve is not None])
    layout["xaxis"] |= {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}
    layout["yaxis"] |= {"title": plots.axis_title("transactions up to this, %"), "range": [0, 100]}
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    return Chart(
        id="distributions",
        title="How long transactions take",
        label="Cumulative distribution of the service time with each instrument. "
        + " ".join(f"{row[0]}: median {row[4]} µs, 99th percentile {row[8]} µs." for row in rows),
        caption="Share of transactions answered within a time, from the 0.1st to the 99.9th "
        "percentile; a curve further right is slower. Descriptive, without intervals.",
        height=height,
        data=data,
        layout=layout,
        table_head=["arm", *(f"p{100 * level:g} µs" for level in _TABLE_LEVELS)],
        table_rows=rows,
    )


def _course(result: WeighResult, units: Observations) -> Chart | None:
    """Body difference over time, one panel an arm."""
    threshold = result.baseline.threshold_us
    if threshold is None or len(units) == 0:
        return None
    thresholds = [
        threshold if arm.threshold_us is None else arm.threshold_us for arm in result.arms
    ]
    course = chart_data.time_course(units, thresholds)
    if course is None:
        return None
    index = {arm.name: i for i, arm in enumerate(result.arms)}
    arms = [arm for arm in _ordered(result) if wording.figures(arm) is not None]
    if not arms:
        return None
    height = _PANEL_PX * len(arms) + 60
    layout = plots.panels(arms, height, "seconds since the trial began")
    data: list[plots.Json] = []
    for panel, arm in enumerate(arms, start=1):
        row = index[arm.name]
        data += plots.band(panel, course.at_s, course.mean[row], course.lo[row], course.hi[row])
    rows = [
        [f"{at:.1f}", *(_cell(course, index[arm.name], i) for arm in arms)]
        for i, at in enumerate(course.at_s)
    ]
    return Chart(
        id="course",
        title="Was the effect steady?",
        label=f"Difference from the base in {chart_data.TIME_BINS} spans of the trial, one "
        f"panel an instrument, for {', '.join(arm.name for arm in arms)}.",
        caption="Plain block differences, in µs, with 95 % intervals; a level "
        "band means that the figure holds for the whole trial.",
        height=height,
        data=data,
        layout=layout,
        table_head=["from start, s", *(f"{arm.name}, µs" for arm in arms)],
        table_rows=rows,
    )


def _ordered(result: WeighResult) -> list[ArmResult]:
    return [row.arm for row in table(result)]


def _label(arm: ArmResult, row: int) -> plots.Json:
    return plots.annotation(arm) | {"yref": "y", "y": row - 0.36, "yanchor": "middle"}


def _points(shown: list[tuple[ArmResult, Interval]]) -> plots.Json:
    intervals = [_bounded(us) for _, us in shown]
    colors = ["muted" if arm.role == "control" else "c1" for arm, _ in shown]
    symbols = ["square" if arm.role == "control" else "circle" for arm, _ in shown]
    dots = plots.dots(intervals, "c1")
    return dots | {
        "y": list(range(len(shown))),
        "marker": {"color": colors, "symbol": symbols, "size": 9},
        "hovertemplate": "%{x:+.3~g} µs<extra></extra>",
    }


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


def _cell(course: chart_data.TimeCourse, arm: int, i: int) -> str:
    interval = Interval(
        estimate=_finite(course.mean[arm, i]),
        lo=_finite(course.lo[arm, i]),
        hi=_finite(course.hi[arm, i]),
    )
    return f"{numbers.estimate(interval)} {numbers.bounds(interval)}"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
