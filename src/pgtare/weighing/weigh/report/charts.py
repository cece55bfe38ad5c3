"""Charts as plain Plotly descriptions, each with a sentence and a table that say the same.

They are drawn of small arrays, boiled down from the observations: no line gets more points.
"""

from __future__ import annotations

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.trial.observations import NO_BLOCK, UNUSABLE, Observations, UnitFlag
from pgtare.estimate.trial.runs import DROPPED
from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.report import contention, wording
from pgtare.weighing.weigh.report.rows import table
from pgtare.weighing.weigh.schema import ArmResult, WeighResult

_ROW_PX = 58
_LEFT_OUT = UNUSABLE | UnitFlag.FIRST_RUN | UnitFlag.OPEN


def charts(result: WeighResult, observations: Observations) -> list[Chart]:
    """The charts that there is something to show for."""
    found = [_answers(result), _settling(result, observations), _contention(result)]
    return [chart for chart in found if chart is not None]


def _answers(result: WeighResult) -> Chart | None:
    """The answer of each arm with its interval, the control, and the margin of equivalence."""
    arms = [(arm, wording.answer_of(arm)) for arm in _ordered(result)]
    shown = [(arm, answer.us) for arm, answer in arms if answer is not None]
    if not shown:
        return None
    ends = [0.0, *(x for _, us in shown for x in (us.lo, us.estimate, us.hi) if x is not None)]
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
        [(plots.label(arm.name, control=arm.role == "control"), arm.name, us) for arm, us in shown],
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
    if found is None:
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
        data=[plots.dots([us for _, _, us in shown], "c1") | points],
        layout=layout,
        table_head=[head, "µs", "interval"],
        table_rows=rows,
    )


def _settling(result: WeighResult, observations: Observations) -> Chart | None:
    """What each instrument costs by the number of transactions since it was switched on."""
    if result.design.outside is not None:
        return None
    arms = [arm for arm in _ordered(result) if arm.role != "control" and wording.answer_of(arm)]
    index = {arm.name: i for i, arm in enumerate(result.arms)}
    thresholds = [arm.threshold_us for arm in result.arms]
    known = observations[observations["arm"] < len(result.arms)]
    curves = by_position(known, thresholds)
    if not arms or curves is None:
        return None
    layout = plots.frame(360)
    layout["xaxis"] |= {"title": plots.axis_title("transactions since it was switched on")}
    layout["yaxis"] |= {"title": plots.axis_title("cost, µs")}
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    places = list(range(1, curves.shape[1] + 1))
    data = [
        _curve(i, arm, places, plots.rounded(curves[index[arm.name]])) for i, arm in enumerate(arms)
    ]
    rows = [
        [str(k + 1), *(numbers.signed(curves[index[arm.name], k], 2) for arm in arms)]
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


def _curve(number: int, arm: ArmResult, x: list[int], y: list[float | None]) -> plots.Json:
    """One arm's line, told from the others by colour and dashes."""
    color, dash = f"c{number % plots.PALETTE}", plots.DASHES[number % plots.PALETTE]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plots.text(arm.name),
        "x": x,
        "y": y,
        "line": {"color": color, "dash": dash, "width": 2, "simplify": False},
        "hovertemplate": "%{x}: %{y:+.3~g} µs<extra>%{fullData.name}</extra>",
    }


def _ordered(result: WeighResult) -> list[ArmResult]:
    return [row.arm for row in table(result)]


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
