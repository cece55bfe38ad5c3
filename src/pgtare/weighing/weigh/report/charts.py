"""Charts as plain Plotly descriptions, each with a sentence and a table that say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from pgtare.estimate.trial.observations import Observations
from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.report import chart_data, contention_chart, wording
from pgtare.weighing.weigh.report.rows import table
from pgtare.weighing.weigh.schema import ArmResult, Effect, WeighResult

_ROW_PX = 58
_PANEL_PX = 118
_TABLE_LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


def charts(result: WeighResult, observations: Observations) -> list[Chart]:
    """All charts the result and its observations give something to show for."""
    units = chart_data.usable(observations)
    units = units[units["arm"] < len(result.arms)]
    drawn = [
        _effects(result),
        contention_chart.chart(result),
        _distributions(result, units),
        _course(result, units),
    ]
    return [chart for chart in [*drawn, _sessions(result)] if chart is not None]


def _effects(result: WeighResult) -> Chart | None:
    """Body and total of each arm with their intervals, and the margin of equivalence."""
    arms = [(arm, wording.figures(arm)) for arm in _ordered(result)]
    shown = [(arm, effect) for arm, effect in arms if effect is not None]
    if not shown:
        return None
    head = ["arm", "body µs", "interval", "total µs", "interval"]
    rows = [
        [
            arm.name,
            numbers.estimate(effect.body_us),
            numbers.bounds(effect.body_us),
            numbers.estimate(effect.total_us),
            numbers.bounds(effect.total_us),
        ]
        for arm, effect in shown
    ]
    height = _ROW_PX * len(shown) + 80
    lo, hi = _range([effect for _, effect in shown])
    margin = None
    if result.baseline.body_mean_us is not None:
        margin = result.design.margin_pct / 100 * result.baseline.body_mean_us
    layout = plots.frame(height)
    layout["xaxis"] |= {
        "title": plots.axis_title("difference from the base, µs"),
        "range": [lo, hi],
    }
    layout["yaxis"] |= {"visible": False, "range": [len(shown) - 0.35, -0.75]}
    layout["legend"] = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0}
    layout["margin"] |= {"l": 14, "t": 34}
    layout["shapes"] = plots.margin_band(margin) if margin else []
    layout["annotations"] = [_label(arm, i) for i, (arm, _) in enumerate(shown)]
    data = [
        _points(shown, "body_us", "body", "c1", 0.0, "circle"),
        _points(shown, "total_us", "total (body + tail)", "c0", 0.22, "diamond-open"),
    ]
    band = f" The grey band is ±{result.design.margin_pct:g} %, the margin." if margin else ""
    return Chart(
        id="effects",
        title="What each arm costs",
        label="Interval plot: the arm's difference from the base in microseconds. "
        + " ".join(f"{name}: {body} {interval}." for name, body, interval, _, _ in rows),
        caption=f"Points are estimates, bars 95 % intervals.{band} An interval that runs out of "
        "the frame is in the table in full.",
        height=height,
        data=data,
        layout=layout,
        table_head=head,
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
        title="Service time by arm",
        label="Cumulative distribution of the service time of each arm. "
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
    course = chart_data.time_course(units, result.design.block, thresholds)
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
        label=f"Body difference from the base in {chart_data.TIME_BINS} spans of the trial, one "
        f"panel an arm, for {', '.join(arm.name for arm in arms)}.",
        caption="Plain block differences without carry-over, in µs, with 95 % intervals; a level "
        "band means that the figure holds for the whole trial.",
        height=height,
        data=data,
        layout=layout,
        table_head=["from start, s", *(f"{arm.name}, µs" for arm in arms)],
        table_rows=rows,
    )


def _sessions(result: WeighResult) -> Chart | None:
    """Body effect by session, one panel an instrument."""
    if len(result.by_backend) < 2:
        return None
    arms = [
        arm
        for arm in _ordered(result)
        if wording.figures(arm) and any(arm.name in s.body_us for s in result.by_backend)
    ]
    if not arms:
        return None
    height = _PANEL_PX * len(arms) + 60
    layout = plots.panels(arms, height, "session")
    ordinals = [session.backend for session in result.by_backend]
    for panel in range(1, len(arms) + 1):
        axis = layout[f"xaxis{plots.nth(panel)}"]
        axis |= {"tickformat": "d", "range": [min(ordinals) - 0.5, max(ordinals) + 0.5]}
        if len(ordinals) <= 12:
            axis["dtick"] = 1
    data: list[plots.Json] = []
    missing = Interval(estimate=None, lo=None, hi=None)
    for panel, arm in enumerate(arms, start=1):
        intervals = [s.body_us.get(arm.name, missing) for s in result.by_backend]
        data.append(
            plots.dots(ordinals, intervals, "c1")
            | {"xaxis": f"x{plots.nth(panel)}", "yaxis": f"y{plots.nth(panel)}"}
        )
    rows = [
        [
            f"{s.backend} (pid {s.pid})",
            numbers.count(s.n),
            *(
                f"{numbers.estimate(s.body_us.get(arm.name))} "
                f"{numbers.bounds(s.body_us.get(arm.name))}"
                for arm in arms
            ),
        ]
        for s in result.by_backend
    ]
    return Chart(
        id="sessions",
        title="Is it the same in every session?",
        label=f"Body effect in each of {len(rows)} sessions, one panel an instrument, for "
        f"{', '.join(arm.name for arm in arms)}.",
        caption="Effect in µs within each session, with 95 % intervals. With many sessions some "
        "intervals are apart by chance.",
        height=height,
        data=data,
        layout=layout,
        table_head=["session", "transactions", *(f"{arm.name}, µs" for arm in arms)],
        table_rows=rows,
    )


def _ordered(result: WeighResult) -> list[ArmResult]:
    return [row.arm for row in table(result)]


def _label(arm: ArmResult, row: int) -> plots.Json:
    return plots.annotation(arm) | {"yref": "y", "y": row - 0.36, "yanchor": "middle"}


def _points(
    shown: list[tuple[ArmResult, Effect]],
    field: str,
    name: str,
    color: str,
    offset: float,
    symbol: str,
) -> plots.Json:
    intervals: list[Interval] = [_bounded(getattr(effect, field)) for _, effect in shown]
    y = [i + offset for i in range(len(shown))]
    colors = ["muted" if arm.role == "control" else color for arm, _ in shown]
    symbols = ["square" if arm.role == "control" else symbol for arm, _ in shown]
    dots = plots.dots([interval.estimate for interval in intervals], intervals, color, along="x")
    return dots | {
        "name": name,
        "y": y,
        "marker": {"color": colors, "symbol": symbols if offset == 0 else symbol, "size": 9},
        "hovertemplate": f"{name} %{{x:+.3~g}} µs<extra></extra>",
    }


def _bounded(interval: Interval) -> Interval:
    """The interval, blank if an end is missing: a point without a bar would look exact."""
    known = interval.lo is not None and interval.hi is not None
    return interval if known else Interval(estimate=None, lo=None, hi=None)


def _range(effects: Iterable[Effect]) -> tuple[float, float]:
    """A frame that holds all of the bodies, and of the totals what is no more than as far again."""
    listed = list(effects)
    ends = [*_ends(effect.body_us for effect in listed), 0.0]
    lo, hi = min(ends), max(ends)
    span = (hi - lo) or 1.0
    totals = _ends(_bounded(effect.total_us) for effect in listed)
    lo, hi = min([lo, *totals]), max([hi, *totals])
    lo, hi = max(lo, min(ends) - span), min(hi, max(ends) + span)
    pad = 0.05 * (hi - lo)
    return lo - pad, hi + pad


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
