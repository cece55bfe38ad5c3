"""The charts of a study: effects against the floor, and rounds in pairs."""

from __future__ import annotations

import math

from pgtare.kit import plots
from pgtare.kit.chart import Chart
from pgtare.weighing.ladder import wording
from pgtare.weighing.ladder.result import Compared, LadderResult, OnWorkload

_ROW_PX = 34


def charts(result: LadderResult) -> list[Chart]:
    """Every chart that the result gives something to show for."""
    drawn = [_effects(result)]
    drawn += [_rounds(result, workload) for workload in result.workloads]
    return [chart for chart in drawn if chart is not None]


def _effects(result: LadderResult) -> Chart | None:
    """All comparisons with their intervals, with the floor of each workload."""
    shown = [
        (workload, c, c is workload.floor)
        for workload in result.workloads
        for c in workload.with_floor
        if c.effect.pct is not None
    ]
    if not shown:
        return None
    height = _ROW_PX * len(shown) + 110
    names = [_label(workload, c, floor) for workload, c, floor in shown]
    layout = plots.frame(height)
    reach = _reach([c for _, c, _ in shown], result.margin_pct)
    layout["xaxis"] |= {
        "title": plots.axis_title("difference from the base, %"),
        "range": [-reach, reach],
        "zeroline": True,
    }
    layout["yaxis"] |= {
        "tickvals": list(range(len(shown))),
        "ticktext": [plots.text(n) for n in names],
        "range": [len(shown) - 0.5, -0.5],
        "zeroline": False,
        "automargin": True,
    }
    layout["legend"] = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0}
    layout["shapes"] = plots.margin_band(result.margin_pct)
    data = []
    for floor, name, color, symbol in (
        (False, "comparison", "c1", "circle"),
        (True, "floor (same variant again)", "c0", "square"),
    ):
        chosen = [(i, c) for i, (_, c, is_floor) in enumerate(shown) if is_floor is floor]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [c.effect.pct for _, c in chosen],
                "y": [i for i, _ in chosen],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "color": color,
                    "thickness": 1.6,
                    "width": 4,
                    "array": [_arm(c.effect.hi_pct, c.effect.pct, reach) for _, c in chosen],
                    "arrayminus": [_arm(c.effect.pct, c.effect.lo_pct, reach) for _, c in chosen],
                },
                "marker": {"color": color, "symbol": symbol, "size": 8},
                "hovertemplate": "%{x:+.3~g} %<extra></extra>",
            }
        )
    rows = [
        [n, wording.pct(c.effect.pct), wording.interval(c.effect), wording.p_text(c.p)]
        for n, (_, c, _) in zip(names, shown, strict=True)
    ]
    return Chart(
        id="effects",
        title="What each variant costs, with the floor",
        label="Interval plot of every comparison in percent of its base. "
        + " ".join(f"{row[0]}: {row[1]} {row[2]}." for row in rows),
        caption="Points are means of the rounds, bars "
        f"{wording.level_interval(result.alpha)}s; "
        f"the grey band is the margin, ±{result.margin_pct:g} %. Squares are the floor: the same "
        "variant twice a round. Bars that run out of the frame have no end that so few rounds "
        "could give, or one in the table.",
        height=height,
        data=data,
        layout=layout,
        table_head=["comparison", "effect", wording.level_interval(result.alpha), "p"],
        table_rows=rows,
    )


def _rounds(result: LadderResult, workload: OnWorkload) -> Chart | None:
    """Every round's runs in percent of the floor variant's first run of that round."""
    if not workload.by_round:
        return None
    base = result.floor
    names = [name for name in workload.by_round[0] if name != base]
    order = [r.variant for r in workload.rungs if r.variant in names]
    layout = plots.frame(340)
    layout["xaxis"] |= {
        "tickvals": list(range(len(order))),
        "ticktext": [plots.text(n) for n in order],
        "range": [-0.5, len(order) - 0.5],
        "zeroline": False,
    }
    layout["yaxis"] |= {
        "title": plots.axis_title(
            f"{wording.METRICS[workload.metric].short} against {plots.text(base)}, %"
        ),
        "zeroline": True,
    }
    layout["showlegend"] = False
    relative = [
        [100 * math.log(values[name] / values[base]) for name in order]
        for values in workload.by_round
    ]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": list(range(len(order))),
            "y": [round(v, 4) for v in row],
            "name": f"round {i}",
            "line": {"color": "band", "width": 1},
            "marker": {"color": "c1", "size": 7},
            "hovertemplate": f"round {i}: %{{y:+.3~g}} %<extra></extra>",
        }
        for i, row in enumerate(relative, start=1)
    ]
    return Chart(
        id=f"rounds-{workload.name}",
        title=f"{workload.name}: round by round",
        label=f"Dot plot of {len(relative)} rounds of {workload.name}: each variant in "
        f"percent of {base} in the same round, a line joining the variants of a round.",
        caption=f"A dot a variant, a line a round, in percent of {base} in the same round (log "
        f"scale); the scatter of {base} again is the floor.",
        height=340,
        data=data,
        layout=layout,
        table_head=["round", *order],
        table_rows=[
            [str(i), *(wording.pct(v) for v in row)] for i, row in enumerate(relative, start=1)
        ],
    )


def _label(workload: OnWorkload, c: Compared, floor: bool) -> str:
    return f"{workload.name} {'floor' if floor else f'{c.arm} − {c.base}'}"


def _arm(upper: float | None, lower: float | None, reach: float) -> float:
    """The length of a bar; one without an end runs out of the frame."""
    if upper is None or lower is None or lower <= -100:
        return 4 * reach
    return max(0.0, upper - lower)


def _reach(shown: list[Compared], margin: float) -> float:
    ends = [abs(c.effect.pct or 0.0) for c in shown]
    ends += [
        abs(end)
        for c in shown
        for end in (c.effect.lo_pct, c.effect.hi_pct)
        if end is not None and end > -100
    ]
    return 1.1 * max([*ends, 1.5 * margin])
